"""The evaluation view of single images: the same pixels from a file, a picture and the shards."""

import io

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.data.transform import Transform
from cl.images import decoding
from pipeline.support.locations import transform
from tests.support.pictures import FILES, file_of, photograph, with_orientation

TRANSFORM = Transform(resize=32, crop=24, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), upright=True)


def test_it_equals_the_evaluation_view_of_the_shards(shard_folder, params, tmp_path) -> None:
    reader = Reader(shard_folder, "val")
    eval_view = transform(params.dataset)
    (batch,) = EvalSet(reader, eval_view).batches(len(reader), 0)
    mean, std = (torch.tensor(x)[:, None, None] for x in (params.dataset.mean, params.dataset.std))
    assert batch.shape[2:] == (params.dataset.crop,) * 2
    for position, image in enumerate(batch):
        path = tmp_path / f"{position}.png"
        path.write_bytes(reader.read(position))
        assert torch.equal(eval_view(path), (image.float() / 255 - mean) / std)


@pytest.mark.parametrize("name", FILES)
def test_a_picture_has_the_pixels_of_its_file(name, tmp_path) -> None:
    (tmp_path / "image").write_bytes(FILES[name])
    with Picture.open(io.BytesIO(FILES[name])) as picture:
        assert np.array_equal(TRANSFORM.pixels(picture), TRANSFORM.pixels(str(tmp_path / "image")))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_rotated_upright_if_so_recorded(orientation, tmp_path) -> None:
    whole = Transform(resize=37, crop=37, mean=(0, 0, 0), std=(1, 1, 1), upright=True)
    path = tmp_path / "turned.png"
    path.write_bytes(with_orientation(orientation, "PNG"))
    with Picture.open(path) as picture:
        upright = np.asarray(whole.pixels(picture))
        turned = decoding.turn(np.asarray(photograph()), orientation)
        reference = whole.pixels(Picture.fromarray(turned))
        assert np.array_equal(upright, reference)
        assert np.array_equal(whole.pixels(path), reference)
    as_stored = whole.model_copy(update={"upright": False})
    assert np.array_equal(as_stored.pixels(path), whole.pixels(photograph()))


def test_errors_name_the_file(tmp_path) -> None:
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(file_of(photograph())[:-50])
    with pytest.raises(ValueError, match=r"damaged.jpg cannot be decoded: [Ii]mage file is truncated"):
        TRANSFORM(damaged)
    with pytest.raises(FileNotFoundError, match="none.jpg"):
        TRANSFORM(tmp_path / "none.jpg")
    with pytest.raises(ValueError, match="crop=64 is larger than resize=32; choose"):
        TRANSFORM.model_copy(update={"crop": 64})(photograph())


def test_deep_gray_images_are_scaled_by_the_recorded_levels(tmp_path) -> None:
    """As prepare does for the shards of a run; the file of weights carries the levels."""
    deep = np.linspace(0, 4095, 37 * 37).astype(np.uint16).reshape(37, 37)  # 12 bits
    Picture.fromarray(deep).save(tmp_path / "deep.png")
    whole = Transform(resize=37, crop=37, mean=(0, 0, 0), std=(1, 1, 1), upright=True)
    scaled = whole.model_copy(update={"levels": {"I;16": (0.0, 4095.0)}})
    expected = np.repeat(np.round(deep / 4095 * 255)[..., None], 3, 2)
    with Picture.open(tmp_path / "deep.png") as picture:
        for image in (picture, tmp_path / "deep.png"):
            assert np.abs(scaled.pixels(image) - expected).max() <= 1
    with pytest.raises(ValueError, match="deep.png cannot be decoded"):
        whole.pixels(tmp_path / "deep.png")
