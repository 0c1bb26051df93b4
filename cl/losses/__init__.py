"""Losses, one file each: a pydantic `Config` and `loss(term, config, progress)`.

`loss` gives a scalar: of contrasts, the mean of L_i over queries and positives, in nats.
"""

from typing import ClassVar

from cl.objective.traits import Traits
from cl.runtime.base_config import BaseConfig


class LossConfig(BaseConfig):
    """What every loss declares."""

    needs: ClassVar[Traits] = {"contrasts"}  # that a method must give, including the type of its terms
    gives: ClassVar[Traits] = frozenset()  # that a method may need
    kind: str
