"""Exports of the backbone to other programs' formats."""

import copy
import json
import math
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch

from cl.data.transform import Transform
from cl.networks.backbones import RGB, Backbone, BackboneConfig
from cl.networks.backbones.resnet import in_detectron2
from cl.runtime.files import PARTIAL, finished
from cl.runtime.tensor_files import save_tensors

WEIGHTS, DESCRIPTION = "model.safetensors", "config.json"  # names of timm


def write(network: Backbone, format: str, path: Path, size: int, metadata: dict[str, str]) -> None:
    """Write the network, without a classifier, to a file.

    torchvision: safetensors, with the metadata.
    detectron2: a pickled dictionary for a ResNet's MODEL.WEIGHTS. Set INPUT.FORMAT to RGB,
        RESNETS.STRIDE_IN_1X1 to False, and PIXEL_MEAN and PIXEL_STD to the RGB values times 255.
    onnx: maps images (N, C, size, size) to features (N, D), for any N; bands are standardised before.
    """
    with finished(path) as partial:
        match format:
            case "torchvision":
                save_tensors(network.state_dict(), partial, metadata)
            case "detectron2":
                tensors = {x: tensor.numpy() for x, tensor in in_detectron2(network.state_dict()).items()}
                content = {"model": tensors, "__author__": "cl", "matching_heuristics": True}
                partial.write_bytes(pickle.dumps(content))
            case "onnx":
                _write_onnx(network, partial, size)


def check_network(config: BackboneConfig, format: str) -> None:
    """Raises ValueError if the format does not support this network."""
    if format not in ("torchvision", "detectron2"):
        return
    if "residual stages" not in config.gives:
        raise ValueError(f"{format} supports only kind=resnet without streams; choose onnx")
    if format == "detectron2" and config.channels != RGB:
        raise ValueError(f"detectron2 reads RGB, not {config.channels} bands; choose onnx")
    if format == "detectron2" and "in detectron2" not in config.gives:
        raise ValueError(
            "detectron2's ResNet needs a 7x7 stem, 64 channels and 2 blocks per stage; choose onnx"
        )


def write_folder(
    network: Backbone, folder: Path, description: dict[str, Any], metadata: dict[str, str]
) -> None:
    """Write a folder for `timm.create_model("local-dir:<folder>", pretrained=True)`.

    After a kill, the same call completes it. The description is written last, so it never belongs to other
    weights.
    """
    found = [*folder.glob("*")]
    if others := [path.name for path in found if not path.name.startswith((WEIGHTS, DESCRIPTION))]:
        raise ValueError(f"{folder} has other files, for example {min(others)}; give --to a new folder")
    for path in found:
        if path.name.endswith(PARTIAL):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / DESCRIPTION).unlink(missing_ok=True)
    save_tensors(network.state_dict(), folder / WEIGHTS, metadata)
    with finished(folder / DESCRIPTION) as partial:
        partial.write_text(json.dumps(description, indent=2))


def describe(config: BackboneConfig, features: int, transform: Transform) -> dict[str, Any]:
    """The content of timm's config.json, from which timm builds the network and its transform."""
    name, arguments = config.in_timm()
    channels = transform.channels  # bands are standardised before
    mean, std = ([0.0] * channels, [1.0] * channels) if transform.bands else (transform.mean, transform.std)
    return {
        "architecture": name,
        "num_classes": 0,
        "num_features": features,
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [channels, transform.crop, transform.crop],
            "num_classes": 0,
            "interpolation": "bilinear",
            "crop_pct": crop_share(transform.crop, transform.resize),
            "crop_mode": "center",
            "mean": list(mean),
            "std": list(std),
        },
    }


def crop_share(crop: int, resize: int) -> float:
    """The largest crop_pct from which timm gets `resize` as floor(crop / crop_pct) in spite of rounding."""
    share = crop / resize
    while math.floor(crop / share) < resize:
        share = math.nextafter(share, 0)
    return share


def _write_onnx(network: Backbone, path: Path, size: int) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"ONNX needs packages that are not installed ({error}): pip install onnx onnxscript"
        ) from error
    network = copy.deepcopy(network).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    images = torch.zeros(2, network.image_channels, size, size)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # from torch's own code
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
