"""Exact search beside a dense product with `topk`, scikit-learn and a FAISS index.

`python -W ignore -m benchmarks.search [images]`. Each case runs in its own process, for the peak of its
memory; the cases take turns. The index needs `pip install faiss-cpu`.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.memory import peak

if TYPE_CHECKING:
    from torch import Tensor

QUERIES, WIDTH, TOP, CLUSTERS = 10_000, 512, 10, 1000
DENSE = 500  # queries of a dense product at a time: its similarities with 1,000,000 images take 2 GB
CASES = ("cl.search", "dense", "scikit-learn", "FAISS")
ROUNDS = 2
READ = 16  # lists of the index that a search reads


def main() -> None:
    import torch

    images = int((sys.argv[1:] or ["100000"])[0])
    cases = CASES if images <= 100_000 else (CASES[0], CASES[-1])
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{QUERIES} queries, {images} images, width {WIDTH}, {TOP} nearest")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), images)
        results: dict[str, list[list[float]]] = {case: [] for case in cases}
        for _ in range(ROUNDS if images <= 100_000 else 1):
            for case in cases:
                command = [sys.executable, "-W", "ignore", "-m", "benchmarks.search", case, folder]
                results[case].append(json.loads(subprocess.check_output(command, text=True)))
    print("case           queries/s   extra MiB   seconds to prepare   nearest as cl.search")
    for case, runs in results.items():
        seconds, prepared = min(run[0] for run in runs), runs[0][2]
        memory, equal = min(run[1] for run in runs), runs[0][3]
        print(
            f"{case:<14} {QUERIES / seconds:9.0f}   {memory:9.0f}   {prepared:18.1f}   {100 * equal:18.2f} %"
        )


def write(folder: Path, images: int) -> None:
    """Write features around 1,000 centres, of any length."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, WIDTH), np.float32)
    for name, count in (("bank", images), ("queries", QUERIES)):
        shape = (count, WIDTH)
        array = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, shape)
        for start in range(0, count, 2**14):
            rows = len(array[start : start + 2**14])
            noise = rng.standard_normal((rows, WIDTH), np.float32)
            array[start : start + rows] = centres[rng.integers(CLUSTERS, size=rows)] + noise


def measure(case: str, folder: Path) -> None:
    """Print [seconds of all queries, MiB, seconds to prepare, share of positions that cl.search finds]."""
    import torch
    import torch.nn.functional as F

    from cl.features.knn import nearest_in_array

    queries, bank = (np.load(folder / f"{name}.npy") for name in ("queries", "bank"))
    small = torch.randn(256, 256)
    (small @ small).sum()  # allocate the matrix library's own buffers first
    before, began = peak(reset=True), time.perf_counter()
    if case == "cl.search":
        run = lambda: nearest_in_array(queries, bank, TOP)[1]  # noqa: E731
    elif case == "dense":
        unit = F.normalize(torch.from_numpy(np.array(bank)), dim=1)
        run = lambda: dense(F.normalize(torch.from_numpy(np.array(queries)), dim=1), unit)  # noqa: E731
    elif case == "scikit-learn":
        from sklearn.neighbors import NearestNeighbors

        fitted = NearestNeighbors(n_neighbors=TOP, metric="cosine", algorithm="brute").fit(bank)
        run = lambda: fitted.kneighbors(queries, return_distance=False)  # noqa: E731
    else:
        import faiss

        for rows in (bank, queries):
            faiss.normalize_L2(rows)
        index = faiss.index_factory(WIDTH, f"IVF{4 * math.isqrt(len(bank))},Flat", faiss.METRIC_INNER_PRODUCT)
        index.train(bank)
        index.add(bank)
        index.nprobe = READ
        run = lambda: index.search(queries, TOP)[1]  # noqa: E731
    prepared, began = time.perf_counter() - began, time.perf_counter()
    positions = run()
    seconds, memory = time.perf_counter() - began, peak() - before
    if case == "cl.search":
        np.save(folder / "exact.npy", positions)
    exact = np.load(folder / "exact.npy")
    equal = float(np.mean([np.isin(found, row).mean() for found, row in zip(positions, exact, strict=True)]))
    print(json.dumps([seconds, memory, prepared, equal]))


def dense(queries: "Tensor", bank: "Tensor") -> np.ndarray:
    return np.concatenate([(part @ bank.T).topk(TOP, dim=1).indices.numpy() for part in queries.split(DENSE)])


if __name__ == "__main__":
    measure(sys.argv[1], Path(sys.argv[2])) if len(sys.argv) > 2 else main()
