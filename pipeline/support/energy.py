"""Energy in joules from the hardware's own counters: NVML for NVIDIA GPUs, RAPL for CPUs.

A counter that cannot be read is left out; nothing is estimated. Only the machine of the calling process is
covered (with several nodes, the first), including everything else that runs on it. Memory, disks, fans and
power supplies are not covered.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ZONES = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"
EVERY = 60.0  # seconds between readings; RAPL counters often wrap at 262 kJ, which takes four minutes at 1 kW


@contextmanager
def counters(
    zones: Path = ZONES, library: str = NVML, every: float = EVERY
) -> Iterator[Callable[[], dict[str, float]]]:
    """A function that reads `gpu_joules` and `cpu_joules`, each counted from an arbitrary earlier moment.

    A key is missing unless all GPUs, or all CPUs, can be read.
    """
    gpus, cpus = Gpus(library), Packages(zones)
    finished = threading.Event()

    def follow() -> None:
        while not finished.wait(every):
            cpus.joules()

    def read() -> dict[str, float]:
        found = {"gpu_joules": gpus.joules(), "cpu_joules": cpus.joules()}
        return {name: joules for name, joules in found.items() if joules is not None}

    if cpus.zones:
        threading.Thread(target=follow, daemon=True).start()
    try:
        yield read
    finally:
        finished.set()


class Packages:
    """The CPU packages counted by RAPL (Intel and AMD), which on many machines only root may read."""

    def __init__(self, folder: Path) -> None:
        names = {path.parent: path.read_text().strip() for path in sorted(folder.glob("intel-rapl:*/name"))}
        # Other zones are parts of a package, or contain several.
        self.zones = [zone for zone, name in names.items() if name.startswith("package")]
        self._microjoules = 0
        self._last: dict[Path, int] = {}
        self._lock = threading.Lock()

    def joules(self) -> float | None:
        """Since the first call; must be called again before a counter has wrapped around completely."""
        with self._lock:
            try:
                for zone in self.zones:
                    self._add(zone)
            except (OSError, ValueError):
                self.zones = []  # a gap cannot be filled later
            return self._microjoules / 1e6 if self.zones else None

    def _add(self, zone: Path) -> None:
        now = int((zone / "energy_uj").read_text())
        wraps_at = int((zone / "max_energy_range_uj").read_text())
        self._microjoules += (now - self._last.get(zone, now)) % wraps_at
        self._last[zone] = now


class Gpus:
    """The NVIDIA GPUs in CUDA_VISIBLE_DEVICES (numbers in PCI bus order, or UUIDs), or all; no MIG slices.

    NVML is never shut down, because the counters start when the driver is loaded, and NVML keeps it loaded.
    """

    def __init__(self, library: str) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._nvml = _open(library)
            self._handles = [self._handle(name) for name in self._names()]
        except (OSError, AttributeError):  # the library, or one of its functions, is missing or fails
            pass

    def joules(self) -> float | None:
        """Since the driver was loaded."""
        counts = [ctypes.c_ulonglong() for _ in self._handles]  # millijoules
        try:
            for handle, count in zip(self._handles, counts, strict=True):
                _call(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(count))
        except (OSError, AttributeError):
            return None
        return sum(count.value for count in counts) / 1e3 if counts else None

    def _names(self) -> list[str]:
        if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            return [name.strip() for name in visible.split(",") if name.strip()]
        count = ctypes.c_uint()
        _call(self._nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [str(number) for number in range(count.value)]

    def _handle(self, name: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if name.isdecimal():
            _call(self._nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            _call(self._nvml, "nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(handle))
        return handle


def driver(library: str = NVML) -> str | None:
    """The version of NVIDIA's driver, or None without one."""
    version = ctypes.create_string_buffer(80)
    try:
        _call(_open(library), "nvmlSystemGetDriverVersion", version, ctypes.c_uint(len(version)))
    except (OSError, AttributeError):
        return None
    return version.value.decode()


def _open(library: str) -> ctypes.CDLL:
    nvml = ctypes.CDLL(library)
    _call(nvml, "nvmlInit_v2")
    return nvml


def _call(nvml: ctypes.CDLL, function: str, *arguments: Any) -> None:
    if status := getattr(nvml, function)(*arguments):
        raise OSError(f"NVML: {function} returned {status}")
