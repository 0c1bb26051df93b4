"""Which images or groups are held out for validation: a hash of the name decides."""

import hashlib
import math
from collections.abc import Collection, Iterable

FEW = 100  # images, or groups of images
LEAST = 5  # images or groups that are held out


def held_out(name: str, share: float) -> bool:
    """Whether an image or group belongs to the validation split, which holds about `share` of all.

    Only the name decides: with the same share, adding images moves no other image.
    """
    return number_of(name) < share * 2**64


def number_of(name: str) -> int:
    """A 64-bit hash; the smallest numbers are held out."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


def last_of_classes(units: Iterable[tuple[str, int, str]]) -> set[str]:
    """The image or group of each class that is held out last, of (class, `number_of` the name, name)."""
    last: dict[str, tuple[int, str]] = {}
    for label, number, name in units:
        last[label] = max((number, name), last.get(label, (-1, "")))
    return {name for _, name in last.values()}


def share_of_few(names: Collection[str], share: float, least: int = LEAST) -> float:
    """The share, raised for few names to hold out at least `least`, or a third if that is less.

    A group's name may be there once per image, to count its images. With 20 times `least` names or more, the
    share stays: a tenth holds out enough, and adding images moves no other image.
    """
    if len(names) >= 20 * least or len(names) < 3:
        return share
    least = min(least, len(names) // 3)
    last = sorted(map(number_of, names))[least - 1]
    return max(share, math.nextafter(last / 2**64, 1))
