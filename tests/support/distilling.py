"""A teacher, and the parameters of a short training with one."""

from pathlib import Path

import torch

from cl.networks import backbones
from cl.networks.backbones import timm
from cl.runtime.tensor_files import save_tensors
from tests.support.resnets import TRANSFORM

SETTINGS = ["method=distill", "optim.batch_size=32", "views.random.size=16", "method.queue=64"]
SETTINGS += ["dataset.resize=16", "dataset.crop=16", "backbone=timm", "backbone.name=test_resnet"]
SETTINGS += ["optim.epochs=1", "optim.warmup_epochs=0", "evaluation=[]", "transfer=[]", "analysis=[]"]
SETTINGS += ["optim.monitor.k=5", "optim.monitor.bank=40", "optim.monitor.queries=20", "baseline=[]"]


def saved(path: Path, scale: float = 1.0) -> Path:
    """An encoder of ours for 16 px."""
    torch.manual_seed(0)
    values = {"kind": "timm", "name": "test_resnet", "size": 16, "pool": None}
    architecture = timm.Config(**values, drop_path=0, checkpointing=False)
    tensors = {
        name: x * scale if x.is_floating_point() else x
        for name, x in backbones.build(architecture).state_dict().items()
    }
    recorded = {"network": architecture.model_dump_json(), "transform": TRANSFORM.model_dump_json()}
    save_tensors(tensors, path, recorded | {"license": "mit"})
    return path
