"""Losses, one file each: a pydantic `Config` and `loss(term, config, progress)`."""

from typing import ClassVar

from cl.objective.terms import Term
from cl.runtime.base_config import BaseConfig


class LossConfig(BaseConfig):
    """What every loss declares.

    takes: the type of terms that it turns into a number; a method must give the same (`MethodConfig.gives`).
    needs_several_positives: one positive per query is not enough.
    needs_normalizer: the terms must have a `log_normalizer`.
    decoupled: the positive is not among the candidates that the negatives are summed over.
    """

    takes: ClassVar[type[Term]]
    needs_several_positives: ClassVar[bool] = False
    needs_normalizer: ClassVar[bool] = False
    decoupled: ClassVar[bool] = False
    kind: str
