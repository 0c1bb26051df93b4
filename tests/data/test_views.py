"""Crops and colour operations against torchvision's functional transforms, image by image."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as tv
import torchvision.transforms.v2.functional as tv2
from PIL import Image as Picture

from cl.data import augment
from cl.data import augment_gpu as colour
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.views import DRAWS, View, centre, draw_colour_params, generator, random_crop_box, resize
from cl.pretraining import view_sheet
from tests.support.project import compose


@pytest.fixture
def images() -> torch.Tensor:
    """Eight random images and gray, black, white and saturated ones, (12, 3, 16, 20) uint8."""
    rng = torch.Generator().manual_seed(0)
    random = torch.randint(0, 256, (8, 3, 16, 20), generator=rng, dtype=torch.uint8)
    flat = torch.tensor([[128] * 3, [0] * 3, [255] * 3, [255, 0, 0]], dtype=torch.uint8)
    return torch.cat([random, flat[:, :, None, None].expand(4, 3, 16, 20)])


NOISE = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)


def resized(pixels: np.ndarray, box: tuple[int, int, int, int], view: View) -> np.ndarray:
    out = np.empty((1, view.size, view.size, 3), np.uint8)
    resize(pixels, box, view, out)
    return out[0]


def chw(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crop_equals_torchvision_on_the_same_box(params, interpolation) -> None:
    """Bit for bit torchvision's on tensors; Pillow's within a level of 256, but for where bicubic overshoots on noise."""
    mode = tv.InterpolationMode(interpolation)
    view = params.views["random"].model_copy(update={"interpolation": interpolation})
    for sample in range(20):
        left, top, right, bottom = found = random_crop_box(NOISE, view.area, generator(0, 0, sample, 0))
        ours = resized(NOISE, found, view)
        where = (top, left, bottom - top, right - left, [32, 32], mode)
        assert np.array_equal(
            ours, tv2.resized_crop(chw(NOISE), *where, antialias=True).permute(1, 2, 0).numpy()
        )
        pillow = np.asarray(tv.resized_crop(Picture.fromarray(NOISE), *where))
        difference = np.abs(ours.astype(int) - pillow)
        assert difference.mean() < 0.5
        assert difference.max() <= 1 or interpolation == "bicubic"


def test_a_stream_is_its_own_whatever_came_before() -> None:
    for place in ((7, 0, 3, 1), (7, 2, 3, 1), (8, 0, 0, 0), (7, 0, 3, 1)):
        fresh = np.random.Generator(np.random.Philox(key=place[0], counter=[0, *place[1:]]))
        stream = generator(*place)
        stream.integers(0, 9, dtype=np.uint32)  # leaves half a number behind
        fresh.integers(0, 9, dtype=np.uint32)
        assert np.array_equal(stream.random(5), fresh.random(5))


def test_boxes_have_the_stated_area_and_ratio() -> None:
    picture = np.empty((300, 400, 3), np.uint8)
    boxes = np.array(
        [random_crop_box(picture, (0.2, 1.0), generator(1, 0, sample, 0)) for sample in range(2000)]
    )
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2] <= 400).all()
    assert (boxes[:, 3] <= 300).all()
    assert (width * height / 120_000).min() > 0.19
    assert (width * height / 120_000).max() <= 1
    assert 0.74 < (width / height).min() < 0.78
    assert 1.28 < (width / height).max() < 1.35


def test_an_extreme_picture_falls_back_to_its_centre() -> None:
    assert random_crop_box(np.empty((10, 1000, 3), np.uint8), (0.9, 1.0), generator(0, 0, 0, 0)) == (
        493,
        0,
        506,
        10,
    )


def test_centre_is_torchvisions_evaluation_transform() -> None:
    ours = centre(NOISE, 40, 32)
    assert np.array_equal(
        ours, tv2.center_crop(tv2.resize(chw(NOISE), [40], antialias=True), [32]).permute(1, 2, 0).numpy()
    )
    pillow = tv.center_crop(tv.resize(Picture.fromarray(NOISE), 40, tv.InterpolationMode.BILINEAR), 32)
    assert np.abs(ours.astype(int) - np.asarray(pillow)).max() <= 1


def one_by_one(name: str, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """The operation of the CPU's path on each image."""
    rows = zip(x, *(p.tolist() for p in parameters), strict=True)
    results = [
        getattr(augment, name)(image.permute(1, 2, 0).contiguous().numpy(), *values)
        for image, *values in rows
    ]
    return torch.stack([chw(result) for result in results])


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_each_colour_operation_equals_torchvisions(images, name) -> None:
    x = images.float() / 255
    low, high = (-0.5, 0.5) if name == "hue" else (0.2, 1.8)
    factors = torch.linspace(low, high, len(x))
    theirs = torch.stack(
        [getattr(tv, f"adjust_{name}")(image, float(f)) for image, f in zip(x, factors, strict=True)]
    )
    torch.testing.assert_close(getattr(colour, name)(x.clone(), factors), theirs, atol=2e-6, rtol=0)
    torch.testing.assert_close(one_by_one(name, x, factors), theirs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("kernel", [3, 9, 23])
def test_blur_equals_torchvisions(images, kernel) -> None:
    x = F.pad(images.float() / 255, (4, 4, 4, 4))
    sigma = torch.linspace(0.1, 2.0, len(x))
    theirs = torch.stack(
        [tv.gaussian_blur(image, [kernel] * 2, [float(s)] * 2) for image, s in zip(x, sigma, strict=True)]
    )
    torch.testing.assert_close(colour.blur(x, sigma, kernel), theirs, atol=2e-6, rtol=0)
    torch.testing.assert_close(
        one_by_one("blur", x, sigma, torch.full((len(x),), kernel)), theirs, atol=2e-6, rtol=0
    )


def reference(
    image: torch.Tensor, colour_params: np.ndarray, view: View, mean: list[float], std: list[float]
) -> torch.Tensor:
    """One image through torchvision, with the parameters that were colour_params."""
    flip, jitter, *rest = colour_params
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
    busy = params.views["random"].model_copy(
        update={
            "blur": params.views["random"].blur.model_copy(update={"p": 0.5, "kernel": 5}),
            "solarize": 0.4,
            "order": order,
        }
    )
    colour_params = np.array(
        [draw_colour_params(busy, generator(0, 0, sample, 0)) for sample in range(len(images))], np.float32
    )
    assert colour_params.shape == (12, DRAWS)
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
    m, s = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    batched = (colour.recolour(images / 255, torch.from_numpy(colour_params), busy) - m) / s  # a GPU's path
    for ours in (augment.augment(images, torch.from_numpy(colour_params), busy, mean=m, std=s), batched):
        for image, row, result in zip(images, colour_params, ours, strict=True):
            theirs = reference(image, row, busy, mean, std)
            close = (result - theirs).abs() < 2e-5
            # A pixel on the threshold of solarise may fall on either side.
            assert close.float().mean() > 0.999
            if not row[-1]:
                assert close.all()


STRONG, MILD, ALWAYS = (0.8, 0.8, 0.8, 0.8, 0.2), (0.8, 0.4, 0.4, 0.4, 0.1), (1.0, 0.4, 0.4, 0.4, 0.4)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [  # name of views: for each kind count, size, smallest area, largest, interpolation, flip, jitter, gray, blur, solarise
        ("mocov1", [(2, 224, 0.2, 1, "bilinear", 0.5, ALWAYS, 0.2, 0, 0)]),
        ("mocov2", [(2, 224, 0.2, 1, "bilinear", 0.5, MILD, 0.2, 0.5, 0)]),
        ("mocov2_bicubic", [(2, 224, 0.2, 1, "bicubic", 0.5, MILD, 0.2, 0.5, 0)]),
        ("simclr", [(2, 224, 0.08, 1, "bilinear", 0.5, STRONG, 0.2, 0.5, 0)]),
        ("simclr_bicubic", [(2, 224, 0.08, 1, "bicubic", 0.5, STRONG, 0.2, 0.5, 0)]),
        ("simclr_cifar", [(2, 32, 0.08, 1, "bilinear", 0.5, MILD, 0.2, 0, 0)]),
        (
            "byol",
            [
                (1, 224, 0.08, 1, "bicubic", 0.5, (0.8, 0.4, 0.4, 0.2, 0.1), 0.2, 1, 0),
                (1, 224, 0.08, 1, "bicubic", 0.5, (0.8, 0.4, 0.4, 0.2, 0.1), 0.2, 0.1, 0.2),
            ],
        ),
        (
            "mocov3_r50",
            [
                (1, 224, 0.2, 1, "bilinear", 0.5, (0.8, 0.4, 0.4, 0.2, 0.1), 0.2, 1, 0),
                (1, 224, 0.2, 1, "bilinear", 0.5, (0.8, 0.4, 0.4, 0.2, 0.1), 0.2, 0.1, 0.2),
            ],
        ),
        (
            "swav_multicrop",
            [
                (2, 224, 0.14, 1, "bilinear", 0.5, STRONG, 0.2, 0.5, 0),
                (6, 96, 0.05, 0.14, "bilinear", 0.5, STRONG, 0.2, 0.5, 0),
            ],
        ),
        ("cld_small", [(2, 32, 0.2, 1, "bilinear", 0.5, ALWAYS, 0.2, 0, 0)]),
        ("cld_small_96", [(2, 96, 0.2, 1, "bilinear", 0.5, ALWAYS, 0.2, 0, 0)]),
        ("npid_cifar", [(2, 32, 0.2, 1, "bilinear", 0, ALWAYS, 0.2, 0, 0)]),
    ],
)
def test_recipes_are_the_authors(name, kinds, tmp_path) -> None:
    views = [View(**view) for view in compose(tmp_path, f"views={name}")["views"].values()]
    for view, kind in zip(views, kinds, strict=True):
        jitter = tuple(view.jitter.model_dump().values())
        found = (view.count, view.size, *view.area, view.interpolation, view.flip, jitter, view.grayscale)
        assert (*found, view.blur.p, view.solarize) == kind
        assert view.blur.sigma == (0.1, 2.0)
        assert view.order == (["grayscale", "jitter"] if name == "mocov1" else ["jitter", "grayscale"]) + [
            "blur",
            "solarize",
        ]


