"""Traits that methods and losses give and need; they decide which combinations are valid."""

from collections.abc import Set
from typing import Literal

# contrasts, pairs, two views: the terms are of type `Contrast`, `Agreement` or `TwoViews`; a contrast can be
#   used as pairs.
# normalizer: contrasts have a `log_normalizer`, as with a memory bank.
# several positives: a query can have more than one; `MethodConfig.positives` gives the number.
# decoupled: the loss sums over the negatives without the positive.
# predictor: the method has the attribute `predictor`. patches: it can encode combinatorial patches.
# columns: other images of a value can be positives (`dataset.positive`) or the only negatives (`.within`).
# queue: the negatives are a queue of earlier keys. teacher: these and the positives are of one other encoder.
Trait = Literal[
    "contrasts",
    "pairs",
    "two views",
    "normalizer",
    "several positives",
    "decoupled",
    "predictor",
    "patches",
    "columns",
    "queue",
    "teacher",
]
Traits = Set[Trait]
