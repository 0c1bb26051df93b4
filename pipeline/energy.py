"""Energy in joules, from the counters of GPUs and CPUs themselves: what a machine does not tell is left out, never estimated.

Counted is one machine, that of the process which asks: of several nodes the first one. Whatever else runs on these GPUs and
CPUs is in it; memory, disks, fans and power supplies are not.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ZONES, NVML = Path("/sys/class/powercap"), "libnvidia-ml.so.1"
EVERY = 60.0  # seconds between looks at counters that start again, after 262 kJ on many CPUs: in four minutes at 1 kW


@contextmanager
def counters(
    zones: Path = ZONES, library: str = NVML, every: float = EVERY
) -> Iterator[Callable[[], dict[str, float]]]:
    """A function that tells `gpu_joules` and `cpu_joules`, since some moment before, each of all GPUs or CPUs or not at all."""
    gpus, cpus, over = Gpus(library), Packages(zones), threading.Event()

    def watch() -> None:
        while not over.wait(every):
            cpus.joules()

    def read() -> dict[str, float]:
        found = {"gpu_joules": gpus.joules(), "cpu_joules": cpus.joules()}
        return {name: joules for name, joules in found.items() if joules is not None}

    if cpus.zones:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield read
    finally:
        over.set()


class Packages:
    """The CPU packages that Intel's and AMD's RAPL counts; only root may read that on many machines."""

    def __init__(self, folder: Path) -> None:
        names = {path.parent: path.read_text().strip() for path in sorted(folder.glob("intel-rapl:*/name"))}
        self.zones = [
            zone for zone, name in names.items() if name.startswith("package")
        ]  # others are parts of these, or more
        self._total, self._last, self._reading = 0, dict[Path, int](), threading.Lock()

    def joules(self) -> float | None:
        """Since the first call, if called more often than a counter starts again."""
        with self._reading:
            try:
                for zone in self.zones:
                    now, most = (
                        int((zone / name).read_text()) for name in ("energy_uj", "max_energy_range_uj")
                    )
                    self._total += (now - self._last.get(zone, now)) % most
                    self._last[zone] = now
            except (OSError, ValueError):
                self.zones = []  # what is missed now is missing from then on
            return self._total / 1e6 if self.zones else None


class Gpus:
    """NVIDIA's GPUs that CUDA_VISIBLE_DEVICES names, by number in the order of the PCI bus or by UUID, or all; whole ones.

    NVML is never shut down: while it is in use the driver stays loaded, from which the counters start.
    """

    def __init__(self, library: str) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._nvml = _open(library)
            self._handles = [self._handle(name) for name in self._names()]
        except (OSError, AttributeError):  # no library, no answer or no such question
            pass

    def joules(self) -> float | None:
        """Since the driver was loaded."""
        found = [ctypes.c_ulonglong() for _ in self._handles]
        try:
            for handle, millijoules in zip(self._handles, found, strict=True):
                _ask(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(millijoules))
        except (OSError, AttributeError):
            return None
        return sum(millijoules.value for millijoules in found) / 1e3 if found else None

    def _names(self) -> list[str]:
        if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            return [name.strip() for name in visible.split(",") if name.strip()]
        count = ctypes.c_uint()
        _ask(self._nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [str(number) for number in range(count.value)]

    def _handle(self, name: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if name.isdecimal():
            _ask(self._nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            _ask(self._nvml, "nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(handle))
        return handle


def driver(library: str = NVML) -> str | None:
    """The version of NVIDIA's driver."""
    version = ctypes.create_string_buffer(80)
    try:
        _ask(_open(library), "nvmlSystemGetDriverVersion", version, ctypes.c_uint(len(version)))
    except (OSError, AttributeError):
        return None
    return version.value.decode()


def _open(library: str) -> ctypes.CDLL:
    nvml = ctypes.CDLL(library)
    _ask(nvml, "nvmlInit_v2")
    return nvml


def _ask(nvml: ctypes.CDLL, question: str, *arguments: Any) -> None:
    if status := getattr(nvml, question)(*arguments):
        raise OSError(f"NVML answers {question} with {status}")
