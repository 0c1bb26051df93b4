"""Exported encoders, read by the programs that they are written for."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from cl.runtime.tensor_files import load_tensors


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


def detectron2_network(path: Path, kind: str = "resnet18") -> nn.Module:
    """The file as MODEL.WEIGHTS of detectron2's own network; its last features, pooled."""
    from detectron2.checkpoint import DetectionCheckpointer
    from detectron2.config import get_cfg
    from detectron2.modeling.backbone import build_resnet_backbone

    config = get_cfg()
    settings = {"DEPTH": int(kind[6:]), "STRIDE_IN_1X1": False, "NORM": "BN", "OUT_FEATURES": ["res5"]}
    config.MODEL.RESNETS.update(settings | ({"RES2_OUT_CHANNELS": 64} if kind == "resnet18" else {}))

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = build_resnet_backbone(config, SimpleNamespace(channels=3))

        def forward(self, images: Tensor) -> Tensor:
            return self.network(images)["res5"].mean((2, 3))

    pooled = Pooled().eval()
    DetectionCheckpointer(pooled.network).load(str(path))
    return pooled


READERS: dict[str, Callable[[Path], nn.Module]] = {
    "timm": timm_network,
    "onnx": OnnxNetwork,
    "detectron2": detectron2_network,
}
