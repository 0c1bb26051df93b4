"""DCL and DCLW in training, beside raminnakhli/Decoupled-Contrastive-Learning and lightly.

raminnakhli's adds both directions, lightly's takes their mean: a factor of 2. lightly detaches DCLW's
weights, which is the default here too; raminnakhli's does not, and eq. 6 of the paper has no stop-gradient.
"""

from pathlib import Path
from typing import Any

import torch.nn.functional as F

from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import module_from, module_of_file
from benchmarks.authors.simclr import LIGHTLY, SIZES, TEMPERATURE, training
from cl.runtime.distributed import ranks

RAMINNAKHLI = Source("raminnakhli/Decoupled-Contrastive-Learning", "0b9b76d", "loss/dcl.py")


def lightly_dcl(folder: Path) -> Any:
    module = module_from(folder, "lightly.loss")
    return module.DCLLoss(TEMPERATURE, gather_distributed=ranks() > 1)


def lightly_dclw(folder: Path) -> Any:
    return module_from(folder, "lightly.loss").DCLWLoss(TEMPERATURE, 0.5)


def dcl(folder: Path) -> Any:
    return both_ways(module_of_file(folder / RAMINNAKHLI.file).DCL(TEMPERATURE))


def dclw(folder: Path) -> Any:
    return both_ways(module_of_file(folder / RAMINNAKHLI.file).DCLW(0.5, TEMPERATURE))


def both_ways(criterion: Any) -> Any:
    """The sum over both directions, of unit rows, as in their training loop."""

    def loss(a, b):
        a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
        return criterion(a, b) + criterion(b, a)

    return loss


DCL = ("method=simclr", "loss=dcl", *SIZES)
DCLW = ("method=simclr", "loss=dclw", *SIZES)

COMPARISONS = [
    training("dcl", RAMINNAKHLI, dcl, (*DCL, "method.scale=2.0")),
    training("dcl_lightly", LIGHTLY, lightly_dcl, DCL),
    training("dcl_lightly_two_processes", LIGHTLY, lightly_dcl, DCL, processes=2),
    training("dclw", RAMINNAKHLI, dclw, (*DCLW, "method.scale=2.0", "loss.detach_weight=false")),
    training("dclw_lightly", LIGHTLY, lightly_dclw, (*DCLW, "loss.detach_weight=true")),
]
