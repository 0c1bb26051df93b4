"""JCL with several keys of an image, beside caiqi/Joint-Contrastive-Learning.

Four keys; three with a rising strength (theirs rises by epoch, ours by step: theirs is given ours); and three
with ShuffleBN on two processes. Their rows of keys are view by view, ours image by image.
"""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from benchmarks.authors.harness.comparison import Training
from benchmarks.authors.harness.experiment import Experiment
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import module_of_file, permutations, stub, without_cuda
from benchmarks.authors.moco import QUEUE, SIZES, TOGETHER, WIDTH, MoCo

SOURCE = Source("caiqi/Joint-Contrastive-Learning", "1cefabb", "moco/moco_unlimit_key_default.py")


class JCL(MoCo):
    """Their MoCoUnlimitedKeysDefault at temperature 0.2; `strength` is their lambda."""

    def __init__(self, folder: Path, ours: Experiment, strength: float, ramp: bool) -> None:
        without_cuda()
        stub("termcolor", colored=str)
        builder = module_of_file(folder / "moco" / "__init__.py", "jcl_moco").MoCoUnlimitedKeysDefault
        self.follow(builder(resnet18, dim=WIDTH, K=QUEUE, m=0.999, T=0.2, mlp=True), ours)
        self.strength, self.ramp = strength, ramp

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        n, keys = len(views[0]), len(views) - 1
        order = ours.method.shuffled(n * keys, "keys 1")
        strength = self.strength * (ours.progress if self.ramp else 1)
        with permutations(torch.arange(n * keys) if order is None else by_view(order, n, keys)):
            logits, labels, covariance = self.model(views[0], torch.cat(views[1:]), strength)
        return cross_entropy(logits, labels) + covariance


def by_view(order: Tensor, n: int, keys: int) -> Tensor:
    """An order of rows that are image by image within each process, for rows that are view by view."""
    process, row = order // (n * keys), order % (n * keys)
    return process * n * keys + row % keys * n + row // keys


OURS = ("method=moco_v2_keys_imagenet", "loss=jcl_imagenet", "method.projector.hidden=[512]", *SIZES)


def training(name: str, keys: int, strength: float, ramp: bool, ours: tuple[str, ...], **options) -> Training:
    changes = (
        f"views.random.count={keys + 1}",
        f"loss.strength={strength}",
        f"loss.ramp={str(ramp).lower()}",
    )
    author = partial(JCL, strength=strength, ramp=ramp)
    sizes = (options.pop("size", 32),) * (keys + 1)
    return Training(name, SOURCE, author, (*OURS, *changes, *ours), sizes, **options)


COMPARISONS = [
    training("jcl", 4, 2.0, False, TOGETHER),
    training("jcl_ramp", 3, 4.0, True, TOGETHER),
    training("jcl_two_processes", 3, 2.0, False, ("bn_group=4",), processes=2, size=64),
]
