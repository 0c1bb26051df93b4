"""The two sums over negatives beside the log-partition, against their dense forms, forward and backward.

Both forms take turns in one process, on one thread. The time is that of the CPU, which other programs disturb
less than the clock's; the memory is what the process grows by.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.memory import growth
from cl.objective.negatives import Negatives
from cl.objective.sums import log_complement_sum, softplus_sum

SIZES = (1024, 4096, 8192)
WIDTH, TEMPERATURE, ROUNDS = 128, 0.1, 5
DENSE: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": F.softplus,
    "log complement": lambda x: torch.log1p(-x.exp()),
}
OURS = {"softplus": softplus_sum, "log complement": log_complement_sum}


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, float32, forward and backward")
    print(f"N queries of width {WIDTH} against N negatives")
    print("N       sum          CPU seconds   dense   dense / ours   extra MiB   dense")
    for size in SIZES:
        for name in OURS:
            compare(name, size)


def compare(name: str, size: int) -> None:
    """Print a row: the best of the rounds."""
    torch.manual_seed(0)
    queries, negatives = (F.normalize(torch.randn(size, WIDTH), dim=1).requires_grad_() for _ in range(2))
    shift = torch.full((size,), 12.0, requires_grad=True)

    def ours() -> Tensor:
        return OURS[name](queries, Negatives(negatives), TEMPERATURE, shift)

    def dense() -> Tensor:
        return DENSE[name](queries @ negatives.T / TEMPERATURE - shift[:, None]).sum(1)

    torch.testing.assert_close(ours(), dense(), rtol=1e-3, atol=1e-3)
    seconds: dict[Callable[[], Tensor], list[float]] = {ours: [], dense: []}
    for _ in range(ROUNDS):
        for form, times in seconds.items():
            began = time.process_time()
            step(form)
            times.append(time.process_time() - began)
    one, other = min(seconds[ours]), min(seconds[dense])
    extra = [growth(lambda form=form: step(form)) / 2**20 for form in (ours, dense)]  # type: ignore[misc]
    print(
        f"{size:<7} {name:<15} {one:8.3f} {other:7.3f} {other / one:14.2f} {extra[0]:11.1f} {extra[1]:7.1f}"
    )


def step(form: Callable[[], Tensor]) -> None:
    form().sum().backward()


if __name__ == "__main__":
    main()
