"""`cl.load`: an encoder with its transform, from our files and those of other programs."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

import cl
from cl.encoders.encoder import IMAGENET, Encoder
from tests.support import resnets
from tests.support.pictures import photograph, picture_file
from tests.support.resnets import IMAGES, TRANSFORM, WIDTH, save_encoder, torchvision_network


@pytest.fixture
def encoder(tmp_path) -> Encoder:
    save_encoder(tmp_path / "backbone.safetensors")
    return cl.load(tmp_path / "backbone.safetensors", device="cpu")


def test_it_has_the_weights_and_the_transform_of_its_file(encoder, tmp_path) -> None:
    tensors = save_encoder(tmp_path / "again.safetensors")
    assert encoder.transform == TRANSFORM
    assert encoder.width == WIDTH
    assert re.fullmatch(r"Encoder\(.*resnet18.*: 64 features per image, resize=20 crop=16.*\)", repr(encoder))
    assert not encoder.training
    assert all(torch.equal(value, tensors[name]) for name, value in encoder.network.state_dict().items())
    with pytest.raises(ValueError, match="holds no encoder below 'second.'"):
        cl.load(tmp_path / "again.safetensors", prefix="second.")


def test_all_kinds_of_images_and_precisions_give_the_same_features(encoder, tmp_path) -> None:
    paths = [picture_file(tmp_path / f"{seed}.png", seed, (50, 40)) for seed in range(3)]
    tensors = torch.stack([encoder.transform(path) for path in paths])
    expected = encoder.embed(tensors)
    assert (expected.shape, expected.dtype) == ((3, WIDTH), torch.float32)
    assert len({row.sum().item() for row in expected}) == 3
    pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
    for images in (
        paths,
        (path for path in paths),
        iter(paths),
        np.array([str(path) for path in paths]),
        np.array(paths, dtype=object),
        tuple(paths),
        pixels,
        list(pixels),
        [paths[0], Image.open(paths[1]), pixels[2]],
    ):
        torch.testing.assert_close(encoder.embed(images, batch_size=2), expected)
    for image in (str(paths[0]), Image.open(paths[0]), pixels[0]):
        torch.testing.assert_close(encoder.embed(image), expected[:1])
    rgba = np.dstack([pixels[0], np.uint8(255) * (pixels[0, :, :, 0] > 99)])
    Image.fromarray(rgba).save(tmp_path / "rgba.png")
    of_file = encoder.embed(tmp_path / "rgba.png")
    torch.testing.assert_close(encoder.embed([rgba, Image.fromarray(rgba)]), of_file.expand(2, -1))
    gray = pixels[0, :, :, 0]
    torch.testing.assert_close(encoder.embed(gray), encoder.embed(np.stack([gray] * 3, 2)))
    for none in ([], iter([]), tensors[:0]):
        assert encoder.embed(none).shape == (0, WIDTH)
    torch.testing.assert_close(encoder.embed(tensors.double()), expected)
    torch.testing.assert_close(encoder.embed(tensors.half()), expected, rtol=0.05, atol=0.05)
    encoder.half()
    torch.testing.assert_close(encoder.embed(paths), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("images", "found"),
    [
        ({"a.jpg"}, "a set"),
        (None, "a NoneType"),
        (5, "a int"),
        ([["a.jpg"]], "a list among the images"),
        ([b"a.jpg"], "a bytes among the images"),
        ([torch.zeros(3, 16, 16)], "a Tensor among the images"),
        (np.zeros((4, 4, 3)), "an array of float64 and shape (4, 4, 3)"),
        (np.zeros((3, 9, 9), np.uint8), "an array of uint8 and shape (3, 9, 9)"),
        (np.zeros((0, 9, 3), np.uint8), "an array of uint8 and shape (0, 9, 3)"),
        ([np.zeros(3, np.uint8)], "an array of uint8 and shape (3,)"),
    ],
)
def test_other_inputs_are_refused_with_those_allowed(encoder, images, found) -> None:
    with pytest.raises(ValueError, match=re.escape(f"found {found}, expected the path of an image, a PIL")):
        encoder.embed(images)


def test_features_that_are_not_finite_are_refused_with_the_image(encoder, tmp_path) -> None:
    paths = [picture_file(tmp_path / f"{seed}.jpg", seed, (50, 40)) for seed in range(3)]
    images = torch.stack([encoder.transform(path) for path in paths])
    images[2, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="image 2 gives features that are not finite: .*; choose"):
        encoder.embed(images, batch_size=2)
    with torch.no_grad():
        encoder.network.layer4[1].bn2.weight.fill_(torch.inf)
    with pytest.raises(ValueError, match=f"^{tmp_path}/1.jpg gives features that are not finite"):
        encoder.embed(paths[1:], batch_size=1)
    with pytest.raises(ValueError, match="batch_size=0, expected at least 1"):
        encoder.embed(paths, batch_size=0)


def test_embedding_leaves_the_mode_and_the_statistics_alone(encoder) -> None:
    before = encoder.embed(IMAGES)
    encoder.train()
    torch.testing.assert_close(encoder.embed(IMAGES), before)
    assert encoder.training
    with pytest.raises(FileNotFoundError):
        encoder.embed("none.jpg")
    assert encoder.training
    assert encoder(IMAGES).requires_grad


def test_files_of_other_programs_get_the_transform_of_imagenet(tmp_path, monkeypatch) -> None:
    theirs = torchvision_network()
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    resnets.put_torchvision_weights(theirs, tmp_path / "checkpoints", monkeypatch)
    for name in (str(tmp_path / "theirs.pth"), "torchvision:resnet18"):
        encoder = cl.load(name)
        assert encoder.transform == IMAGENET
        torch.testing.assert_close(encoder.embed(IMAGES), resnets.features(theirs), rtol=1e-4, atol=1e-4)
    picture = photograph(300, 400)
    assert encoder.transform(picture).shape == (3, 224, 224)
    encoder.transform = encoder.transform.model_copy(update={"resize": 64, "crop": 64})
    assert encoder.transform(picture).shape == (3, 64, 64)


def test_tensors_that_are_not_transformed_images_are_refused(encoder) -> None:
    """Pixels from 0 to 1, as torchvision's ToTensor gives them, may be meant."""
    for largest in (1, 255):
        with pytest.warns(UserWarning, match="values from 0 to 1 or 255, expected normalised"):
            encoder.embed(largest * torch.rand(2, 3, 32, 32))
    for shape, dtype in (((3, 32, 32), "float32"), ((2, 1, 32, 32), "float32"), ((2, 3, 8, 8), "uint8")):
        with pytest.raises(ValueError, match=rf"torch.{dtype} .* expected transformed images \(N, 3, S, S\)"):
            encoder.embed(torch.zeros(shape, dtype=getattr(torch, dtype)))
