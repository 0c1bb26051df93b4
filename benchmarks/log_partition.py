"""The log-partition and `cl.InfoNCELoss` against a dense form and lightly's NTXentLoss, forward and backward.

Each case runs in its own process, so that peak memory is measured separately; the cases of one size take
turns.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from lightly.loss import NTXentLoss
from torch import Tensor

import cl
from benchmarks.memory import peak
from cl.objective.log_partition import log_partition
from cl.objective.negatives import Negatives

SIZES = (1024, 4096, 8192)
WIDTH, TEMPERATURE, ROUNDS = 128, 0.1, 2
CASES = ("cl.InfoNCELoss", "symmetric", "rectangular", "dense", "lightly")


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32, forward and backward")
    print(f"N pairs of width {WIDTH}")
    print("N       case           seconds   extra MiB   speed / lightly   memory / lightly")
    for size in SIZES:
        results: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
        for _ in range(ROUNDS):
            for case in CASES:
                output = subprocess.run(
                    [sys.executable, "-W", "ignore", "-m", "benchmarks.log_partition", case, str(size)],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
                results[case].append(tuple(json.loads(output)))
        best = {case: (min(t for t, _ in runs), min(m for _, m in runs)) for case, runs in results.items()}
        for case in CASES:
            seconds, memory = best[case]
            faster, smaller = best["lightly"][0] / seconds, memory / best["lightly"][1]
            print(
                f"{size:<7} {case:<14} {seconds:7.3f}   {memory:9.1f}   {faster:15.1f}   {smaller:16.4f}",
                flush=True,
            )


def forms(pairs: int, device: torch.device) -> tuple[list[Tensor], dict[str, Callable[[], Tensor]]]:
    """Two views of N pairs, (N, D) each, which require a gradient, and SimCLR's loss of them by case."""
    torch.manual_seed(0)
    raw = (torch.randn(pairs, WIDTH, device=device) for _ in range(2))
    first, second = (F.normalize(x, dim=1).requires_grad_() for x in raw)
    itself = torch.arange(2 * pairs)
    excluded = torch.stack([itself, itself.roll(pairs)], 1)
    on_device = excluded.to(device)

    def loss(log_partition: Callable[[Tensor], Tensor]) -> Tensor:
        z = torch.cat([first, second])
        positive = (z * z.roll(pairs, 0)).sum(1) / TEMPERATURE
        return F.softplus(log_partition(z) - positive).mean()

    def symmetric(z: Tensor) -> Tensor:
        return log_partition(z, Negatives(z, excluded), TEMPERATURE)

    def rectangular(z: Tensor) -> Tensor:
        return log_partition(z, Negatives(z.clone(), excluded), TEMPERATURE)

    def dense(z: Tensor) -> Tensor:
        return (z @ z.T / TEMPERATURE).scatter(1, on_device, -torch.inf).logsumexp(1)

    lightly, ours = NTXentLoss(temperature=TEMPERATURE), cl.InfoNCELoss(temperature=TEMPERATURE)
    return [first, second], {
        "symmetric": lambda: loss(symmetric),
        "rectangular": lambda: loss(rectangular),
        "dense": lambda: loss(dense),
        "cl.InfoNCELoss": lambda: ours(first, second),
        "lightly": lambda: lightly(first, second),
    }


def measure(case: str, size: int) -> None:
    """Print [seconds, MiB] of forward and backward: the best of three, and the growth of the peak memory."""
    views, cases = forms(size, torch.device("cpu"))
    small = torch.randn(256, 256)
    (small @ small).sum()  # allocate the matrix library's own buffers first
    before = peak()
    times = []
    for _ in range(3):
        for view in views:
            view.grad = None
        began = time.perf_counter()
        cases[case]().backward()
        times.append(time.perf_counter() - began)
    print(json.dumps([min(times), peak() - before]))


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 1 else main()
