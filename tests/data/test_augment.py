"""Colour operations against torchvision's functional transforms, image by image."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as tv

from cl.data import augment, augment_gpu
from cl.data.views import DRAWS, ColourParams, View, draw_colour_params, generator


@pytest.fixture
def images() -> torch.Tensor:
    """Eight random images and gray, black, white and saturated ones, (12, 3, 16, 20) uint8."""
    rng = torch.Generator().manual_seed(0)
    random = torch.randint(0, 256, (8, 3, 16, 20), generator=rng, dtype=torch.uint8)
    flat = torch.tensor([[128] * 3, [0] * 3, [255] * 3, [255, 0, 0]], dtype=torch.uint8)
    return torch.cat([random, flat[:, :, None, None].expand(4, 3, 16, 20)])


def one_by_one(name: str, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """The operation on the CPU, image by image."""
    rows = zip(x, *(p.tolist() for p in parameters), strict=True)
    results = [
        getattr(augment, name)(image.permute(1, 2, 0).contiguous().numpy(), *values)
        for image, *values in rows
    ]
    return torch.stack([torch.from_numpy(result).permute(2, 0, 1) for result in results])


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_each_colour_operation_equals_torchvisions(images, name) -> None:
    x = images.float() / 255
    low, high = (-0.5, 0.5) if name == "hue" else (0.2, 1.8)
    factors = torch.linspace(low, high, len(x))
    theirs = torch.stack(
        [getattr(tv, f"adjust_{name}")(image, float(f)) for image, f in zip(x, factors, strict=True)]
    )
    torch.testing.assert_close(getattr(augment_gpu, name)(x.clone(), factors), theirs, atol=2e-6, rtol=0)
    torch.testing.assert_close(one_by_one(name, x, factors), theirs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("kernel", [3, 9, 23])
def test_blur_equals_torchvisions(images, kernel) -> None:
    x = F.pad(images.float() / 255, (4, 4, 4, 4))
    sigma = torch.linspace(0.1, 2.0, len(x))
    theirs = torch.stack(
        [tv.gaussian_blur(image, [kernel] * 2, [float(s)] * 2) for image, s in zip(x, sigma, strict=True)]
    )
    torch.testing.assert_close(augment_gpu.blur(x, sigma, kernel), theirs, atol=2e-6, rtol=0)
    torch.testing.assert_close(
        one_by_one("blur", x, sigma, torch.full((len(x),), kernel)), theirs, atol=2e-6, rtol=0
    )


def reference(
    image: torch.Tensor, row: np.ndarray, view: View, mean: list[float], std: list[float]
) -> torch.Tensor:
    """One image through torchvision, with the same parameters, taken by position from their row."""
    flip, jitter, *rest = row
    order, factors, gray, sigma, solarize = rest[:4], rest[4:8], rest[8], rest[9], rest[10]
    x = image.float() / 255
    if flip:
        x = tv.hflip(x)
    for operation in view.order:
        if operation == "jitter" and jitter:
            operations = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
            for number in order:
                x = operations[int(number)](x, float(factors[int(number)]))
        if operation == "grayscale" and gray:
            x = tv.rgb_to_grayscale(x, 3)
        if operation == "blur" and sigma:
            x = tv.gaussian_blur(x, [view.blur.kernel] * 2, [float(sigma)] * 2)
        if operation == "solarize" and solarize:
            x = tv.solarize(x, 0.5)
    return tv.normalize(x, mean, std)


@pytest.mark.parametrize(
    "order",
    [
        ["jitter", "grayscale", "blur", "solarize"],
        ["grayscale", "jitter", "blur", "solarize"],  # MoCo v1
        ["jitter", "blur", "grayscale", "solarize"],  # SiMo
    ],
)
def test_the_whole_chain_equals_torchvisions(images, params, order) -> None:
    usual = params.views["random"]
    blur = usual.blur.model_copy(update={"p": 0.5, "kernel": 5})
    busy = usual.model_copy(update={"blur": blur, "solarize": 0.4, "order": order})
    rows = [draw_colour_params(busy, generator(0, 0, sample, 0)) for sample in range(len(images))]
    colour_params = np.array(rows, np.float32)
    assert colour_params.shape == (12, DRAWS)
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
    m, s = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    on_gpu = (augment_gpu.recolour(images / 255, torch.from_numpy(colour_params), busy) - m) / s
    on_cpu = augment.augment(images, torch.from_numpy(colour_params), busy, mean=m, std=s)
    for ours in (on_cpu, on_gpu):
        for image, row, result in zip(images, colour_params, ours, strict=True):
            theirs = reference(image, row, busy, mean, std)
            close = (result - theirs).abs() < 2e-5
            # A pixel on solarize's threshold may fall on either side.
            assert close.float().mean() > 0.999
            if not ColourParams(*row).solarize:
                assert close.all()
