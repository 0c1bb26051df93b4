"""A FAISS index of many features: a list of rows for each of many centres; a search reads few lists."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cl.features.knn import unit_blocks
from cl.runtime.files import finished

PER_LIST = 64  # rows per list that choose its centre
READ = 16  # lists that a search reads
ADDED = 2**14  # rows at a time


def index_of(bank: np.ndarray, path: Path, source: Path, say: Callable[[str], None]) -> Any:
    """The index in a file, written first if it is missing or of another version of `source`.

    It has about 4 sqrt(N) lists. Its file gets the modification time of `source`, the file of the features.

    Args:
        bank: (N, D) of any length per row.

    Raises:
        ValueError: FAISS is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise ValueError("--approximate needs FAISS: run `pip install faiss-cpu`") from None
    version = source.stat().st_mtime_ns
    if path.exists() and path.stat().st_mtime_ns == version:
        index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        if (index.ntotal, index.d) == bank.shape:
            return index
    lists = min(4 * math.isqrt(len(bank)), max(1, len(bank) // PER_LIST))
    say(f"building an index of {len(bank)} images; it is kept in {path}")
    index = faiss.index_factory(bank.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = 0
    rng = np.random.default_rng(0)
    sample = np.sort(rng.choice(len(bank), min(len(bank), PER_LIST * lists), replace=False))
    index.train(np.concatenate([part.numpy() for _, part in unit_blocks(bank[sample], ADDED)]))
    for _, part in unit_blocks(bank, ADDED):
        index.add(part.numpy())
    with finished(path) as partial:
        faiss.write_index(index, str(partial))
        os.utime(partial, ns=(version, version))
    return index


def nearest(index: Any, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """As `knn.nearest_in_array`, approximately.

    Raises:
        ValueError: the lists that are read have fewer than k rows.
    """
    index.nprobe = READ
    cosines, positions = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    for start, part in unit_blocks(queries, ADDED):
        block = slice(start, start + len(part))
        cosines[block], positions[block] = index.search(part.numpy(), k)
    if (positions < 0).any():
        raise ValueError(f"the index finds fewer than {k} images; ask for fewer, or leave out --approximate")
    return cosines, positions


def recall(found: np.ndarray, exact: np.ndarray) -> float:
    """The share of the exact positions (Q, k) that were found (Q, k)."""
    return float(np.mean([np.isin(row, others).mean() for row, others in zip(exact, found, strict=True)]))
