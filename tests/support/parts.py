"""What several processes compute with each building block alone."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from cl.networks.batch_norm import GroupBatchNorm, update_running_stats
from cl.objective.terms import TwoViews
from cl.runtime.distributed import gather, global_rows, local_part, mean_over_ranks, permute, rank, ranks
from cl.runtime.registry import module_of
from cl.training import loop
from cl.training.loop import StopSync
from tests.support.methods import HERE, loss_config

IMAGES = 24
# Images of a group of batch norm: all, 8, 2. With 12 images on each of two processes, a group of 8 is on one
# or spans both.
GROUPS = (1, 3, 12)


def building_blocks() -> dict[str, Tensor]:
    """Each building block alone, with its gradient, on this process's rows."""
    x = torch.arange(48, dtype=torch.float64).sin().view(IMAGES, 2)
    mine = local_part(x).clone().requires_grad_()
    gather(mine).pow(3).sum().backward()
    found = {
        "gather": gather(mine.detach()),
        "rows": gather(global_rows(len(mine))),
        "gather gradient": gather(mine.grad),
    }
    order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(0))
    found["another order"] = gather(permute(mine.detach(), order))
    found["back"] = gather(permute(permute(mine.detach(), order), order.argsort()))
    mine.grad = None
    mean_over_ranks(mine.mean(0)).pow(3).sum().backward()
    found |= {"mean": mean_over_ranks(mine.detach().mean(0)), "mean gradient": gather(mine.grad)}
    for kind in ("barlow_twins", "vicreg"):
        rows = local_part(x).clone().requires_grad_()
        value = module_of("losses", kind).loss(TwoViews(rows, rows.square()), loss_config(kind), 0.0)
        value.backward()
        found |= {kind: mean_over_ranks(value.detach()), f"{kind}: gradient": gather(rows.grad)}
    for groups in GROUPS:
        for affine in (True, False):
            torch.manual_seed(0)
            plain = nn.BatchNorm2d(2, affine=affine).double()
            norm = GroupBatchNorm(plain, groups)
            if affine:
                nn.init.uniform_(norm.weight), nn.init.uniform_(norm.bias)
            images = local_part(torch.randn(IMAGES, 2, 3, 3, dtype=torch.float64)).requires_grad_()
            y = norm(images)
            (y.pow(3) * local_part(torch.arange(IMAGES)).view(-1, 1, 1, 1)).mean().backward()
            update_running_stats(norm)
            name = f"batch norm of {groups}, affine={affine}"
            found |= {f"{name}: y": gather(y.detach()), f"{name}: gradient": gather(images.grad)}
            found |= {f"{name}: {key}": value for key, value in norm.state_dict().items()}
            if affine:
                found |= {
                    f"{name}: {key}'": mean_over_ranks(value.grad) for key, value in norm.named_parameters()
                }
    return found | unequal()


def requests() -> dict[str, Tensor]:
    """The steps, of twelve, at which each rank hears what the last one asks for from the third step on."""
    found = {}
    for name, seconds in (("fast steps", 0.0), ("slow steps", 2 * loop.ASK_SECONDS)):
        asking, heard = StopSync(0, replace(HERE, read_every=4)), torch.zeros(12, dtype=torch.bool)
        for step in range(12):
            asking.since -= seconds * (step + 1 - asking.asked)
            signals = [15] if rank() == ranks() - 1 and step >= 2 else []
            heard[step] = asking.agree(step + 1, signals)[0]
        found[name] = gather(heard[None])
    return found


def unequal() -> dict[str, Tensor]:
    """Batch norm of one group, with a different number of rows on each rank, like a detector's regions."""
    edges = [IMAGES * r * (r + 1) // (ranks() * (ranks() + 1)) for r in range(ranks() + 1)]
    mine = slice(*edges[rank() : rank() + 2])
    torch.manual_seed(0)
    norm = GroupBatchNorm(nn.BatchNorm2d(2).double(), 1)
    everything = torch.randn(IMAGES, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    y = norm(everything[mine])
    (y.pow(3) * torch.arange(IMAGES)[mine].view(-1, 1, 1, 1)).sum().backward()
    update_running_stats(norm)
    whole = torch.zeros_like(everything)
    whole[mine] = y.detach()
    shared = {
        "y": whole,
        "gradient'": everything.grad,
        **{f"{key}'": value.grad for key, value in norm.named_parameters()},
    }
    found = {f"unequal: {key}": mean_over_ranks(value) * ranks() for key, value in shared.items()}
    return found | {f"unequal: {key}": value for key, value in norm.state_dict().items()}
