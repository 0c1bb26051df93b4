"""claims: the claims of all studies in one table, corrected for their number, in docs/results/claims.md.

`python -m benchmarks.claims`
"""

from benchmarks import study as stage
from benchmarks.studies import LEVEL, Decision, cells, corrected, decide


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
    rows = [
        f"| [{name}]({name}.md) | {each.comparison} | {' | '.join(cells(each, verdict, level))} | {each.verdict} |"
        for (name, each), verdict in zip(decisions, verdicts, strict=True)
    ]
    decided = sum(verdict in ("shown", "refuted") for verdict in verdicts)
    lines = [
        "# The claims of all studies",
        "",
        f"Written by `python -m benchmarks.claims`: {decided} of {len(decisions)} claims are decided. "
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
