"""What the tests share: tiny data, a tiny encoder, the shipped configuration."""

import gc
import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cl import config
from cl.console.progress import Progress
from cl.runtime import machine, stores
from cl.runtime.tensor_files import save_tensors
from cl.shards import scenes
from cl.sources import photos
from tests.support.bands import write_band_shards
from tests.support.project import ROOT, TINY, compose
from tests.support.server import LocalServer, object_store
from tests.support.tiny import SCENES, TinyBackbone, write_shards


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs, except from `make test-gpu`: tests fork, and CUDA cannot start in a fork of its process.

    The garbage collector walks all modules again and again: a tenth of the time.
    """
    gc.set_threshold(100_000)
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # The first backward pass starts threads, which forbid forks, if a GPU is there or was ever pretended.
        torch.ones(1, requires_grad=True).backward()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not machine.gpus():
        pytest.skip("no GPU, or hidden: `make test-gpu` runs this")


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking what is imported until now."""
    gc.freeze()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    """A local object store, with short waits between attempts."""
    monkeypatch.setattr(stores, "WAITS", (0.01, 0.02))
    with object_store() as found:
        yield found


@pytest.fixture(scope="session")
def params(tmp_path_factory: pytest.TempPathFactory) -> config.Params:
    """The default experiment at a tiny size."""
    return config.check(compose(tmp_path_factory.mktemp("params"), *TINY))


@pytest.fixture(scope="session")
def shard_folder(tmp_path_factory: pytest.TempPathFactory, params: config.Params) -> Path:
    """Shards of the tiny embedded data set: 120 training and 60 validation images."""
    folder = tmp_path_factory.mktemp("shards")
    splits = photos.splits(params.dataset, folder / "raw")
    write_shards(splits, folder / "shards", params.dataset.shard_images)
    return folder / "shards"


@pytest.fixture(scope="session")
def band_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of images of five bands of 16 bits: 120 for training and 12 for validation."""
    return write_band_shards(tmp_path_factory.mktemp("bands"), 120, 12)


@pytest.fixture
def here(request: pytest.FixtureRequest) -> machine.Machine:
    """The CPU, or the device that `tests.support.devices` chooses."""
    return machine.Machine(torch.device(getattr(request, "param", "cpu")), 0, "fp32")


@pytest.fixture
def quiet() -> Progress:
    return Progress("test", Console(file=io.StringIO()))


@pytest.fixture
def tiny_backbone() -> TinyBackbone:
    torch.manual_seed(0)
    return TinyBackbone()


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the working tree, committed, at the smallest sizes."""
    folder = tmp_path_factory.mktemp("clone") / "project"
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file() and name != "dvc.lock":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "data/detection").mkdir()  # for stages that run without `check`
    return folder


@pytest.fixture(scope="module")
def project_with_shards(project: Path, shard_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the tiny shards, which the tests of a module share."""
    folder = tmp_path_factory.mktemp("prepared") / "project"
    shutil.copytree(project, folder)
    shutil.copytree(shard_folder, folder / "data" / "shards")
    save_tensors({}, folder / "models" / "teacher.safetensors")
    return folder


@pytest.fixture(scope="session")
def scenes_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Detection scenes with objects of two classes: 10 to train on and 4 to test on."""
    folder = tmp_path_factory.mktemp("scenes")
    scenes.write(SCENES, folder)
    return folder
