"""What the log of a pretraining says without labels: collapsed, still improving, or finished.

The epoch to use is the last one. docs/results/selection.md compares this with other rules.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from scipy.stats import kendalltau

from cl.pretraining import collapse

MEASURE = "effective_rank"
END = 0.25  # fraction of the run whose trend counts
FEWEST = 5  # epochs for a trend
LEVEL = 0.05  # of the test of the trend

Rows = Sequence[Mapping[str, Any]]


class Verdict(NamedTuple):
    """What was found, and a sentence that says so.

    epoch: the first collapsed one if the run collapsed, otherwise the one to use.
    """

    state: Literal["unknown", "collapsed", "still improving", "finished"]
    epoch: int
    sentence: str


def verdict(rows: Rows, width: int) -> Verdict:
    """The verdict on a run from its rows in epochs.csv, without the columns that need labels.

    Collapsed: the alarm of `cl.pretraining.collapse` for embeddings of this width is on at the end. Still
    improving: MEASURE rises in the last quarter of the epochs (Mann's test of Kendall's tau, 1945). Fewer
    than FEWEST epochs show neither: embeddings may begin at one point and leave it.
    """
    last = int(rows[-1]["epoch"])
    if missing := [name for name in ("embedding_std", MEASURE) if name not in rows[0]]:
        return Verdict("unknown", last, f"{', '.join(missing)} was not logged: collapse cannot be ruled out")
    first = _collapsed_since(rows, width)
    if len(rows) < FEWEST:
        finding = "the embeddings are collapsed so far" if first else f"use epoch {last}, the last"
        question = "they recover" if first else "it has finished"
        needed = f"it takes {FEWEST} epochs or more to tell whether {question}"
        return Verdict("unknown", last, f"{finding}; {needed}")
    if first:
        sentence = (
            f"the embeddings collapsed in epoch {first} and did not recover; lower optim.base_lr, lengthen "
            "optim.warmup_epochs, or choose a method and loss with negatives"
        )
        return Verdict("collapsed", first, sentence)
    if _rises([float(row[MEASURE]) for row in rows]):
        sentence = (
            f"use epoch {last}, the last, or train longer: {MEASURE} still rises, so raise optim.epochs"
        )
        return Verdict("still improving", last, sentence)
    return Verdict("finished", last, f"use epoch {last}, the last: {MEASURE} has stopped rising")


def _collapsed_since(rows: Rows, width: int) -> int | None:
    """The first epoch of those at the end in which the alarm is on; None if it is off in the last."""
    since = None
    for row in reversed(rows):
        measures = {name: float(row[name]) for name in ("embedding_std", "effective_rank")}
        if not collapse.alarm(measures, width):
            break
        since = int(row["epoch"])
    return since


def _rises(values: list[float]) -> bool:
    """Whether the last values have an upward trend at the level LEVEL."""
    end = values[-max(FEWEST, round(END * len(values))) :]
    return bool(kendalltau(range(len(end)), end, alternative="greater").pvalue < LEVEL)
