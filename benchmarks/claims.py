"""claims: what the studies showed, and all claims corrected for their number, in docs/results/claims.md.

`python -m benchmarks.claims`
"""

from collections import Counter

from benchmarks import study as stage
from benchmarks.studies import LEVEL, UNDECIDED, Decision, cells, corrected, decide


def main() -> None:
    """Write the page."""
    path = stage.RESULTS / "claims.md"
    path.write_text(page())
    print(path)


def page() -> str:
    """The claims whose runs have all finished: which these are does not depend on results."""
    decisions = claims()
    verdicts = corrected([decision for _, decision in decisions])
    level = LEVEL / max(1, len(decisions))
    rows, decided = [], Counter[str]()
    for (name, each), verdict in zip(decisions, verdicts, strict=True):
        rows.append(f"| {' | '.join([name, *_cells(each, verdict, level)])} |")
        decided[each.comparison.kind] += verdict != UNDECIDED
    lines = [
        "# What the studies showed",
        "",
        f"{decided.total()} of {len(decisions)} claims are decided, after Holm's correction for their "
        "number: a wrong one among them has a chance of at most 5 %. Decided differences between trainings: "
        f"{decided['trainings']}; between numbers of the same encoders: {decided['encoders']}; theorems of "
        f"the papers, which check our code: {decided['theorem']}. Differences of accuracies are in points; "
        "the intervals are over seeds of one data set each. [How the encoders were trained](studies.md).",
        "",
        "| study | what follows, with 95 % intervals for each claim alone |",
        "|---|---|",
        *_follows(),
        "",
        "## All claims",
        "",
        "A row claims that its difference is above 0, unless it says otherwise; which rows are here does not "
        "depend on results. As many new seeds as are in brackets would decide an undecided claim with "
        "probability 0.8, if difference and deviation are those seen, at "
        f"{100 * level:.2g} %: 5 % divided by the number of claims, which suffices for Holm's correction.",
        "",
        "| study | claim | difference | seeds | verdict |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "```sh",
        "python -m benchmarks.study dcl_linear   # settings, arms and all differences of a study",
        "python -m benchmarks.claims             # writes this page from docs/results/<study>.csv",
        "```",
        "",
    ]
    return "\n".join(lines)


def claims() -> list[tuple[str, Decision]]:
    """The tested comparisons of every study for which all seeds have finished, with its name."""
    found = []
    for name in sorted(path.stem for path in stage.STUDIES.glob("*.yaml")):
        study = stage.load(name)
        decisions = decide(study, stage.of_study(study, stage.rows(name, study)))
        found += [(name, each) for each in decisions if each.comparison.tested and each.finished]
    return found


def _follows() -> list[str]:
    """A row for each study that no newer one continues."""
    studies = {path.stem: stage.load(path.stem) for path in sorted(stage.STUDIES.glob("*.yaml"))}
    return [
        f"| [{name}](../studies/{name}.yaml) | {study.follows} |"
        for name, study in studies.items()
        if study.follows and not study.continued
    ]


def _cells(decision: Decision, verdict: str, level: float) -> list[str]:
    """The claim, its difference with the interval, its seeds, and its verdict: corrected, and alone."""
    claim, difference, interval, seeds, _ = cells(decision, verdict, level)
    claimed = "" if claim == "above 0" else f", {claim}"
    alone = "" if verdict == decision.verdict else f" (alone: {decision.verdict})"
    return [f"{decision.comparison}{claimed}", f"{difference} ({interval})", seeds, f"{verdict}{alone}"]


if __name__ == "__main__":
    main()
