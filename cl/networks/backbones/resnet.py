"""torchvision's residual networks without their classifier."""

from collections.abc import Set
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator
from torch import Tensor

from cl.networks.backbones import Backbone, BackboneConfig, Colours, Trait, channels_in_timm
from cl.runtime.base_config import BaseConfig, one_of

Name = Literal["resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
BLOCKS: dict[str, tuple[str, list[int]]] = {  # torchvision's classes, and how many there are in each stage
    "resnet10": ("BasicBlock", [1, 1, 1, 1]),
    "resnet18": ("BasicBlock", [2, 2, 2, 2]),
    "resnet34": ("BasicBlock", [3, 4, 6, 3]),
    "resnet50": ("Bottleneck", [3, 4, 6, 3]),
    "resnet101": ("Bottleneck", [3, 4, 23, 3]),
    "resnet152": ("Bottleneck", [3, 8, 36, 3]),
}
PUBLISHED = [name for name in BLOCKS if name != "resnet10"]
WIDTHS = (0.125, 0.25, 0.5, 1, 2, 4)


def _width(found: Any) -> float:
    if found not in WIDTHS:
        raise ValueError(f"found {found}, expected {one_of([str(width) for width in WIDTHS])}")
    return WIDTHS[WIDTHS.index(found)]  # 1.0 becomes 1, as encoder files and messages write it


class Streams(BaseConfig):
    """Two networks instead of one, for the lightness and for the colour of an image (CMC).

    space: the colour space; its first channel is the lightness, the other two are the colour.
    mean, std: of the data set's RGB in [0, 1]; images are normalised with them.
    """

    space: Literal["lab", "ycbcr"]
    mean: Colours
    std: Colours


class Config(BackboneConfig):
    """A residual network.

    width: of every layer, relative to torchvision's; 1 has 64 channels after the stem.
    stem: small is for images of 32 to 96 pixels: a 3x3 convolution of stride 1, without pooling.
    cosine_stem: whether the first layer is not trained: its weights are the patterns of a cosine transform.
    streams: two networks, for lightness and colour; null for one network, which sees RGB.
    """

    kind: Literal["resnet"]
    name: Name  # all but resnet10 are torchvision's
    width: Annotated[int | float, BeforeValidator(_width)]
    stem: Literal["imagenet", "small"]
    zero_init_residual: bool
    cosine_stem: bool = False
    streams: Streams | None = None

    @property
    def architecture(self) -> str:
        return f"{self.name} of width {self.width} with {self.stem} stem"

    @property
    def is_published(self) -> bool:
        """Whether torchvision, timm and detectron2 have this network."""
        usual = (self.width, self.stem, self.streams) == (1, "imagenet", None)
        return usual and self.name in PUBLISHED

    @property
    def gives(self) -> Set[Trait]:
        if self.streams:
            return {"two networks"}
        if not self.is_published:
            return {"one network", "residual stages"}
        return {"one network", "residual stages", "in detectron2"}

    def in_timm(self) -> tuple[str, dict[str, Any]]:
        if not self.is_published:
            raise ValueError(
                f"timm does not know the {self.title}{' and two streams' if self.streams else ''}; choose "
                f"{'' if self.streams else 'torchvision or '}onnx"
            )
        return self.name, channels_in_timm(self)


def build(config: Config) -> Backbone:
    """The network, or both side by side if there are streams."""
    from cl.networks.resnet import CHANNELS, Network, TwoStreams  # late: torchvision takes seconds to import

    if not (streams := config.streams):
        return cast("Backbone", Network(config, *BLOCKS[config.name], config.channels))
    networks = [cast("Backbone", Network(config, *BLOCKS[config.name], channels)) for channels in CHANNELS]
    return TwoStreams(networks, streams.space, streams.mean, streams.std)


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
