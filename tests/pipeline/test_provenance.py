"""What stands beside a result: where it comes from, and what it took in time, images and energy, over all its sessions."""

import ctypes
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cl.console.progress import Progress, Usage
from cl.console.stop import StoppedError
from cl.training.checkpoints import Checkpoints
from pipeline import command, energy, provenance
from tests.support.project import TINY
from tests.training.test_loop import run

MOST = 262_143_328_850  # microjoules at which a counter of RAPL starts again


def write(file: Path, value: object) -> None:
    """At once, as the system shows its counters: whoever reads finds the old value or the new one."""
    file.parent.mkdir(exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(f"{value}\n")
    os.replace(new, file)


@pytest.fixture
def zones(tmp_path) -> Path:
    """Two packages; the cores of one, a part of it, and the whole board, which holds both."""
    names = {
        "intel-rapl:0": "package-0",
        "intel-rapl:1": "package-1",
        "intel-rapl:0:0": "core",
        "intel-rapl:2": "psys",
    }
    for zone, name in names.items():
        write(tmp_path / zone / "name", name)
        write(tmp_path / zone / "energy_uj", 7_000_000)
        write(tmp_path / zone / "max_energy_range_uj", MOST)
    return tmp_path


def test_packages_are_added_up_and_parts_counted_once(zones) -> None:
    with energy.counters(zones, "none.so") as read:
        before = read()
        for zone, joules in {
            "intel-rapl:0": 10,
            "intel-rapl:1": 400,
            "intel-rapl:0:0": 9,
            "intel-rapl:2": 500,
        }.items():
            write(zones / zone / "energy_uj", 7_000_000 + joules * 1_000_000)
        assert read()["cpu_joules"] - before["cpu_joules"] == pytest.approx(10 + 400)
        assert set(before) == {"cpu_joules"}


def test_a_counter_that_starts_again_is_followed(zones) -> None:
    """Also when it does so several times between two readings, as the counters are looked at in between."""
    threads = threading.active_count()
    with energy.counters(zones, "none.so", every=0.01) as read:
        before = read()
        for value in (200_000_000_000, 100_000_000_000, 0, 8_000_000):
            write(zones / "intel-rapl:1" / "energy_uj", value)
            time.sleep(0.2)
        assert read()["cpu_joules"] - before["cpu_joules"] == pytest.approx(2 * MOST / 1e6 + 1)
    deadline = time.monotonic() + 5
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == threads


def test_what_cannot_be_read_is_left_out(zones, tmp_path) -> None:
    with energy.counters(tmp_path / "nowhere", "none.so") as read:
        assert read() == {}
    (zones / "intel-rapl:1" / "energy_uj").unlink()
    with energy.counters(zones, "none.so") as read:
        assert read() == {}, "one package of two is not what the CPUs take"


NVML = """
#include <string.h>
static int started;
static unsigned long long energy[] = {1000, 2000, 4000};
int nvmlInit_v2(void) { started = 1; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return started ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index > 2) return 2;
    *device = energy + index;
    return started ? 0 : 1;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (strcmp(uuid, "GPU-b")) return 6;
    *device = energy + 1;
    return started ? 0 : 1;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    if (*(unsigned long long *)device == 0) return 3;
    *millijoules = *(unsigned long long *)device;
    return 0;
}
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    strncpy(version, "550.54.15", length);
    return started ? 0 : 1;
}
void take(int index, unsigned long long millijoules) { energy[index] = millijoules; }
"""


@pytest.fixture
def nvml(tmp_path) -> Path:
    """A library with the functions of NVIDIA's that are asked, of three GPUs."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a library of")
    (tmp_path / "nvml.c").write_text(NVML)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", tmp_path / "nvml.so", tmp_path / "nvml.c"], check=True
    )
    return tmp_path / "nvml.so"


@pytest.mark.parametrize(
    ("visible", "joules"),
    [
        (None, 11.1),
        ("1", 0.1),
        ("GPU-b", 0.1),
        ("2, 0", 11.0),
        ("", None),
        ("7", None),
        ("0,MIG-c", None),
        ("-1", None),
    ],
)
def test_energy_is_that_of_the_visible_gpus(nvml, monkeypatch, tmp_path, visible, joules) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with energy.counters(tmp_path, str(nvml)) as read:
        before = read()
        for index, millijoules in enumerate((2000, 2100, 14_000)):
            ctypes.CDLL(str(nvml)).take(index, ctypes.c_ulonglong(millijoules))
        assert set(before) == (set() if joules is None else {"gpu_joules"})
        assert joules is None or read()["gpu_joules"] - before["gpu_joules"] == pytest.approx(joules)


def test_one_gpu_that_does_not_count_leaves_all_out(nvml, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with energy.counters(tmp_path, str(nvml)) as read:
        ctypes.CDLL(str(nvml)).take(1, ctypes.c_ulonglong(0))
        assert read() == {}


def test_the_driver_tells_its_version(nvml) -> None:
    assert energy.driver(str(nvml)) == "550.54.15"
    assert energy.driver("none.so") is None


def stopping(usage: Usage, shards: Path, params, here, folder: Path) -> None:  # type: ignore[no-untyped-def]
    """A session that is stopped after two epochs of four, 3 steps of 40 images each, and takes half a second at least."""

    def stop(epoch: int) -> dict[str, float]:
        time.sleep(0.25)
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return {}

    run(shards, params, here, silent(usage), Checkpoints(folder), each_epoch=stop)


def silent(usage: Usage) -> Progress:
    return Progress("test", Console(file=io.StringIO()), usage=usage)


def test_sessions_of_a_run_are_added_up(shard_folder, params, here, tmp_path) -> None:
    """Of one that was done before, nothing but what it took then; what a session did not count is not told of their sum."""
    first = Usage()
    first.counters = lambda: {"gpu_joules": 3.0 * first.images}
    with pytest.raises(StoppedError):
        stopping(first, shard_folder, params, here, tmp_path)
    second = Usage()
    second.counters = lambda: {"gpu_joules": 100 + 3.0 * second.images, "cpu_joules": 1.0}
    then = second.now()
    began = time.monotonic()
    run(shard_folder, params, here, silent(second), Checkpoints(tmp_path))
    took = time.monotonic() - began
    used = second.since(then, second.earlier)
    assert used["images"] == 4 * 3 * 40
    assert used["gpu_joules"] == 3.0 * used["images"]
    assert "cpu_joules" not in used
    assert used["seconds"] > took + 0.5

    third = Usage()
    then = third.now()
    run(shard_folder, params, here, silent(third), Checkpoints(tmp_path))
    again = third.since(then, third.earlier)
    assert again["images"] == used["images"]
    assert again["seconds"] > 0.5


@pytest.fixture
def workspace(project, shard_folder, tmp_path, monkeypatch) -> Path:
    """The current folder: a copy of the project with shards and the parameters of a recipe; no repository."""
    from pipeline.compose import compose

    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    shutil.copytree(shard_folder, folder / "data" / "shards")
    compose(folder / "params.yaml", ["recipe=dcl/fig4_cifar10", "evaluation=[knn]", "seed=3", *TINY[3:]])
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    return folder


def beside(folder: Path, result: str) -> dict:
    return json.loads((folder / "results" / f"{result}.provenance.json").read_text())


def test_every_result_tells_where_it_comes_from(workspace, shard_folder, params, here, tmp_path) -> None:
    """Two trainings of a stage count both, and those of another stage do not; what is unknown is null."""
    began = time.monotonic()
    with command.results("pretrain"):
        for part in ("a", "b"):
            run(shard_folder, params, here, silent(command.usage()), Checkpoints(tmp_path / part))
    took = time.monotonic() - began
    found = beside(workspace, "pretrain")
    assert (found["stage"], found["recipe"], found["seed"]) == ("pretrain", "dcl/fig4_cifar10", 3)
    assert found["images_seen"] == 2 * 4 * 3 * 40
    assert 0 < found["seconds"] <= took + 0.1
    own = json.dumps(provenance.declared("pretrain")[1], sort_keys=True)
    assert found["parameters_sha256"] == hashlib.sha256(own.encode()).hexdigest()
    manifest = (shard_folder / "manifest.json").read_bytes()
    assert found["data_manifest_sha256"] == hashlib.sha256(manifest).hexdigest()
    assert found["commit"] is found["uncommitted_changes"] is None, "no repository is not a clean one"
    assert torch.__version__.startswith(found["versions"]["torch"])
    assert ("detectron2" in found["versions"]) == (find_spec("detectron2") is not None)
    assert ("cuda" in found["versions"]) == bool(found["hardware"]["gpus"])
    with energy.counters() as read:
        assert (found["energy_joules"] is None) == (not read())

    with command.results("evaluate", "knn"):
        pass
    found = beside(workspace, "evaluate/knn")
    assert found["stage"] == "evaluate@knn"
    assert found["images_seen"] is None


def test_a_stage_that_goes_on_tells_of_both_sessions(workspace, shard_folder, params, here, tmp_path) -> None:
    """And the next one in the same process of none."""
    with pytest.raises(StoppedError), command.results("pretrain"):
        stopping(command.usage(), shard_folder, params, here, tmp_path / "scratch")
    with command.results("pretrain"):
        run(shard_folder, params, here, silent(command.usage()), Checkpoints(tmp_path / "scratch"))
    with command.results("evaluate", "knn"):
        pass
    found, other = beside(workspace, "pretrain"), beside(workspace, "evaluate/knn")
    assert (found["images_seen"], other["images_seen"]) == (4 * 3 * 40, None)
    assert found["seconds"] > 0.5 > other["seconds"]


def test_energy_is_told_by_device(workspace) -> None:
    used = {"seconds": 1.0, "images": 0}
    for joules, told in (
        ({"gpu_joules": 12.34}, {"gpus": 12.3, "cpus": None}),
        ({"gpu_joules": 0.0, "cpu_joules": 5.0}, {"gpus": None, "cpus": 5.0}),
        ({"gpu_joules": 0.0}, None),
    ):
        assert provenance.record("pretrain", None, {**used, **joules})["energy_joules"] == told


def test_changes_of_code_are_told(workspace) -> None:
    """And those of params.yaml are none."""
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t.t"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    used = {"seconds": 1.0, "images": 0}
    for file, changed in (("params.yaml", False), ("cl/features/knn.py", True)):
        with (workspace / file).open("a") as text:
            text.write("# more\n")
        found = provenance.record("pretrain", None, used)
        assert (found["commit"], found["uncommitted_changes"]) == (head, changed)


def test_detectron2_is_told_where_it_is_installed(workspace, tmp_path, monkeypatch) -> None:
    (tmp_path / "detectron2-9.9.dist-info").mkdir()
    (tmp_path / "detectron2-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: detectron2\nVersion: 9.9\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (
        provenance.record("pretrain", None, {"seconds": 1.0, "images": 0})["versions"]["detectron2"] == "9.9"
    )
