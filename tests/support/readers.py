"""Exported encoders, read by the programs that they are written for."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.support.resnets import detectron2_network


class OnnxNetwork(nn.Module):
    """An ONNX file, run by ONNX Runtime."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        super().__init__()
        self.session = onnxruntime.InferenceSession(path)

    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(["features"], {"images": images.contiguous().numpy()})[0])


def timm_network(folder: Path) -> nn.Module:
    import timm

    return timm.create_model(f"local-dir:{folder}", pretrained=True)


READERS: dict[str, Callable[[Path], nn.Module]] = {
    "timm": timm_network,
    "onnx": OnnxNetwork,
    "detectron2": detectron2_network,
}
