"""Exports of the backbone to the formats of other programs."""

import copy
import pickle
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torchvision.models.resnet import ResNet

from cl.detection.engines._detectron2_settings import names
from cl.networks.two_streams import TwoStreams
from cl.runtime.tensor_files import save_tensors

if TYPE_CHECKING:
    from cl.networks.backbones import Backbone
    from cl.networks.resnet import Network

SUFFIXES = {"torchvision": "safetensors", "timm": "safetensors", "detectron2": "pkl", "onnx": "onnx"}


def write(network: "Backbone", format: str, path: Path, size: int, metadata: dict[str, str]) -> None:
    """Write the network, without a classifier, to a file.

    torchvision, timm: safetensors; both use the same names for these networks; timm needs num_classes=0.
    detectron2: a pickled dictionary for MODEL.WEIGHTS of a ResNet. Set INPUT.FORMAT to RGB,
        RESNETS.STRIDE_IN_1X1 to False, and PIXEL_MEAN and PIXEL_STD to the RGB values times 255.
    onnx: maps images (N, 3, size, size) to features (N, D), for any N.

    Args:
        metadata: stored in safetensors files only.

    Raises:
        ValueError: the format cannot hold this network, or a package for it is not installed.
    """
    if format == "timm" and isinstance(network, TwoStreams):
        raise ValueError("timm does not know a backbone with streams, which is two networks; choose onnx")
    if format in ("torchvision", "detectron2") and not isinstance(network, ResNet):
        raise ValueError(
            f"{format} takes residual networks of one stream, and this backbone is none; choose onnx"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        match format:
            case "torchvision" | "timm":
                save_tensors(network.state_dict(), partial, metadata)
            case "detectron2":
                _write_detectron2(network, partial)
            case "onnx":
                _write_onnx(network, partial, size)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_detectron2(network: "Backbone", path: Path) -> None:
    network = cast("Network", network)
    if network.width > 1 or network.conv1.kernel_size != (7, 7):
        raise ValueError(
            f"this backbone has a {network.conv1.kernel_size[0]}x{network.conv1.kernel_size[1]} stem and "
            f"{network.conv1.out_channels} channels; detectron2's ResNet needs a 7x7 stem and 64 channels"
        )
    tensors = {name: value.numpy() for name, value in names(network.state_dict()).items()}
    with path.open("wb") as file:
        pickle.dump({"model": tensors, "__author__": "cl", "matching_heuristics": True}, file)


def _write_onnx(network: "Backbone", path: Path, size: int) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"ONNX needs packages that are not installed ({error}): pip install onnx onnxscript"
        ) from error
    network = copy.deepcopy(network).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    images = torch.zeros(2, 3, size, size)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # by torch's own code
        program = torch.onnx.export(
            network,
            (images,),
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.save(path, external_data=False)