def test_drawn_flags_have_the_stated_probabilities(params) -> None:
    colour_params = np.array(
        [draw_colour_params(params.views["random"], generator(5, 0, sample, 1)) for sample in range(4000)]
    )
    for column, p in ((0, 0.5), (1, 0.8), (10, 0.2), (11, 0.0), (12, 0.0)):
        assert colour_params[:, column].mean() == pytest.approx(p, abs=0.03)
    assert colour_params[:, 6:9].min() >= 0.6
    assert colour_params[:, 6:9].max() <= 1.4
    assert np.abs(colour_params[:, 9]).max() <= 0.1
    orders, counts = np.unique(colour_params[:, 2:6], axis=0, return_counts=True)
    assert (np.sort(orders, 1) == np.arange(4)).all()
    assert len(orders) == 24
    assert ((counts - 4000 / 24) ** 2 / (4000 / 24)).sum() < 50  # chi squared of 23 degrees


def test_the_sheet_shows_images_beside_their_views(shard_folder, params, tmp_path) -> None:
    """Without any change of colour a view of the whole image is the image."""
    still = params.views["random"].model_copy(
        update={
            "area": (1.0, 1.0),
            "flip": 0.0,
            "jitter": params.views["random"].jitter.model_copy(update={"p": 0.0}),
            "grayscale": 0,
        }
    )
    reader = Reader(shard_folder, "train")
    view_sheet.draw(
        params.dataset, TrainSet(reader, [still], Plan(len(reader), 40, 0)), tmp_path / "views.png"
    )
    sheet = np.asarray(Picture.open(tmp_path / "views.png")).astype(int)
    assert sheet.shape == (8 * 68 - 4, 3 * 68 + 4, 3)
    for row, position in enumerate(Plan(len(reader), 40, 0).step(0)[1][:8]):
        picture = reader.pixels(int(position))
        small = resized(picture, (0, 0, picture.shape[1], picture.shape[0]), still)
        tiles = [sheet[68 * row : 68 * row + 64, x : x + 64] for x in (0, 72, 140)]
        for tile, shown in zip(tiles, (picture, small, small), strict=True):
            assert np.abs(tile - centre(shown, 64, 64)).max() <= 1
