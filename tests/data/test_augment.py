"""Colour operations against torchvision's functional transforms, image by image."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as tv
import torchvision.transforms.v2.functional as tv2

from cl.data import augment, augment_gpu
from cl.data.views import DRAWS, ColourParams, RandomNumbers, View, draw_colour_params


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


def test_jitter_equals_torchvisions_in_every_order() -> None:
    """On a GPU. The last but one image is gray, and the last stays."""
    orders = list(itertools.permutations(range(4)))
    names = ("brightness", "contrast", "saturation", "hue")
    rng = torch.Generator().manual_seed(0)
    columns = dict.fromkeys(ColourParams._fields, torch.zeros(len(orders) + 2))
    columns |= {name: 0.2 + 1.6 * torch.rand(26, generator=rng) for name in names[:3]}
    columns["hue"] = torch.rand(26, generator=rng) - 0.5
    columns["jitter"] = torch.tensor([1.0] * 25 + [0.0])
    places = torch.tensor([*orders, *orders[:2]]).T
    columns |= dict(zip(("first", "second", "third", "fourth"), places, strict=True))
    x = torch.rand(26, 3, 9, 8, generator=rng)
    x[-2] = 0.4
    rows, ends = augment_gpu.sorted_by_hue(ColourParams(**columns))
    assert ends == [6, 12, 18, 25]
    found = torch.empty_like(x)
    sorted_columns = ColourParams(**{name: column[rows] for name, column in columns.items()})
    found[rows] = augment_gpu.jitter(x[rows], sorted_columns, ends)
    for number, image in enumerate(x[:-1]):
        for name in (names[place] for place in places[:, number]):
            image = getattr(tv, f"adjust_{name}")(image, float(columns[name][number]))
        torch.testing.assert_close(found[number], image, atol=5e-6, rtol=0)
    assert torch.equal(found[-1], x[-1])


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


@pytest.mark.parametrize("size", [(16, 20), (3, 3)])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("posterize", range(1, 9)),
        ("adjust_sharpness", torch.linspace(0.1, 1.9, 12).tolist()),
        ("solarize", torch.linspace(0, 1, 12).tolist()),
        ("autocontrast", [None]),
    ],
)
def test_each_photometric_operation_equals_torchvisions(images, name, values, size) -> None:
    """Low contrast shows what autocontrast does; gray images, that it leaves a channel of one value alone."""
    x = images[:, :, : size[0], : size[1]].float() / 255
    x = torch.cat([x, 0.3 + x / 4])
    chosen = [values[number % len(values)] for number in range(len(x))]
    columns = () if name == "autocontrast" else (torch.tensor(chosen),)
    arguments = [() if value is None else (value,) for value in chosen]
    theirs = torch.stack([getattr(tv2, name)(image, *rest) for image, rest in zip(x, arguments, strict=True)])
    ours = name.removeprefix("adjust_")
    shaped = [c.view(-1, 1, 1, 1) if ours == "solarize" else c for c in columns]
    on_gpu = getattr(augment_gpu, ours)(x.clone(), *shaped)
    torch.testing.assert_close(on_gpu, theirs, atol=2e-6, rtol=0)
    torch.testing.assert_close(one_by_one(ours, x, *columns), theirs, atol=2e-6, rtol=0)


def reference(
    image: torch.Tensor, row: np.ndarray, view: View, mean: list[float], std: list[float]
) -> torch.Tensor:
    """One image through torchvision, with the same parameters, taken by position from their row."""
    flip, jitter, *rest = row
    order, factors, gray, sigma, solarize = rest[:4], rest[4:8], rest[8], rest[9], rest[10]
    photometric, bits, sharpness, threshold = rest[11:]
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
        if operation == "photometric" and photometric:
            x = tv2.posterize(x, int(bits))
            x = tv2.adjust_sharpness(x, float(sharpness))
            x = tv2.autocontrast(tv2.solarize(x, float(threshold)))
    return tv.normalize(x, mean, std)


@pytest.mark.parametrize(
    "order",
    [
        ["jitter", "grayscale", "blur", "solarize"],
        ["grayscale", "jitter", "blur", "solarize"],  # MoCo v1
        ["jitter", "blur", "grayscale", "solarize"],  # SiMo
        ["jitter", "photometric", "grayscale", "blur", "solarize"],  # PIRL
    ],
)
def test_the_whole_chain_equals_torchvisions(images, params, order) -> None:
    usual = params.views["random"]
    blur = usual.blur.model_copy(update={"p": 0.5, "kernel": 5})
    photometric = 0.66 if "photometric" in order else None
    changes = {"blur": blur, "solarize": 0.4, "order": order, "photometric": photometric}
    busy = usual.model_copy(update=changes)
    rows = [draw_colour_params(busy, RandomNumbers(0, 0, sample, 0)) for sample in range(len(images))]
    colour_params = np.array(rows, np.float32)
    assert colour_params.shape == (12, DRAWS)
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
    m, s = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    on_cpu, on_gpu = (
        module.augment(images, torch.from_numpy(colour_params), busy, mean=m, std=s)
        for module in (augment, augment_gpu)
    )
    for ours in (on_cpu, on_gpu):
        for image, row, result in zip(images, colour_params, ours, strict=True):
            theirs = reference(image, row, busy, mean, std)
            close = (result - theirs).abs() < 2e-5
            # A pixel on solarize's threshold, or between two posterized levels, may fall on either side.
            assert close.float().mean() > 0.999
            if not (ColourParams(*row).solarize or ColourParams(*row).photometric):
                assert close.all()


def test_an_image_does_not_depend_on_its_batch(images, params) -> None:
    """Alone, it may need no blur or no jitter, which a batch then leaves out."""
    usual = params.views["random"]
    view = usual.model_copy(update={"blur": usual.blur.model_copy(update={"p": 0.5, "kernel": 5})})
    colour_params = torch.tensor(
        [draw_colour_params(view, RandomNumbers(0, 0, n, 0)) for n in range(12)]
    ).float()
    flags = ColourParams(*colour_params.unbind(1))
    for column in (flags.flip, flags.jitter, flags.grayscale, flags.sigma):
        assert {True, False} == set((column > 0).tolist())
    numbers = {"mean": torch.zeros(3, 1, 1), "std": torch.ones(3, 1, 1)}
    together = augment_gpu.augment(images, colour_params, view, **numbers)
    assert together.is_contiguous(memory_format=torch.channels_last)
    alone = [
        augment_gpu.augment(images[n : n + 1], colour_params[n : n + 1], view, **numbers) for n in range(12)
    ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=0)
