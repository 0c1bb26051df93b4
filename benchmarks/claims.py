"""claims: the claims of all studies in one table, corrected for their number, in docs/results/claims.md.

`python -m benchmarks.claims`
"""

from benchmarks import study as stage
from benchmarks.studies import Decision, cells, corrected, decide


def main() -> None:
    """Write the page."""
    (stage.RESULTS / "claims.md").write_text(page())


def page() -> str:
    """The tested claims whose runs have begun; the others are counted too."""
    decisions = claims()
    verdicts = corrected([decision for _, decision in decisions])
    rows = [
        f"| [{name}]({name}.md) | {' | '.join([str(decision.comparison), *cells(decision), verdict])} |"
        for (name, decision), verdict in zip(decisions, verdicts, strict=True)
        if decision.finished
    ]
    decided = sum(verdict in ("shown", "refuted") for verdict in verdicts)
    lines = [
        "# The claims of all studies",
        "",
        f"Written by `python -m benchmarks.claims`: of {len(decisions)} claims, {len(rows)} have all their "
        f"runs, and {decided} are decided. The intervals are Student's, at 95 %. The verdicts are corrected "
        "for all claims, with runs or without (Holm): a wrong one among them has a chance of at most 5 %. "
        "The seeds in brackets would decide an undecided claim alone with probability 0.8, if difference and "
        "deviation are those seen.",
        "",
        "| study | comparison | claim | difference | interval | seeds | verdict |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]
    return "\n".join(lines)


def claims() -> list[tuple[str, Decision]]:
    """The tested comparisons of every study, with its name."""
    found = []
    for name in sorted(path.stem for path in stage.STUDIES.glob("*.yaml")):
        study = stage.load(name)
        decisions = decide(study, stage.of_study(study, stage.rows(name, study)))
        found += [(name, decision) for decision in decisions if decision.comparison.tested]
    return found


if __name__ == "__main__":
    main()
