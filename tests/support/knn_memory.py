"""`python -m tests.support.knn_memory DEVICE`: MiB that kNN takes within a bound of 64, by type of bank."""

import sys

import torch
import torch.nn.functional as F

from cl.features.knn import classify
from cl.runtime.memory import growth

MIB = 2**20
QUERIES, BANK = 2_500, 50_000  # all similarities would take 477 MiB


def main(device: torch.device) -> None:
    torch.manual_seed(0)
    queries = F.normalize(torch.randn(QUERIES, 64, device=device), dim=1)
    rows = F.normalize(torch.randn(BANK, 64, device=device), dim=1)
    labels = torch.randint(0, 100, (BANK,), device=device)

    def run(bank: torch.Tensor, count: int) -> None:
        classify(queries[:count], bank, labels, 100, k=[200, 20], temperature=[0.07, 0.1], memory=64 * MIB)

    for bank in (rows, rows.half()):
        run(bank, 100)  # allocates the matrix library's own buffers
        print(growth(lambda bank=bank: run(bank, QUERIES), device) / MIB)  # type: ignore[misc]


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
