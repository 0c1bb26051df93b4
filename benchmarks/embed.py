"""`cl embed` with two kills: memory by number of images, and whether the result is complete.

`python -m benchmarks.embed RAW [images]`: PNG files of CIFAR-10 (RAW: the folder that contains its archive or
cifar-10-batches-py), repeated where more are asked for, through an untrained ResNet-18 for small images.
Memory is that of all processes together, each page shared by n of them counting as 1 / n (PSS).
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
from PIL import Image as Picture
from torchvision.datasets import CIFAR10

from cl.data.transform import Transform
from cl.hub.embedding import PART
from cl.networks import backbones
from cl.networks.backbones.resnet import Config
from cl.runtime.tensor_files import save_tensors
from cl.sources._shared.archives import ensure_unpacked

FOLDER = 1000  # images per folder
PATIENCE = 1800  # seconds until the next part must be finished


def main() -> None:
    raw, count = Path(sys.argv[1]), int((sys.argv[2:] or ["20000"])[0])
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        weights = write_encoder(work / "encoder.safetensors")
        few, all_images = work / "few", work / "all"
        pixels = cifar10(raw)
        write_images(few, pixels, count // 4)
        write_images(all_images, pixels, count)
        del pixels
        print("images    parts before   seconds   peak memory (MiB)   ended by")
        first = measure(few, weights, work / "few.npy")
        parts = -(-count // PART)
        stops = (parts // 3, 2 * parts // 3, None)
        largest = max(measure(all_images, weights, work / "all.npy", stop) for stop in stops)
        check(work, count)
        print(f"largest memory for all images / for a quarter of them: {largest / first:.3f}")


def cifar10(raw: Path) -> np.ndarray:
    """(60000, 32, 32, 3) uint8, after checking the md5 of every file."""
    ensure_unpacked(CIFAR10, raw)
    return np.concatenate([CIFAR10(raw, train=train).data for train in (True, False)])


def write_images(root: Path, pixels: np.ndarray, count: int) -> None:
    for number in range(count):
        path = root / f"{number // FOLDER:04d}" / f"{number:08d}.png"
        if number % FOLDER == 0:
            path.parent.mkdir(parents=True)
        Picture.fromarray(pixels[number % len(pixels)]).save(path, compress_level=1)


def write_encoder(path: Path) -> Path:
    network = backbones.build(
        Config(kind="resnet", name="resnet18", width=1, stem="small", zero_init_residual=False)
    )
    half = (0.5, 0.5, 0.5)
    transform = Transform(resize=32, crop=32, mean=half, std=half, upright=False)
    save_tensors(network.state_dict(), path, {"transform": transform.model_dump_json()})
    return path


def measure(images: Path, weights: Path, to: Path, stop: int | None = None) -> float:
    """Peak memory in MiB of one run, which is killed once `stop` parts are finished."""
    before, began = finished(to), time.monotonic()
    command = [sys.executable, "-m", "cl", "embed", str(images), "--to", str(to)]
    process = subprocess.Popen(
        [*command, "--encoder", str(weights)],
        env={**os.environ, "CL_PROCESSES": "1"},
        start_new_session=True,
    )
    memory = peak_memory(process, to, stop)
    code, seconds = process.wait(), time.monotonic() - began
    end = f"signal {-code}" if code < 0 else f"exit code {code}"
    listed = sum(1 for _ in images.rglob("*.png"))
    print(f"{listed:<9} {before:12d}   {seconds:7.1f}   {memory:17.0f}   {end}", flush=True)
    return memory


def peak_memory(process: subprocess.Popen[bytes], to: Path, stop: int | None) -> float:
    """In MiB, until the process ends; it is killed once `stop` parts are finished, or if no part follows."""
    peak, done, since = 0.0, 0, time.monotonic()
    while process.poll() is None:
        peak = max(peak, memory_of(process.pid))
        if (now := finished(to)) != done:
            done, since = now, time.monotonic()
        if (stop is not None and done >= stop) or time.monotonic() - since > PATIENCE:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        time.sleep(0.2)
    return peak


def memory_of(pid: int) -> float:
    """MiB of a process and all that it started."""
    total = 0
    with suppress(psutil.Error):  # it has just ended
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total / 2**20


def finished(to: Path) -> int:
    """The number of finished parts."""
    return sum(1 for _ in Path(f"{to}.partial").glob("*/part-*.safetensors"))


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
