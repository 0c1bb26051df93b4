"""The log-partition and `cl.InfoNCELoss` against a dense form and lightly's NTXentLoss, forward and backward.

Each case runs in its own process, so that peak memory is measured separately; the cases of one size take
turns.
"""

import json
import resource
import subprocess
import sys
import time

SIZES = (1024, 4096, 8192)
WIDTH, TEMPERATURE, ROUNDS = 128, 0.1, 2
CASES = ("cl.InfoNCELoss", "symmetric", "rectangular", "dense", "lightly")


def main() -> None:
    import torch

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


def measure(case: str, size: int) -> None:
    """Print [seconds, MiB] of forward and backward: the best of three, and the growth of the peak memory."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from cl.objective.log_partition import log_partition
    from cl.objective.negatives import Negatives

    torch.manual_seed(0)
    first, second = (F.normalize(torch.randn(size, WIDTH), dim=1).requires_grad_() for _ in range(2))
    itself = torch.arange(2 * size)
    excluded = torch.stack([itself, itself.roll(size)], 1)

    def embeddings() -> tuple[Tensor, Tensor]:
        z = torch.cat([first, second])
        return z, (z * z.roll(size, 0)).sum(1) / TEMPERATURE

    def ours() -> Tensor:
        z, positive = embeddings()
        negatives = Negatives(z if case == "symmetric" else z.clone(), excluded, unit=False)
        return F.softplus(log_partition(z, negatives, TEMPERATURE) - positive).mean()

    def dense() -> Tensor:
        z, positive = embeddings()
        logits = (z @ z.T / TEMPERATURE).scatter(1, excluded, -torch.inf)
        return F.softplus(logits.logsumexp(1) - positive).mean()

    if case in ("lightly", "cl.InfoNCELoss"):
        from lightly.loss import NTXentLoss

        import cl

        criterion = (NTXentLoss if case == "lightly" else cl.InfoNCELoss)(temperature=TEMPERATURE)
        step = lambda: criterion(first, second)  # noqa: E731
    else:
        step = dense if case == "dense" else ours
    small = torch.randn(256, 256)
    (small @ small).sum()  # allocate the matrix library's own buffers first
    before = peak()
    times = []
    for _ in range(3):
        first.grad = second.grad = None
        began = time.perf_counter()
        step().backward()
        times.append(time.perf_counter() - began)
    print(json.dumps([min(times), peak() - before]))


def peak() -> float:
    """The peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 1 else main()
