"""The contract that every data source keeps, shown on a tiny archive in its official layout."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from cl.images.image import UNLABELLED, raw_images
from cl.runtime.registry import kinds
from cl.sources import check_labels
from tests.support.archives import noise, splits_of, write_and_read
from tests.support.pictures import digest


@pytest.mark.parametrize("kind", kinds("sources"))
def test_every_source_keeps_the_contract(kind, source, tmp_path) -> None:
    """Labels number the classes, every image is readable, and preparing twice writes the same bytes."""
    settings = source(kind)
    found = splits_of(settings, tmp_path / "raw")
    known = set(range(len(found.classes)))
    check_labels(found, settings.labels)
    for images in (found.train, found.val):
        assert {image.label for image in images} - {UNLABELLED} == known
    readers = write_and_read(found, tmp_path / "a")
    assert [len(reader) for reader in readers] == [len(found.train), len(found.val)]
    write_and_read(splits_of(settings, tmp_path / "raw"), tmp_path / "b")
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


NEED_FILES = {"cifar10", "cifar100", "folder", "imagenet", "imagenet100", "stl10", "table", "unlabelled"}


@pytest.mark.parametrize("kind", kinds("sources"))
def test_a_source_without_files_says_where_to_put_them(kind, source, tmp_path) -> None:
    try:
        found = splits_of(source(kind), tmp_path / "nowhere")
    except ValueError as error:
        assert re.search(r"no (file|folder|table) .*nowhere.*(put|write) .* CL_RAW", str(error))
        assert "\n" not in str(error)
    else:  # it comes with its images
        assert kind not in NEED_FILES
        assert found.train


def test_raw_images_come_back_pixel_for_pixel() -> None:
    pixels = noise(0, 5, 3, 8, 12).transpose(0, 2, 3, 1)
    images = raw_images("some", Path("archive"), pixels, [1, 0, UNLABELLED, 2, 3])
    assert [image.key for image in images[:2]] == ["some/000000", "some/000001"]
    assert [image.label for image in images] == [1, 0, UNLABELLED, 2, 3]
    for image, expected in zip(images, pixels, strict=True):
        assert image.read() == image.read()
        with Picture.open(io.BytesIO(image.read())) as picture:
            assert picture.format == "PNG"
            assert np.array_equal(np.asarray(picture), expected)
