"""detectron2's names of the tensors of torchvision's residual networks."""

from torch import Tensor


def in_detectron2(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A torchvision backbone's tensors under detectron2's names, without tensors that detectron2 lacks."""
    return {_name(name): value for name, value in tensors.items() if not name.endswith("num_batches_tracked")}


def _name(name: str) -> str:
    name = name.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")
    for number in (1, 2, 3):
        name = name.replace(f"bn{number}.", f"conv{number}.norm.")
    for number in (1, 2, 3, 4):
        name = name.replace(f"layer{number}.", f"res{number + 1}.")
    return name if name.startswith("res") else f"stem.{name}"
