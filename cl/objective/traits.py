"""Named traits that methods and losses give and need, by which they fit together."""

from collections.abc import Set
from typing import Literal

# contrasts, pairs, two views: the type of the terms, `Contrast`, `Agreement` or `TwoViews`.
# normalizer: contrasts have a `log_normalizer`, as those of a memory bank do.
# several positives: a query can have more than one; `MethodConfig.positives` says how many it has.
# decoupled: the loss sums over the negatives without the positive.
# predictor: the attribute `predictor`. patches: combinatorial patches are encoded.
# queue: the negatives are a queue of earlier keys.
Trait = Literal[
    "contrasts",
    "pairs",
    "two views",
    "normalizer",
    "several positives",
    "decoupled",
    "predictor",
    "patches",
    "queue",
]
Traits = Set[Trait]
