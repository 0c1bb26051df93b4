"""ImageNet's archives, damaged in every way: refused in one line, or every image is listed."""

import hashlib
import io
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torchvision.datasets.imagenet import ARCHIVE_META

from cl.images.image import Splits
from cl.sources import imagenet
from cl.sources._shared import imagenet as archive
from tests.support.archives import add_member, add_special, tar_of


def outcome(root: Path) -> Splits | str:
    """What the archives list, or the message that refuses them; any other error fails the test."""
    try:
        return imagenet.splits(SimpleNamespace(classes=3), root.parent)
    except ValueError as error:
        assert type(error) is ValueError
        assert "\n" not in str(error)
        assert str(root) in str(error)
        return str(error)


def images_of(found: Splits) -> dict[str, tuple[int, bytes]]:
    return {image.key: (image.label, image.read()) for image in [*found.train, *found.val]}


def test_the_names_of_the_archives_are_torchvisions() -> None:
    (train, _), (val, _), devkit = (ARCHIVE_META[name] for name in ("train", "val", "devkit"))
    assert (train, val, devkit) == (archive.TRAIN, archive.VAL, (archive.DEVKIT, archive.DEVKIT_MD5))


@pytest.mark.parametrize("name", [archive.TRAIN, archive.VAL, archive.DEVKIT])
def test_a_truncated_archive_is_refused(name, ilsvrc) -> None:
    """Truncated at 40 lengths and at every member: either all images are listed or none."""
    path = ilsvrc / name
    whole, expected = path.read_bytes(), images_of(outcome(ilsvrc))
    rng = np.random.default_rng(0)
    lengths = {0, 1, 511, 512, 513, len(whole) - 1, *rng.integers(0, len(whole), 35).tolist()}
    if name != archive.DEVKIT:
        with tarfile.open(path) as tar:
            lengths |= {member.offset for member in tar}
    refused = 0
    for length in sorted(lengths):
        path.write_bytes(whole[:length])
        found = outcome(ilsvrc)
        if isinstance(found, str):
            refused += 1
        else:
            assert images_of(found) == expected
            assert length > len(whole) - tarfile.RECORDSIZE  # only padding after the end mark is lost
    assert refused > 30


def test_a_damaged_class_inside_the_training_archive_is_refused(ilsvrc) -> None:
    """The outer archive is intact; one of the inner ones is truncated, between two images or elsewhere."""
    with tarfile.open(ilsvrc / archive.TRAIN) as tar:
        inner = {member.name: tar.extractfile(member).read() for member in tar}
    name, whole = next(iter(inner.items()))
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        borders = [member.offset for member in tar]
    for length in [*borders, 100, 700, len(whole) // 2, borders[-1] + 512]:
        (ilsvrc / archive.TRAIN).write_bytes(tar_of(inner | {name: whole[:length]}))
        message = outcome(ilsvrc)
        assert isinstance(message, str), length
        assert "ILSVRC2012_img_train.tar is damaged or incomplete" in message


@pytest.mark.parametrize("name", [archive.TRAIN, archive.VAL])
@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE],
    ids=["link", "hard link", "character device", "block device", "pipe", "folder"],
)
def test_only_plain_files_are_accepted(name, outer, kind, ilsvrc) -> None:
    good = {
        archive.TRAIN: "n00000001.tar" if outer else "n00000001_1.JPEG",
        archive.VAL: "ILSVRC2012_val_00000001.JPEG",
    }
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        add_special(tar, good[name], kind, "/etc/passwd")
    stored = memory.getvalue()
    if name == archive.TRAIN and not outer:
        stored = tar_of({"n00000001.tar": stored})
    (ilsvrc / name).write_bytes(stored)
    assert f"{name} contains {good[name]!r}, which is not in the official" in outcome(ilsvrc)


@pytest.mark.parametrize(
    "bad", ["../n00000001_1.JPEG", "/n00000001_1.JPEG", "n00000002_1.JPEG", "n00000001_1.JPEG\n", "x.txt"]
)
def test_a_class_contains_only_its_own_images(bad, ilsvrc) -> None:
    (ilsvrc / archive.TRAIN).write_bytes(tar_of({"n00000001.tar": tar_of({bad: b"image"})}))
    assert f"contains {bad!r}, which is not in the official" in outcome(ilsvrc)


def write_val(root: Path, numbers: list[int]) -> None:
    with tarfile.open(root / archive.VAL, "w") as tar:
        for number in numbers:
            add_member(tar, f"ILSVRC2012_val_{number:08d}.JPEG", b"image")


@pytest.mark.parametrize(
    "numbers", [[1, 2, 3, 4, 5], [*range(1, 8)], [1, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], []]
)
def test_the_validation_images_must_match_the_ground_truth(numbers, ilsvrc) -> None:
    write_val(ilsvrc, [1, 2, 3, 4, 5, 6])
    assert isinstance(outcome(ilsvrc), Splits)
    write_val(ilsvrc, numbers)
    assert f"{archive.VAL} contains {len(numbers)} images, expected numbers 1 to 6" in outcome(ilsvrc)


def test_only_the_official_devkit_is_opened(ilsvrc) -> None:
    """Its class table is a MATLAB file, and damaged ones can crash the library that reads them."""
    md5 = archive.DEVKIT_MD5
    whole = (ilsvrc / archive.DEVKIT).read_bytes()
    for content in (b"", b"no gzip", whole[:-1] + bytes([whole[-1] ^ 1])):
        (ilsvrc / archive.DEVKIT).write_bytes(content)
        found = hashlib.md5(content).hexdigest()
        assert f"{archive.DEVKIT} has md5 {found}, expected {md5}; download it again" in outcome(ilsvrc)
