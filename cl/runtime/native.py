"""Native paths: faster ways to compute on a GPU, each used only where it has matched its plain form.

A module declares its path once, and asks before each use:

    NATIVE = native.declare("blur by one kernel", _difference, tolerance=1e-5)
    ...
    return _fused_blur(x) if NATIVE.usable(x.device) else blur(x)
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cl.runtime.distributed import any_rank


@dataclass(eq=False)
class NativePath:
    """A faster way to compute on a GPU what a plain form computes everywhere.

    Attributes:
        name: for messages, such as "batch norm over groups".
        difference: computes a small example both ways on a device, and returns how far they differ.
            It must not exchange anything between ranks, of which one may fail, nor draw global random
            numbers.
        tolerance: the largest difference at which the path is used.
        devices: those on which it has matched.
    """

    name: str
    difference: Callable[[torch.device], float]
    tolerance: float
    devices: set[torch.device] = field(default_factory=set)

    def usable(self, device: torch.device) -> bool:
        """Whether it has matched its plain form on the device, in all processes of the run."""
        return device in self.devices

    def fault(self, device: torch.device) -> str:
        """What is wrong with it on the device; empty if nothing."""
        try:
            with torch.enable_grad():
                difference = self.difference(device)
        except Exception as error:
            first_line = str(error).strip().split("\n")[0]
            return f"raised {type(error).__name__} ({first_line})"
        if difference <= self.tolerance:
            return ""
        return f"differs from its plain form by {difference:.1e}, more than {self.tolerance:.0e}"


_declared: list[NativePath] = []


def declare(name: str, difference: Callable[[torch.device], float], tolerance: float) -> NativePath:
    """Declare a native path; it is unused until `verify` finds that it matches."""
    _declared.append(NativePath(name, difference, tolerance))
    return _declared[-1]


def declared() -> list[NativePath]:
    """The native paths of all modules imported so far."""
    return list(_declared)


def verify(device: torch.device) -> list[str]:
    """Compare all declared paths with their plain forms, and use those that match on the device from now on.

    Every rank calls it, after importing the same modules: either all ranks use a path, or none. On a CPU,
    none is used.

    Returns:
        A sentence for each path that is not used.
    """
    if device.type == "cpu":
        return []
    device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0", as in `x.device`
    faults = [path.fault(device) for path in _declared]
    sentences = []
    for path, fault, failed in zip(_declared, faults, any_rank(*map(bool, faults)), strict=True):
        if failed:
            path.devices.discard(device)
            reason = fault or "failed in another process"
            sentences.append(f"native {path.name} {reason} on {device}: its plain form is used instead")
        else:
            path.devices.add(device)
    return sentences


def relative_difference(found: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """The largest |found - expected| / max |expected| over pairs of tensors; NaN if any value is NaN."""
    differences = [
        (a.double() - b.double()).abs().max() / b.double().abs().max()
        for a, b in zip(found, expected, strict=True)
    ]
    return float(torch.stack(differences).max())
