"""Parts of features belong to one listing, one encoder and one set of decoders."""

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import cl
from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu
from cl.commands.jobs import embedding
from cl.commands.jobs.embedding import EmbeddingJob
from cl.runtime.machine import Machine
from tests.support.pictures import picture_file, without_heic
from tests.support.resnets import save_encoder

HERE = Machine(torch.device("cpu"), 0, "fp32")


@pytest.fixture
def images(tmp_path) -> Path:
    for seed in range(5):
        picture_file(tmp_path / "images" / f"{seed}.jpg", seed, (24, 20))
    return tmp_path / "images"


def job(images: Path, seed: int = 0) -> EmbeddingJob:
    """Begun, with an encoder of this seed."""
    file = images.parent / f"{seed}.safetensors"
    save_encoder(file, seed)
    begun = EmbeddingJob([images], cl.load(file), images.parent / "features.npy")
    begun.partial.mkdir(exist_ok=True)
    begun.begin()
    assert len(begun.parts) == 1
    return begun


def compute(unfinished: EmbeddingJob) -> list[bool]:
    """For each part, whether it was kept."""
    found: list[bool] = []
    embedding.compute(unfinished, HERE, lambda images, kept=False: found.append(kept))
    return found


@pytest.mark.parametrize("files", [["mine.txt"], ["mine/a"], ["identity", "0.jpg"], []])
def test_a_folder_of_the_user_is_left_alone(files, images) -> None:
    """Or a file of its name."""
    partial = images.parent / "features.npy.partial"
    for name in files:
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).write_text("mine")
    if not files:
        partial.write_text("mine")
    save_encoder(images.parent / "encoder.safetensors")
    before = [*images.parent.rglob("*")]
    with pytest.raises(ValueError, match=r"features.npy.partial.* is not a file of an unfinished"):
        cl.embed(images, encoder=images.parent / "encoder.safetensors", to=images.parent / "features.npy")
    assert [*images.parent.rglob("*")] == before


def test_a_process_of_an_earlier_run_does_not_disturb_the_next(images) -> None:
    earlier, now = job(images, seed=0), job(images, seed=1)
    with contextlib.suppress(FileNotFoundError):
        compute(earlier)
    compute(now)
    embedding.merge(now)
    expected = now.encoder.embed(sorted(images.iterdir())).numpy()
    np.testing.assert_allclose(np.load(now.target), expected, rtol=1e-4, atol=1e-4)


def test_parts_are_computed_again_for_another_encoder_or_listing(images) -> None:
    assert compute(job(images)) == [False]
    assert compute(job(images, seed=1)) == [False]
    (images / "0.jpg").unlink()
    assert compute(job(images, seed=1)) == [False]
    begun = job(images, seed=1)
    assert compute(begun) == [True]
    with torch.no_grad():
        begun.encoder.network.conv1.weight[0] += 1
    changed = replace(begun)
    changed.begin()
    assert compute(changed) == [False]


def test_parts_are_computed_again_once_heic_can_be_read(images, monkeypatch) -> None:
    with without_heic(monkeypatch):
        assert compute(job(images)) == [False]
        assert compute(job(images)) == [True]
    assert compute(job(images)) == [False]


def test_links_that_lead_nowhere_and_folders_count_as_unreadable(images) -> None:
    (images / "loop.jpg").symlink_to("loop.jpg")
    (images / "below a file.jpg").symlink_to("0.jpg/1.jpg")
    (images.parent / "folder.jpg").mkdir()
    names = [*(path.name for path in images.iterdir()), "../folder.jpg"]
    (images / "list.txt").write_text("\n".join(names))
    begun = job(images / "list.txt")
    compute(begun)
    assert embedding.merge(begun) == (
        5,
        {
            "OSError: Too many levels of symbolic links": 1,
            "NotADirectoryError: Not a directory": 1,
            "IsADirectoryError: Is a directory": 1,
        },
    )


def test_a_run_that_could_read_no_image_leaves_nothing(images) -> None:
    """Or the next one would find its parts, since `chmod` changes neither size nor time of a file."""
    for path in images.iterdir():
        path.write_bytes(b"no image")
    begun = job(images)
    compute(begun)
    with pytest.raises(ValueError, match="none of the images can be read: ValueError: not an image"):
        embedding.merge(begun)
    assert not [*begun.partial.iterdir()]


def test_features_that_are_not_finite_end_the_run_with_the_name_of_the_image(images) -> None:
    begun = job(images)
    (images / "3.jpg").write_bytes(b"no image")  # whose features do not count
    with torch.no_grad():
        begun.encoder.network.layer4[1].bn2.weight.fill_(torch.inf)
    with pytest.raises(ValueError, match=r"images/0.jpg gives features that are not finite"):
        compute(begun)
    assert not begun.path(0).exists()


def test_an_image_with_too_many_pixels_is_refused_with_advice_that_helps(images) -> None:
    header = bytearray((images / "0.jpg").read_bytes())
    start = header.index(b"\xff\xc0")
    header[start + 5 : start + 9] = (40_000).to_bytes(2) * 2
    (images / "huge.jpg").write_bytes(header)
    begun = job(images)
    compute(begun)
    embedded, (reason,) = embedding.merge(begun)
    assert embedded == 5
    assert "40000x40000 pixels is too large, expected at most 178956970; make it smaller" in reason


def test_a_part_waits_for_the_gpu_once(images, monkeypatch) -> None:
    monkeypatch.setattr(embedding, "BATCH", 2)
    begun = job(images)
    with FakeGpu() as gpu:
        begun.encoder.to(GPU)
        gpu.clear()
        embedding.compute(begun, Machine(GPU, 0, "fp32"), lambda images, kept=False: None)
    assert gpu.counts()["cat"] == 1
    assert gpu.waits == 1
