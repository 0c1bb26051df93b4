"""Fast-MoCo with pairs and triples of patches, beside orashi/Fast-MoCo; pairs on two processes too.

With its two learning rates, and its clipping of gradients. Their target starts from other random weights than
the encoder, ours from the same: theirs is given ours. Their warm-up reaches the full rate one step earlier:
theirs is given our rate.
"""

import copy
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import STEPS, Experiment
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import module_from, stub, synchronise, without_cuda
from cl.runtime.distributed import rank, ranks

SOURCE = Source("orashi/Fast-MoCo", "d4fef97", "core/utils/fastmoco_builder.py")


class FastMoCo(Author):
    """Their FastMoCo, InfoNCE, and SGD with two learning rates."""

    def __init__(self, folder: Path, ours: Experiment, patches: int, temperature: float) -> None:
        without_cuda()
        os.environ |= {"SLURM_PROCID": str(rank()), "SLURM_NTASKS": str(ranks())}
        stub("easydict", EasyDict=dict)
        missing = stub("core.loss_functions.debug")  # imported there, but not in the repository
        missing.InfoNCE_ilsp_sep_plus_combs_clean = None
        nn.BatchNorm2d._check_input_dim = lambda self, x: None  # for (N, C) too
        network = module_from(folder, "core.model.resnet_official").resnet18_official
        builder = module_from(folder, "core.utils.fastmoco_builder").FastMoCo
        norm = SimpleNamespace(use_sync_bn=False, kwargs={})
        networks = [network(num_classes=64, bn=norm) for _ in range(2)]
        heads = {
            "projector": {"hidden_dim": 48, "out_dim": 32},
            "predictor": {"in_dim": 32, "hidden_dim": 16, "out_dim": 32},
        }
        self.model = builder(
            networks[0], norm, **heads, ema=True, m=0.99, backbone_ema=networks[1], combs=patches
        ).double()
        if ranks() > 1:
            synchronise([self.model])
        self.online, self.heads = [self.model.encoder], [self.model.predictor]
        self.target = [self.model.encoder_ema]
        self.criterion = module_from(folder, "core.loss_functions.infoNCE").InfoNCE(temperature)
        groups = [{"params": list(part.parameters())} for part in (self.model.encoder, self.model.predictor)]
        self.optimizer = torch.optim.SGD(groups, LR, momentum=0.9, weight_decay=1e-4)

    def set_lr(self, ours: Experiment) -> None:
        self.optimizer.param_groups[0]["lr"] = ours.lr()

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        return self.criterion(*self.model(torch.cat(views, 1)))

    def clip(self) -> None:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, 1)

    def moved_target(self, ours: Experiment) -> list[nn.Module]:
        moved = copy.deepcopy(self.model)
        moved._momentum_update_target_encoder()
        return [moved.encoder_ema]


LR = 0.1
OURS = (
    *("recipe=fast_moco/table1", "dataset=photos", "views=small", "backbone=resnet18", "precision=fp32"),
    *("evaluation=[]", "optim.batch_size=8", f"optim.epochs={STEPS}", f"optim.base_lr={LR}"),
    *("optim.reference_batch=8", "optim.scaling=none", "optim.warmup_epochs=1"),
    *("method.projector.hidden=[48,48]", "method.projector.out=32"),
    *("method.predictor.hidden=[16]", "method.predictor.out=32"),
)
TRIPLES = (*OURS, "patches.choose=3", "temperature=0.5")


def training(
    name: str, ours: tuple[str, ...], patches: int, temperature: float, processes: int = 1
) -> Training:
    author = partial(FastMoCo, patches=patches, temperature=temperature)
    return Training(name, SOURCE, author, ours, processes=processes, steps_per_epoch=1)


COMPARISONS = [
    training("fast_moco", OURS, 2, 1.0),
    training("fast_moco_triples", TRIPLES, 3, 0.5),
    training("fast_moco_two_processes", OURS, 2, 1.0, processes=2),
]
