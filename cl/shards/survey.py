"""Facts about all images, read by threads before the images are packed."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from typing import TypeVar

from PIL import Image as Picture

from cl.console.progress import Count, silent
from cl.images.decoding import opened
from cl.images.image import Image
from cl.runtime.files import UNREACHABLE

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class Team:
    """`workers` processes or threads, which do not affect results; `count` shows the progress of a pass."""

    workers: int = 1
    count: Count = silent


def survey(listed: Sequence[Image], fact: Callable[[Image], Fact], unit: str, team: Team) -> list[Fact]:
    """The fact about each image, in order; an empty list shows no progress."""
    if not listed:
        return []
    facts = []
    chunk = max(1, min(64, len(listed) // (4 * team.workers)))
    with team.count(len(listed), unit) as report, ThreadPool(team.workers) as pool:
        for value in pool.imap(fact, listed, chunksize=chunk):
            facts.append(value)
            report(1)
    return facts


def read_fact(image: Image, fact: Callable[[Picture.Image], Fact], otherwise: Fact, max_pixels: int) -> Fact:
    """A fact about the opened picture; `otherwise` for an unreadable image, which packing will report."""
    try:
        # A file is read only as far as needed; other images are read whole.
        file = image.path.open("rb") if type(image) is Image else io.BytesIO(image.read())
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise
        return otherwise
    try:
        with file, opened(file, max_pixels) as picture:
            return fact(picture)
    except MemoryError:
        raise
    except Exception:  # decoders may raise anything on damaged bytes
        return otherwise
