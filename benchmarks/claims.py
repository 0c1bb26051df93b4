"""claims: what the studies showed, in docs/results/claims.md.

`python -m benchmarks.claims` corrects the claims of benchmarks/primary.yaml for their number; all others are
shown with intervals.
"""

import click

from benchmarks import family
from benchmarks import study as stage
from benchmarks.studies import LEVEL, PLANS, UNDECIDED, Decision, Study, cells, corrected, decide
from pipeline.support import command

Decisions = list[tuple[str, Decision]]
PAGE = """# What the studies showed

{decided} of {primary} [primary claims](../../benchmarks/primary.yaml) are decided after Holm's correction for
their number. If all are chosen before their runs, the chance of any wrong decision is at most 5 %; **where
"chosen" says "after", nothing guarantees that.** Differences of accuracies are in points; the intervals are
over seeds of one data set each. [How the encoders were trained](studies.md). In brackets: new seeds that
would decide with probability 0.8 at {level} %, if difference and deviation are those seen.

| primary claim | chosen | difference | seeds | verdict |
|---|---|---|---|---|
{primary_rows}

| study | plan committed | what follows, with 95 % intervals for each claim alone |
|---|---|---|
{follows}

## Exploratory

The other claims, with 95 % intervals for each alone: among so many, some mislead. A row claims that its
difference is above 0, unless it says otherwise. Theorems, identities and what a loss minimises only check the
code. Pooled intervals take the deviation from all studies of a regime: variances of paired differences of two
arms, no arm twice, weighted by degrees of freedom, where Bartlett's test does not tell them apart: {pooled}.

| study | claim | difference | pooled | seeds |
|---|---|---|---|---|
{exploratory}

```sh
python -m benchmarks.study dcl_linear   # settings, arms and all differences of a study
python -m benchmarks.claims             # writes this page from docs/results/<study>.csv
```
"""


@click.command()
@command.entry_point
def main() -> None:
    """Write the page, and say which plans were committed together with their results."""
    path = stage.RESULTS / "claims.md"
    path.write_text(page())
    print(path)
    late = [name for name, study in studies().items() if study.registration == "with results"]
    print(f"plan {PLANS['with results']}: {', '.join(late)}")


def studies() -> dict[str, Study]:
    """All studies by name."""
    return {path.stem: stage.load(path.stem) for path in sorted(stage.STUDIES.glob("*.yaml"))}


def page() -> str:
    """The primary claims with verdicts, what follows from the studies, and all others with intervals."""
    found = studies()
    rows = {name: stage.of_study(study, stage.rows(name, study)) for name, study in found.items()}
    all_decisions = {name: decide(study, rows[name]) for name, study in found.items()}
    tested = [(name, each) for name, own in all_decisions.items() for each in own if each.comparison.tested]
    primary = family.primary(family.PRIMARY.read_text())
    ran = {name: {row.commit for row in own} for name, own in rows.items()}
    primary_rows, decided = _primary(primary, tested, ran)
    pooled = {
        regime: family.pooled([own for name, own in all_decisions.items() if found[name].regime == regime])
        for regime in dict.fromkeys(study.regime for study in found.values())
        if regime
    }
    deviations = [
        f"{regime} {each.deviation:.2f} ({each.degrees} degrees of freedom, p {each.p:.2f})"
        for regime, each in pooled.items()
        if each
    ]
    others = [
        (name, each) for name, each in tested if each.finished and (name, str(each.comparison)) not in primary
    ]
    return PAGE.format(
        decided=decided,
        primary=len(primary),
        level=f"{100 * LEVEL / max(1, len(primary)):.2g}",
        primary_rows="\n".join(primary_rows),
        follows="\n".join(_follows(found)),
        pooled=", ".join(deviations),
        exploratory="\n".join(
            _exploratory(name, each, pooled.get(found[name].regime or "")) for name, each in others
        ),
    )


def _primary(
    claims: list[tuple[str, str]], tested: Decisions, ran: dict[str, set[str]]
) -> tuple[list[str], int]:
    """The rows of the primary claims, and how many are decided; one whose seeds are missing counts too.

    Raises:
        ValueError: a study does not have the claim, or it holds whatever was learnt.
    """
    known = {(name, str(each.comparison)): each for name, each in tested if not each.comparison.given}
    for name, claim in claims:
        if (name, claim) not in known:
            raise ValueError(f"{family.PRIMARY}: {name} does not test {claim!r}, or it only checks the code")
    decisions = [known[claim] for claim in claims]
    verdicts, rows = corrected(decisions), []
    for (name, claim), each, verdict in zip(claims, decisions, verdicts, strict=True):
        chosen = "before" if family.stated_before((name, claim), ran[name]) else "after"
        text, difference, interval, seeds, said = cells(each, verdict, LEVEL / len(claims))
        alone = "" if verdict == each.verdict else f" (alone: {each.verdict})"
        first = f"{name}: {claim}{_claimed(text)}"
        rows.append(f"| {first} | {chosen} | {difference} ({interval}) | {seeds} | {said}{alone} |")
    return rows, sum(verdict != UNDECIDED for verdict in verdicts)


def _follows(found: dict[str, Study]) -> list[str]:
    """A row for each study that no newer one continues."""
    return [
        f"| [{name}](../studies/{name}.yaml) | {study.registration or 'registered'} | {study.follows} |"
        for name, study in found.items()
        if study.follows and not study.continued
    ]


def _exploratory(name: str, decision: Decision, shared: family.Pooled | None) -> str:
    text, difference, interval, _, _ = cells(decision, "")
    values, pool = list(decision.differences.values()), ""
    if shared and family.poolable(decision):
        between = shared.interval(values)
        pool = f"{between.low:+.3g} to {between.high:+.3g}"
    first = f"{decision.comparison}{_claimed(text)}"
    return f"| {name} | {first} | {difference} ({interval}) | {pool} | {len(values)} |"


def _claimed(text: str) -> str:
    return "" if text == "above 0" else f", {text}"


if __name__ == "__main__":
    main()
