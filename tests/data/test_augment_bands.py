"""Views of bands against plain statements of what they are, in float64 and view by view."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as tv

from cl.data import augment_gpu
from cl.data.augment_bands import BandParams, augment, draw_band_params, draws
from cl.data.views import RandomNumbers, View, resize
from cl.images.bands import Bands
from tests.support.bands import CHANGES as USUAL

CHANGES = USUAL.model_copy(update={"p": 0.5, "offset": 0.3, "dropout": 0.3, "grayscale": 0.25})


@pytest.fixture
def view(params) -> View:
    usual = params.views["random"].model_dump()
    return View.model_validate(
        {**usual, "flip": 0.5, "blur": {"p": 0.5, "sigma": (0.3, 2.0), "kernel": 9}, "bands": CHANGES}
    )


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_a_crop_is_standardised_in_every_depth_and_resized_without_rounding(
    dtype, interpolation, view
) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 200, (50, 70, 5)).astype(dtype)
    pixels[rng.random(pixels.shape) < 0.2] = 7
    bands = Bands(
        names=tuple("abcde"),
        dtype=dtype,
        mean=(50, 60, 70, 80, 1e4),
        deviation=(1, 2, 3, 4, 1e3),
        levels=((0, 1),) * 5,
        missing=7,
    )
    out = np.empty((1, 32, 32, 5), np.float32)
    resize(pixels, (10, 5, 60, 45), view.model_copy(update={"interpolation": interpolation}), out, bands)
    exact = (pixels - np.array(bands.mean)) / np.array(bands.deviation)
    exact[pixels == 7] = 0
    crop = torch.from_numpy(exact[None, 5:45, 10:60]).permute(0, 3, 1, 2)
    expected = F.interpolate(crop, (32, 32), mode=interpolation, antialias=True).permute(0, 2, 3, 1)
    torch.testing.assert_close(torch.from_numpy(out).double(), expected, atol=1e-4, rtol=0)


def test_changes_are_those_of_each_view_alone(view) -> None:
    rows = torch.tensor([draw_band_params(view, RandomNumbers(0, 0, x, 0), 4) for x in range(60)]).float()
    images = torch.randn(60, 16, 16, 4).permute(0, 3, 1, 2)
    before = images.clone()
    found = augment(images, rows, view)
    assert torch.equal(images, before)
    for image, row, ours in zip(images, rows, found, strict=True):
        params = BandParams.of(row[None])
        x = tv.hflip(image) if params.flip else image
        x = x.rot90(int(params.turns), (1, 2))
        if params.sigma:
            x = augment_gpu.blur(x[None], params.sigma, view.blur.kernel)[0]
        seeded = torch.Generator().manual_seed(int(params.seed))
        x = (x + params.noise * torch.randn(4, 16, 16, generator=seeded)).double()
        waves = np.fft.fft(x.numpy(), axis=0)
        saturation, angle = torch.hypot(params.near, params.turned), torch.atan2(params.turned, params.near)
        waves[1] *= saturation.numpy() * np.exp(-1j * angle.numpy())
        waves[2] *= saturation.numpy() * np.cos(angle.numpy())  # what its real part can move
        waves[3] = waves[1].conj()
        changed = torch.from_numpy(np.fft.ifft(waves, axis=0).real)
        expected = torch.stack(
            [
                gain * band + offset
                for band, gain, offset in zip(changed, params.gain[0], params.offset[0], strict=True)
            ]
        )
        torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=0)


def test_hue_of_three_bands_is_a_rotation_about_gray(view) -> None:
    """By Rodrigues' formula; the length of a pixel and its gray stay."""
    axis, angle = np.full(3, 3**-0.5), 0.7
    cross = np.cross(np.eye(3), axis)  # rows e_i x axis, so that v @ cross is v x axis
    rotation = np.eye(3) * np.cos(angle) + cross * np.sin(angle) + np.outer(axis, axis) * (1 - np.cos(angle))
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    row = torch.tensor([[0, 0, 0, 0, 0, np.cos(angle), np.sin(angle), 1, 1, 1, 0, 0, 0]]).float()
    found = augment(x.float(), row, view).double()
    rotated = [torch.einsum("cd,ndhw->nchw", torch.from_numpy(r), x) for r in (rotation, rotation.T)]
    assert min((found - each).abs().max() for each in rotated) < 1e-5
    assert (found - x).abs().max() > 0.1


@pytest.mark.parametrize("channels", [1, 4, 13])
def test_parameters_have_the_configured_distribution(channels, view) -> None:
    rows = torch.tensor(
        [draw_band_params(view, RandomNumbers(3, 1, x, 0), channels) for x in range(4000)]
    ).double()
    assert rows.shape[1] == draws(channels)
    params = BandParams.of(rows)
    changed = params.noise > 0
    kept = params.gain != 0
    assert (~kept).sum(1).max() < channels or channels == 1
    assert kept.any(1).all()
    for found, expected in (
        (params.flip, 0.5),
        (params.turns > 0, 0.75),
        (params.turns == 3, 0.25),
        (params.sigma > 0, 0.5),
        (changed, 0.5),
    ):
        assert abs(found.double().mean() - expected) < 0.03
    assert (params.gain[~changed][kept[~changed]] == 1).all()
    assert (params.offset[~kept] == 0).all()
    saturation, angle = torch.hypot(params.near, params.turned), torch.atan2(params.turned, params.near)
    gray = saturation == 0
    assert abs(gray.double().mean() - 0.25) < 0.03
    assert (saturation[~gray & ~changed] == 1).all() and (angle[~changed] == 0).all()
    for values, low, high in ((saturation, 0.6, 1.4), (angle / (2 * np.pi), -0.2, 0.2)):
        varied = values[~gray & changed]
        assert low - 1e-6 <= varied.min() < low + 0.02
        assert high - 0.02 < varied.max() <= high + 1e-6
    pairs = changed & kept[:, :2].all(1)
    for values, common, own in ((params.gain, 0.4, 0.2), (params.offset, 0.3, 0.1)):
        first, second = values[pairs, 0], values[pairs, min(1, channels - 1)]
        one = 1 + common**2 / 3 if values is params.gain else 1  # E[(1 + g)^2], of uniform g
        of_both, of_one = common**2 / 3, one * own**2 / 3
        expected = of_both if channels > 1 else of_both + of_one
        assert abs(((first - first.mean()) * (second - second.mean())).mean() - expected) < 0.004
        assert abs(first.var() - of_both - of_one) < 0.004
    if channels > 4:
        assert abs((~kept).double().mean() - 0.3) < 0.02


def test_without_changes_bands_are_only_cropped_and_flipped(view) -> None:
    plain = view.model_copy(update={"bands": None, "blur": view.blur.model_copy(update={"p": 0.0})})
    rows = torch.tensor([draw_band_params(plain, RandomNumbers(0, 0, x, 0), 2) for x in range(20)]).float()
    images = torch.randn(20, 2, 8, 8)
    flips = rows[:, 0] > 0
    expected = torch.where(flips[:, None, None, None], images.flip(-1), images)
    assert torch.equal(augment(images, rows, plain), expected)
    assert 0 < flips.sum() < 20
