"""Losses, one file each: a pydantic `Config` and `loss(term, config, progress)`."""

from typing import ClassVar

from cl.contrast import Term
from cl.runtime.base_config import BaseConfig


class LossConfig(BaseConfig):
    """What every loss declares.

    takes: the type of terms that it turns into a number; a method must give the same (`MethodConfig.gives`).
    needs_several_positives: one positive per query is not enough.
    """

    takes: ClassVar[type[Term]]
    needs_several_positives: ClassVar[bool] = False
    kind: str
