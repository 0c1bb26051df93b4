"""Energy counters of CPUs (RAPL) and GPUs (NVML)."""

import ctypes
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from pipeline.support import energy

RANGE = 262_143_328_850  # microjoules after which a RAPL counter wraps around


def write(file: Path, value: object) -> None:
    """Replace a file atomically, like a counter of the kernel: a reader sees the old value or the new one."""
    file.parent.mkdir(exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(f"{value}\n")
    os.replace(new, file)


@pytest.fixture
def zones(tmp_path) -> Path:
    """Two packages, the cores of one of them (a part), and the whole board, which contains both."""
    names = {
        "intel-rapl:0": "package-0",
        "intel-rapl:1": "package-1",
        "intel-rapl:0:0": "core",
        "intel-rapl:2": "psys",
    }
    for zone, name in names.items():
        write(tmp_path / zone / "name", name)
        write(tmp_path / zone / "energy_uj", 7_000_000)
        write(tmp_path / zone / "max_energy_range_uj", RANGE)
    return tmp_path


def test_packages_are_summed_without_their_parts(zones) -> None:
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


def test_a_counter_that_wraps_around_is_followed(zones) -> None:
    """Even several times between two readings, as the counters are polled in between."""
    threads = threading.active_count()
    with energy.counters(zones, "none.so", every=0.01) as read:
        before = read()
        for value in (200_000_000_000, 100_000_000_000, 0, 8_000_000):
            write(zones / "intel-rapl:1" / "energy_uj", value)
            time.sleep(0.2)
        assert read()["cpu_joules"] - before["cpu_joules"] == pytest.approx(2 * RANGE / 1e6 + 1)
    deadline = time.monotonic() + 5
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == threads


def test_counters_that_cannot_be_read_are_left_out(zones, tmp_path) -> None:
    with energy.counters(tmp_path / "nowhere", "none.so") as read:
        assert read() == {}
    (zones / "intel-rapl:1" / "energy_uj").unlink()
    with energy.counters(zones, "none.so") as read:
        assert read() == {}, "one package of two is not the energy of the CPUs"


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
    """A stand-in for NVIDIA's library, with three GPUs."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
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
def test_energy_is_counted_for_the_visible_gpus(nvml, monkeypatch, tmp_path, visible, joules) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with energy.counters(tmp_path, str(nvml)) as read:
        before = read()
        for index, millijoules in enumerate((2000, 2100, 14_000)):
            ctypes.CDLL(str(nvml)).take(index, ctypes.c_ulonglong(millijoules))
        assert set(before) == (set() if joules is None else {"gpu_joules"})
        assert joules is None or read()["gpu_joules"] - before["gpu_joules"] == pytest.approx(joules)


def test_one_gpu_without_a_counter_leaves_out_all_gpus(nvml, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with energy.counters(tmp_path, str(nvml)) as read:
        ctypes.CDLL(str(nvml)).take(1, ctypes.c_ulonglong(0))
        assert read() == {}


def test_the_version_of_the_driver_is_read(nvml) -> None:
    assert energy.driver(str(nvml)) == "550.54.15"
    assert energy.driver("none.so") is None
