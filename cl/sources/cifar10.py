"""CIFAR-10: the python batches as distributed, in `<raw>/cifar-10-batches-py/`, or downloaded."""

from typing import Literal

from cl.sources._shared.cifar import CifarSource, splits

__all__ = ["Config", "splits"]


class Config(CifarSource):
    """See `CifarSource`."""

    kind: Literal["cifar10"]
