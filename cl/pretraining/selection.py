"""The state of a pretraining from its log, without labels: collapsed, still improving, or finished.

The epoch to use is the last one. docs/results/selection.md compares this with other rules.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from cl.pretraining import collapse
from cl.pretraining.collapse import FEWEST

MEASURE = "effective_rank"
SPREAD = "its embeddings spread over"
END = 0.25  # the last fraction of the run, whose trend is tested
LEVEL = 0.05  # significance level of the test

Rows = Sequence[Mapping[str, Any]]


class Verdict(NamedTuple):
    """The state of a run, and a sentence for the user."""

    state: Literal["unknown", "collapsed", "still improving", "finished"]
    sentence: str


def verdict(rows: Rows, width: int, images: float = math.inf, *, negatives: bool = False) -> Verdict:
    """The verdict on a run from its rows in epochs.csv, without the columns that need labels.

    Collapsed: the alarm of `cl.pretraining.collapse` for embeddings of this width is on at the end. Still
    improving: MEASURE rises in the last quarter of the epochs (Mann's test of Kendall's tau, 1945). Fewer
    than FEWEST epochs show neither: embeddings may start at one point and leave it later.

    Args:
        images: how many images were measured.
        negatives: whether the method has any, which decides the advice after a collapse.
    """
    last = int(rows[-1]["epoch"])
    if len(rows) < FEWEST:
        sentence = f"too short to tell whether the encoder still improves (at least {FEWEST} epochs)"
        return Verdict("unknown", sentence)
    if first := _collapsed_since(rows, width, images):
        advice = collapse.remedy(negatives=negatives)
        sentence = f"the embeddings collapsed in epoch {first} and did not recover; {advice}"
        return Verdict("collapsed", sentence)
    from scipy.stats import kendalltau  # late: slow to import

    end = [float(row[MEASURE]) for row in rows[-max(FEWEST, round(END * len(rows))) :]]
    if kendalltau(range(len(end)), end, alternative="greater").pvalue < LEVEL:
        longer = f"train longer, for example with -S optim.epochs={2 * len(rows)}"
        sentence = f"still improving at epoch {last}, the last ({SPREAD} more and more dimensions); {longer}"
        return Verdict("still improving", sentence)
    return Verdict("finished", f"finished at epoch {last}, the last: {SPREAD} no more dimensions than before")


def _collapsed_since(rows: Rows, width: int, images: float) -> int | None:
    """The epoch since which the alarm has been on without a break; None if it is off in the last."""
    since = None
    for row in reversed(rows):
        measures = {name: float(row[name]) for name in ("embedding_std", "effective_rank")}
        if not collapse.alarm(measures, width, images):
            break
        since = int(row["epoch"])
    return since
