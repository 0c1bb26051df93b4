"""Losses, one file each: a pydantic `Config` and `loss(term, config, progress)`.

`loss` gives a scalar: of contrasts, the mean of L_i over queries and positives, in nats.
"""

from typing import ClassVar

from cl.objective.traits import Traits
from cl.runtime.base_config import BaseConfig


class LossConfig(BaseConfig):
    """What every loss declares.

    needs: the traits that a method must give, including the type of its terms; by default, contrasts.
    gives: the traits that a method may need.
    """

    needs: ClassVar[Traits] = {"contrasts"}
    gives: ClassVar[Traits] = frozenset()
    kind: str
