"""CIFAR-100 (fine labels): the python files as distributed, in `<raw>/cifar-100-python/`, or downloaded."""

from typing import Literal

from cl.sources._shared.cifar import CifarSource, splits

__all__ = ["Config", "splits"]


class Config(CifarSource):
    """See `CifarSource`."""

    kind: Literal["cifar100"]
