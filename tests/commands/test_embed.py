"""Features of images: complete, in order, and the same after kills and on several processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image as Picture

import cl
from cl.commands.inputs import feature_files
from cl.runtime import machine
from cl.runtime.files import exclusive
from tests.support.files import read_csv
from tests.support.pictures import picture_file
from tests.support.project import ROOT
from tests.support.resnets import WIDTH, save_encoder
from tests.support.stages import Stage, answers, assert_refused, start
from tests.support.transformers import transformer

READABLE, UNREADABLE = 600, 70  # in parts of 64, the first of which has no image that can be read
PATIENCE = 120  # seconds


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("embed") / "images"
    for number in range(READABLE):
        picture_file(root / f"folder {number % 7}/{number}.jpg", number, (24, 20))
    (root / "0").mkdir()
    for number in range(UNREADABLE):
        (root / f"0/{number}.jpg").write_bytes(b"no image")
    (root / "folder 3/nowhere.png").symlink_to("nothing")
    (root / "notes.txt").touch()
    return root


@pytest.fixture(scope="module")
def encoder(images) -> Path:
    save_encoder(images.parent / "encoder.safetensors")
    return images.parent / "encoder.safetensors"


def embed(images: Path, encoder: Path, to: Path, *options: str) -> Stage:
    """The stage, in small parts."""
    arguments = ("embed", str(images), "--to", str(to), "--encoder", str(encoder), *options)
    return Stage(arguments, package="tests.support")


def run(images: Path, encoder: Path, to: Path, *options: str) -> str:
    """What it prints; afterwards no unfinished work is left."""
    (answer,) = answers(ROOT, [embed(images, encoder, to, *options)])
    assert answer.code == 0, answer.stderr
    assert not list(to.parent.glob("*.partial"))
    return answer.stderr


def run_in_two_processes(images: Path, encoder: Path, to: Path, module: str = "embed") -> None:
    _, *arguments = embed(images, encoder, to).arguments
    command = [sys.executable, "-m", f"tests.support.{module}", *arguments]
    variables = {**os.environ, "CL_PROCESSES": "2"}
    subprocess.run(command, cwd=ROOT, env=variables, check=True, timeout=PATIENCE)
    assert not list(to.parent.glob("*.partial"))


def parts(to: Path) -> dict[str, int]:
    """The finished parts, with times that change if they are computed again."""
    return {path.name: path.stat().st_mtime_ns for path in Path(f"{to}.partial").glob("*/part-*.safetensors")}


def run_until(count: int, images: Path, encoder: Path, to: Path) -> dict[str, int]:
    """Kill it once `count` parts are finished; returns these."""
    process = start(ROOT, embed(images, encoder, to))
    end = time.monotonic() + PATIENCE
    while len(parts(to)) < count:
        assert process.is_alive()
        assert time.monotonic() < end
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return parts(to)


@pytest.fixture(scope="module")
def expected(images, encoder) -> tuple[list[str], np.ndarray]:
    """Names and features, by `encoder.embed`."""
    paths = sorted(images.glob("folder */*.jpg"))
    features = cl.load(encoder).embed(paths, batch_size=100).numpy()
    return [str(path.relative_to(images)) for path in paths], features


@pytest.fixture(scope="module")
def whole(images, encoder) -> Iterator[Path]:
    """The result of a run that nothing interrupts, as .npy."""
    to = images.parent / "whole/features.npy"
    printed = run(images, encoder, to)
    assert "left out 1 file: with suffix .txt" in printed
    assert f"left out {UNREADABLE} images that cannot be read: ValueError: not an image" in printed
    assert "left out 1 image that cannot be read: FileNotFoundError: No such file or directory" in printed
    assert (
        f"{to}: {READABLE} images, {WIDTH} features each; {to}.skipped.csv lists {UNREADABLE + 1}" in printed
    )
    yield to


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_features_are_those_of_encoder_embed_beside_their_names(whole, expected) -> None:
    names, features = expected
    found = np.load(whole)
    assert (found.shape, found.dtype) == ((READABLE, WIDTH), np.float32)
    assert whole.with_suffix(".txt").read_text().splitlines() == names
    close(found, features)


def test_images_that_cannot_be_read_are_listed(whole) -> None:
    rows = {row["name"]: row["reason"] for row in read_csv(Path(f"{whole}.skipped.csv"))}
    assert len(rows) == UNREADABLE + 1
    assert rows["0/12.jpg"] == "ValueError: not an image, or an unsupported format"
    assert rows["folder 3/nowhere.png"] == "FileNotFoundError: No such file or directory"


@pytest.mark.slow
def test_a_run_that_was_killed_twice_gives_the_same_bytes(whole, images, encoder, tmp_path) -> None:
    to = tmp_path / "features.npy"
    to.write_text("an earlier result")
    first = run_until(3, images, encoder, to)
    second = run_until(7, images, encoder, to)
    assert to.read_text() == "an earlier result", "it is replaced only on success"
    assert first.items() <= second.items(), "finished parts are kept"
    run(images, encoder, to)
    for name in ("features.npy", "features.txt", "features.npy.skipped.csv"):
        assert (tmp_path / name).read_bytes() == (whole.parent / name).read_bytes()


@pytest.mark.slow
def test_parquet_on_two_processes_equals_npy_on_one(whole, images, encoder, tmp_path) -> None:
    run_in_two_processes(images, encoder, tmp_path / "features.parquet")
    table = pq.read_table(tmp_path / "features.parquet")
    assert table["name"].to_pylist() == whole.with_suffix(".txt").read_text().splitlines()
    close(np.stack(table["features"].to_numpy()), np.load(whole))
    assert table.schema.metadata[b"sha256"].decode() == cl.load(encoder).sha256


def test_results_may_be_called_as_the_files_of_the_work_in_between(images, encoder, tmp_path) -> None:
    (tmp_path / "few").mkdir()
    (tmp_path / "few/1.jpg").symlink_to(images / "folder 1/1.jpg")
    run(tmp_path / "few", encoder, tmp_path / "names.npy")
    assert (tmp_path / "names.txt").read_text() == "1.jpg\n"
    assert np.load(tmp_path / "names.npy").shape == (1, WIDTH)


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        (lambda: transformer().state_dict(), "about 32 px"),
        (lambda: transformer(img_size=240).state_dict(), ""),
        (lambda: transformer(img_size=384).state_dict(), "about 384 px"),
        (lambda: {"arch": "test_resnet", "model": timm.create_model("test_resnet").state_dict()}, "160 px"),
    ],
)
def test_an_encoder_for_smaller_images_is_mentioned(saved, expected, images, tmp_path, capsys) -> None:
    torch.save(saved(), tmp_path / "encoder.pth")
    cl.embed(images / "folder 1/1.jpg", encoder=tmp_path / "encoder.pth")
    printed = capsys.readouterr().err
    assert ("--resize" in printed) == bool(expected)
    assert expected in printed


def test_files_with_several_pages_are_mentioned(encoder, tmp_path, capsys) -> None:
    pages = [Picture.new("L", (40, 40), gray) for gray in (50, 200)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    pages[1].save(tmp_path / "b.png")
    cl.embed(tmp_path, encoder=encoder)
    assert "of the first 2 files, 1 with several frames or pages" in capsys.readouterr().err


def test_a_gpu_that_is_not_used_is_mentioned(images, encoder, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(machine, "AMD_DRIVER", tmp_path)
    cl.embed(images / "folder 1/1.jpg", encoder=encoder)
    assert "GPUs of AMD and Apple are not used" in capsys.readouterr().err


def test_the_function_returns_what_it_otherwise_writes(images, encoder, tmp_path) -> None:
    """In memory or as a file, by a loaded encoder, in half precision too, or its file; and patches.

    PyTorch's settings stay.
    """
    few = sorted(images.glob("folder 1/*.jpg"))[:3]
    loaded = cl.load(encoder)
    for patches, expected in ((False, loaded.embed(few).numpy()), (True, loaded.patches(few).numpy())):
        found = cl.embed(few, encoder=loaded, patches=patches)
        assert found is not None
        assert found.names == [str(path) for path in few]
        close(found.features, expected)
        to = tmp_path / f"{patches}.npy"
        assert cl.embed(few, encoder=encoder, to=to, patches=patches) is None
        close(feature_files.read(to, patches=patches).features, expected)
        half = cl.load(encoder).bfloat16()
        encode = half.patches if patches else half.embed
        close(cl.embed(few, encoder=half, patches=patches).features, encode(few).numpy())
    with pytest.raises(ValueError, match="True.npy is not a file of features .*shape"):
        feature_files.read(to)
    assert not torch.are_deterministic_algorithms_enabled()


def test_mistakes_are_answered_in_one_sentence(project, images, encoder, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/notes.txt").touch()
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk/a.jpg").write_bytes(b"no image")
    torch.save(transformer().state_dict(), tmp_path / "vit.pth")
    (tmp_path / "bad.csv").write_text("species\nrobin\n")
    to, of = ["--to", tmp_path / "features.npy"], ["--encoder", encoder]
    small = ["--encoder", tmp_path / "vit.pth", "--resize", 30, "--crop", 30]
    mistakes = {
        "no file or folder none; give images, a folder, a list or a table of images": ["none", *to, *of],
        "empty, found 1 with suffix .txt; give images": [tmp_path / "empty", *to, *of],
        "bad.csv has the columns species": [tmp_path / "bad.csv", *to, *of],
        "can be read: ValueError: not an image, or an unsupported": [tmp_path / "junk", *to, *of],
        "must be a file that ends in .parquet, .npy or .csv": [images, *of, "--to", tmp_path / "features.h5"],
        "models/backbone.safetensors does not exist; give a checkpoint": [images, *to],
        "another process is writing": [images, "--to", tmp_path / "locked.npy", *of],
        "holds no encoder below 'a.', only below ''": [images, *to, *of, "--prefix", "a."],
        "notes.txt, which cl embed did not write": [images, "--to", tmp_path / "notes.npy", *of],
        "(Errno|File name) .*too long": ["x" * 256, *to, *of],
        r"vit.pth does not take the images of 30 px from --crop \(": [images, *to, *small],
        "found --resize None with --crop 16; give both or": [images, *to, *of, "--crop", 16],
        "crop=16 is larger than resize=8": [images, *to, *of, "--crop", 16, "--resize", 8],
        "records resize=20 and crop=16; leave": [images, *to, *of, "--crop", 16, "--resize", 16],
    }
    (tmp_path / "notes.txt").write_text("of the user")
    (tmp_path / "notes.npy.partial").mkdir()  # of a run that was killed before it had listed its images
    with exclusive(tmp_path / "locked.npy.partial", tmp_path / "locked.npy"):
        assert_refused(project, "embed", mistakes)
    assert not [*tmp_path.glob("features*")]
    assert (tmp_path / "notes.txt").read_text() == "of the user"
