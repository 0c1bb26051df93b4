"""The cost of M' keys per image: JCL's closed form against the vanilla loss (JCL, supplementary, sec. 2).

`python -m benchmarks.key_cost`: time and memory, first of the loss and its gradient at random unit queries,
then of a whole training step of MoCo v2, with both encoders and the optimizer. The vanilla loss is the mean
of InfoNCE over the keys. As written in the paper, it is a batch M' times as large, so a step encodes each
query M' times. Ours shares one log-partition among the keys of a query: the same number for less.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import memory
from benchmarks.parameters import parameters
from benchmarks.step import Ours
from cl.losses import infonce, jcl
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from cl.runtime import machine

QUERIES, NEGATIVES, WIDTH, KEYS, ROUNDS = 256, 16384, 128, (1, 2, 4, 8, 16), 9
STEP_QUERIES, STEP_KEYS, SIDE = 32, (2, 5), 32  # 5 as JCL's experiments have
STEP = ["method=moco_v2_keys", "backbone=resnet18_small", "bn_group=global", "method.shuffle=false"]
LABELS = ("vanilla, as written", "vanilla, one partition", "JCL")


def main() -> None:
    device = machine.find("fp32", deterministic=False).device
    torch.manual_seed(0)
    print("the loss and its gradient")
    for count in KEYS:
        shapes = (QUERIES,), (QUERIES, count), (NEGATIVES,)
        _print(
            count,
            losses(*(F.normalize(torch.randn(*shape, WIDTH), dim=-1).to(device) for shape in shapes)),
            device,
        )
    print("a training step with its encoders")
    for count in STEP_KEYS:
        _print(count, steps(STEP_QUERIES, count, device), device)


def _print(keys: int, cases: dict[str, Callable[[], object]], device: torch.device) -> None:
    for label, seconds in _median_seconds(cases, device).items():
        grown = memory.growth(cases[label], device) / 2**20
        print(f"{keys:2d} keys   {label:24} {1000 * seconds:10.1f} ms {grown:6.0f} MiB", flush=True)


def steps(images: int, keys: int, device: torch.device, *overrides: str) -> dict[str, Callable[[], float]]:
    """Training steps on images with a query and M' keys each, by label."""
    query, *rest = (torch.randn(images, 3, SIDE, SIDE, device=device) for _ in range(1 + keys))

    def step(views: list[Tensor], *loss: str) -> Callable[[], float]:
        sizes = [f"views.random.count={len(views)}", f"optim.batch_size={len(views[0])}"]
        return Ours(parameters(*STEP, *loss, *sizes, *overrides), "fp32", views).step

    cases = (
        step([torch.cat([query] * keys), torch.cat(rest)], "loss=infonce"),
        step([query, *rest], "loss=infonce"),
        step([query, *rest], "loss=jcl", "loss.ramp=false"),
    )
    return dict(zip(LABELS, cases, strict=True))


def losses(queries: Tensor, keys: Tensor, negatives: Tensor) -> dict[str, Callable[[], object]]:
    """Functions that compute the gradient at the queries, by label."""
    others = Negatives(negatives)
    plain = infonce.Config(kind="infonce", alpha=None, positives="each")
    joint = jcl.Config(kind="jcl", strength=1.0, ramp=False)
    timed: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda q: vanilla(q, keys, others),
        lambda q: infonce.loss(Contrast(q, keys, others), plain, 1.0),
        lambda q: jcl.loss(Contrast(q, keys, others), joint, 1.0),
    )
    return {label: partial(gradient, queries, loss) for label, loss in zip(LABELS, timed, strict=True)}


def _median_seconds(cases: dict[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    for case in cases.values():
        case()  # a device's first call takes longer
    seconds: dict[str, list[float]] = {label: [] for label in cases}
    for _ in range(ROUNDS):  # in turns, because a machine's speed drifts
        for label, case in cases.items():
            seconds[label].append(_seconds(case, device))
    return {label: median(values) for label, values in seconds.items()}


def vanilla(queries: Tensor, keys: Tensor, negatives: Negatives) -> Tensor:
    """Mean of InfoNCE over the N M' pairs of a query (N, D) and one of its keys (N, M', D)."""
    repeated = queries.repeat_interleave(keys.shape[1], 0)
    contrast = Contrast(repeated, keys.flatten(0, 1)[:, None], negatives)
    return infonce.loss(contrast, infonce.Config(kind="infonce", alpha=None, positives="each"), 1.0)


def gradient(queries: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """dL/dq of a loss of the queries."""
    leaf = queries.clone().requires_grad_()
    (result,) = torch.autograd.grad(loss(leaf), leaf)
    return result


def _seconds(case: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    case()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
