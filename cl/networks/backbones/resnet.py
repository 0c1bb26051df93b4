"""torchvision's residual networks without their classifier."""

from typing import TYPE_CHECKING, Any, Literal, cast

from torch import nn

from cl.networks import patches
from cl.networks.backbones import Backbone, BackboneConfig
from cl.networks.layers import check_blocks
from cl.runtime.base_config import BaseConfig

if TYPE_CHECKING:
    from cl.config import Params

Name = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]


class Streams(BaseConfig):
    """Two networks instead of one, for the lightness and for the colour of an image (CMC).

    space: of the first channel and the other two; L and ab, or Y and CbCr.
    mean, std: of the data set's RGB in [0, 1], with which images arrive normalised.
    """

    space: Literal["lab", "ycbcr"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def check(self, params: "Params") -> None:
        """Check that the networks see the colours that they are made for, and are not taken apart.

        Raises:
            ValueError: the data set is normalised otherwise, or something needs a single network.
        """
        for name in ("mean", "std"):
            found, expected = getattr(self, name), getattr(params.dataset, name)
            if found != expected:
                raise ValueError(
                    f"backbone.streams.{name}={list(found)} must be dataset.{name}={list(expected)}, with "
                    "which images are normalised; choose the same"
                )
        reasons = {f"transfers.{name} builds a detector on": "transfer=[]" for name in params.transfers}
        if params.init:
            reasons[f"init={params.init.name} has weights of"] = "init=null"
        if (stage := getattr(params.patches, "stage", None)) in patches.STITCHED:
            reasons[f"patches.stage={stage} runs a part of"] = "patches.stage=final"
        if reasons:
            reason, remedy = next(iter(reasons.items()))
            raise ValueError(
                f"{reason} one network for RGB, but backbone.streams makes two; choose {remedy}, or a "
                "backbone without streams"
            )


class Config(BackboneConfig):
    """A network. `stem: small`, for images of 32 to 96 pixels: a 3x3 convolution of stride 1, no pooling.

    streams: two such networks; null for one, which sees RGB.
    """

    kind: Literal["resnet"]
    name: Name
    width: Literal[1, 2, 4]
    stem: Literal["imagenet", "small"]
    zero_init_residual: bool
    streams: Streams | None = None

    @property
    def architecture(self) -> str:
        return f"{self.name} of width {self.width} with {self.stem} stem"

    def in_timm(self) -> tuple[str, dict[str, Any]]:
        if self.streams or (self.width, self.stem) != (1, "imagenet"):
            raise ValueError(
                f"timm does not know the {self.title}{' and two streams' if self.streams else ''}; choose "
                f"{'onnx' if self.streams else 'torchvision, hub or onnx'}"
            )
        return self.name, {}

    def check(self, params: "Params") -> None:
        """Raises ValueError if something needs a single network, or one that detectron2 has."""
        if self.streams:
            self.streams.check(params)
        check_blocks(nn.Module(), params.evaluations)  # a network without class tokens
        for name, transfer in params.transfers.items():
            if transfer.engine == "detectron2" and (self.width, self.stem) != (1, "imagenet"):
                raise ValueError(
                    f"transfers.{name}.engine=detectron2 takes backbone.stem=imagenet and backbone.width=1, "
                    f"found {self.stem} and {self.width}; choose engine=torchvision or backbone=resnet50"
                )


def build(config: Config) -> Backbone:
    """The network, or both side by side if there are streams."""
    from cl.networks.resnet import Network  # late: torchvision takes seconds to import

    if config.streams:
        from cl.networks.two_streams import TwoStreams

        return TwoStreams(config)
    network = Network(config.name, config.width, config.stem, zero_init_residual=config.zero_init_residual)
    return cast("Backbone", network)
