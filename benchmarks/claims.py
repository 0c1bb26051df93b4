"""claims: the claims of all studies in one table, corrected for their number, in docs/results/claims.md.

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
        printed = [f"[{name}]({name}.md)", str(each.comparison), *cells(each, verdict, level), each.verdict]
        rows.append(f"| {' | '.join(printed)} |")
        decided[each.comparison.kind] += verdict != UNDECIDED
    lines = [
        "# The claims of all studies",
        "",
        "Written by `python -m benchmarks.claims`: "
        f"{decided.total()} of {len(decisions)} claims are decided. Decided differences between trainings: "
        f"{decided['trainings']}; between numbers of the same encoders: {decided['encoders']}; theorems of "
        f"the papers, which check our code: {decided['theorem']}. "
        "These are the claims whose runs have all finished, which does not depend on results. The "
        "verdicts are corrected for their number (Holm): a wrong one among them has a chance of at "
        "most 5 %. The intervals are Student's, at 95 %, for each claim alone. As many new seeds as are in "
        "brackets would decide an undecided claim with probability 0.8, if difference and deviation are "
        f"those seen: at {100 * level:.2g} %, which is 5 % divided by the number of claims and suffices for "
        "Holm's correction.",
        "",
        "| study | comparison | claim | difference | interval | seeds | verdict | alone |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
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


if __name__ == "__main__":
    main()
