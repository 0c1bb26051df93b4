"""Crops made by matrix products against those of the data workers."""

import numpy as np
import pytest
import torch

from cl.data import device_crops
from cl.data.views import View, resize
from tests.support.pictures import photograph

RNG = np.random.default_rng(0)
IMAGES = {
    "noise": RNG.integers(0, 256, (50, 70, 3), dtype=np.uint8),
    "black and white": RNG.integers(0, 2, (96, 96, 3), dtype=np.uint8) * np.uint8(255),
    "smooth": np.asarray(photograph(120, 90)),
}
SIZES = (16, 32, 96, 224)


def boxes_in(height: int, width: int) -> list[tuple[int, int, int, int]]:
    """Random boxes, the whole image, boxes at its edges, and tiny and thin ones."""
    found = [(0, 0, width, height), (width - 5, 0, width, height), (0, height - 3, width, height)]
    found += [(0, 0, 1, 1), (width - 1, height - 1, width, height), (0, 0, 2, 3), (3, 4, 4, height)]
    for _ in range(20):
        w, h = RNG.integers(1, [width + 1, height + 1])
        left, top = RNG.integers(0, [width - w + 1, height - h + 1])
        found.append((int(left), int(top), int(left + w), int(top + h)))
    return found


def together(image: torch.Tensor, boxes: list, size: int, interpolation: str) -> torch.Tensor:
    images = image.expand(len(boxes), *image.shape)
    return device_crops.crop(images, torch.tensor(boxes), size, interpolation)


def by_worker(pixels: np.ndarray, boxes: list, view: View) -> np.ndarray:
    out = np.empty((len(boxes), view.size, view.size, 3), np.uint8)
    for number, box in enumerate(boxes):
        resize(pixels, box, view, out[number : number + 1])
    return out


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", SIZES)
def test_crops_are_those_of_the_workers(params, interpolation: str, size: int) -> None:
    """Up to the rounding of uint8, after each of two passes."""
    view = params.views["random"].model_copy(update={"interpolation": interpolation, "size": size})
    for pixels in IMAGES.values():
        boxes = boxes_in(*pixels.shape[:2])
        expected = by_worker(pixels, boxes, view)
        found = together(torch.from_numpy(pixels.copy()).permute(2, 0, 1), boxes, size, interpolation)
        assert found.dtype == torch.uint8
        difference = np.abs(found.permute(0, 2, 3, 1).numpy().astype(int) - expected)
        assert difference.max() <= 2
        assert difference.mean() < 0.1


def test_the_products_use_all_bits_of_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the precision of training, which stays as it was."""
    seen = []
    product = torch.Tensor.__matmul__

    def watched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return product(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", watched)
    image, box = torch.zeros((1, 3, 8, 8), dtype=torch.uint8), torch.tensor([[0, 0, 8, 8]])
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        device_crops.crop(image, box, 4, "bilinear")
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert seen == [False, False]
