"""Exported encoders, read by the programs that they are written for."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from cl.runtime.tensor_files import load_tensors
from tests.support.resnets import detectron2_network


class OnnxNetwork(nn.Module):
    """An ONNX file, run by ONNX Runtime."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        super().__init__()
        self.session = onnxruntime.InferenceSession(path)

    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(["features"], {"images": images.contiguous().numpy()})[0])


def timm_network(path: Path) -> nn.Module:
    import timm

    network = timm.create_model("resnet18", num_classes=0)
    network.load_state_dict(load_tensors(path)[0])
    return network


READERS: dict[str, Callable[[Path], nn.Module]] = {
    "timm": timm_network,
    "onnx": OnnxNetwork,
    "detectron2": detectron2_network,
}
