"""pipeline.embed with two kills: memory by number of images, and whether the result is complete.

`python -m benchmarks.embed ARCHIVE [images]`: PNG files of CIFAR-10 (ARCHIVE: the tar of its python version),
repeated where more are asked for, through an untrained ResNet-18 for small images.
"""

import os
import pickle
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image as Picture

from cl.data.transform import Transform
from cl.exchange.embedding import PART
from cl.networks import backbones
from cl.networks.backbones import Config
from cl.runtime.tensor_files import save_tensors

FOLDER = 1000  # images per folder


def main() -> None:
    archive, count = Path(sys.argv[1]), int((sys.argv[2:] or ["20000"])[0])
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        weights = write_encoder(work / "encoder.safetensors")
        few, all_images = work / "few", work / "all"
        pixels = cifar10(archive)
        write_images(few, pixels, count // 4)
        write_images(all_images, pixels, count)
        del pixels
        print("images    parts before   seconds   peak memory (MiB)   ended by")
        first = measure(few, weights, work / "few.npy")
        parts = -(-count // PART)
        for stop in (parts // 3, 2 * parts // 3, None):
            last = measure(all_images, weights, work / "all.npy", stop)
        check(work, count)
        print(f"memory of the last run / of a quarter of the images: {last / first:.3f}")


def cifar10(archive: Path) -> np.ndarray:
    """(60000, 32, 32, 3) uint8."""
    batches = []
    with tarfile.open(archive) as tar:
        for member in tar:
            if Path(member.name).name.startswith(("data_batch", "test_batch")):
                file = tar.extractfile(member)
                assert file
                batches.append(pickle.load(file, encoding="bytes")[b"data"])
    return np.concatenate(batches).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def write_images(root: Path, pixels: np.ndarray, count: int) -> None:
    for number in range(count):
        path = root / f"{number // FOLDER:04d}" / f"{number:08d}.png"
        if number % FOLDER == 0:
            path.parent.mkdir(parents=True)
        Picture.fromarray(pixels[number % len(pixels)]).save(path, compress_level=1)


def write_encoder(path: Path) -> Path:
    network = backbones.build(Config(kind="resnet18", width=1, stem="small", zero_init_residual=False))
    half = (0.5, 0.5, 0.5)
    transform = Transform(resize=32, crop=32, mean=half, std=half, upright=False)
    save_tensors(network.state_dict(), path, {"transform": transform.model_dump_json()})
    return path


def measure(images: Path, weights: Path, to: Path, stop: int | None = None) -> float:
    """Peak memory in MiB of one run, which is killed once `stop` parts are finished."""
    before, began = len(list(finished(to))), time.monotonic()
    command = [sys.executable, "-m", "pipeline.embed", str(images), "--to", str(to)]
    process = subprocess.Popen(
        [*command, "--backbone", str(weights)],
        env={**os.environ, "CL_PROCESSES": "1"},
        start_new_session=True,
    )
    while stop is not None and len(list(finished(to))) < stop:
        time.sleep(0.05)
    if stop is not None:
        os.killpg(process.pid, signal.SIGKILL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    memory, seconds = usage.ru_maxrss / 1024, time.monotonic() - began
    end = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
    listed = sum(1 for _ in images.rglob("*.png"))
    print(f"{listed:<9} {before:12d}   {seconds:7.1f}   {memory:17.0f}   {end}", flush=True)
    return memory


def finished(to: Path) -> Iterator[Path]:
    return Path(f"{to}.partial").glob("part-*.safetensors")


def check(work: Path, count: int) -> None:
    """All images are there, in order; the first part is bit for bit that of the run that nothing stopped."""
    names = (work / "all.txt").read_text().splitlines()
    expected = [f"{number // FOLDER:04d}/{number:08d}.png" for number in range(count)]
    features, others = (np.load(work / f"{name}.npy", mmap_mode="r") for name in ("all", "few"))
    complete = names == expected and len(features) == count
    same = min(PART, len(others)) if len(others) % PART == 0 or len(others) > PART else 0
    equal = np.array_equal(features[:same], others[:same])
    print(f"complete and in order: {complete}; the first {same} rows equal those of the shorter run: {equal}")


if __name__ == "__main__":
    main()
