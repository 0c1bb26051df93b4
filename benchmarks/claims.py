"""claims: what the studies showed, in docs/results/claims.md.

`python -m benchmarks.claims` corrects the claims of benchmarks/primary.yaml for their number; all others are
shown with intervals.
"""

import click

from benchmarks import family
from benchmarks import study as stage
from benchmarks.studies import LEVEL, PLANS, UNDECIDED, Decision, Row, Study, cells, corrected, decide
from pipeline.support import command

Claim = tuple[str, str]  # a study, and a comparison as it is printed
PAGE = """# What the studies showed

{decided} of {primary} [primary claims](../../benchmarks/primary.yaml) are decided after Holm's correction,
which also counts {replaced}, since replaced. If all are chosen before their
runs, the chance of any wrong decision is at most 5 %; **where "chosen" says "after", nothing guarantees
that.** Differences of accuracies are in points; the intervals are over seeds of one data set each. [How the
encoders were trained](studies.md). In brackets: new seeds that would decide with probability 0.8 at
{level} %, if difference and deviation are those seen.

| primary claim | chosen | difference | seeds | verdict |
|---|---|---|---|---|
{primary_rows}

| study | plan committed | what follows, with 95 % intervals for each claim alone |
|---|---|---|
{follows}

## Exploratory

The other claims, each with its own 95 % interval; some are wrong by chance. Unless a row
says otherwise, it claims a difference above 0. Theorems, identities and what a loss minimises only check the
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
    decided = {name: decide(study, rows[name]) for name, study in found.items()}
    pooled = {
        regime: family.pooled([own for name, own in decided.items() if found[name].regime == regime])
        for regime in dict.fromkeys(study.regime for study in found.values())
        if regime
    }
    tested = {(name, str(each.comparison)): each for name, own in decided.items() for each in own}
    tested = {claim: each for claim, each in tested.items() if each.comparison.tested}
    text = family.PRIMARY.read_text()
    primary, replaced = family.primary(text), family.replaced(text)
    primary_rows, count = _primary(primary, len(replaced), tested, rows)
    return PAGE.format(
        decided=count,
        primary=len(primary),
        replaced=", ".join(f"`{name}`" for name in replaced),
        level=f"{100 * LEVEL / max(1, len(primary) + len(replaced)):.2g}",
        primary_rows="\n".join(primary_rows),
        follows="\n".join(
            f"| [{name}](../studies/{name}.yaml) | {study.registration or 'registered'} | {study.follows} |"
            for name, study in found.items()
            if study.follows and not study.continued
        ),
        pooled=", ".join(
            f"{regime} {each.deviation:.2f} (df {each.degrees}, p {each.p:.2f})"
            for regime, each in pooled.items()
            if each
        ),
        exploratory="\n".join(
            _exploratory(name, each, pooled.get(found[name].regime or ""))
            for (name, claim), each in tested.items()
            if each.finished and (name, claim) not in primary
        ),
    )


def _primary(
    claims: list[Claim], replaced: int, tested: dict[Claim, Decision], found: dict[str, list[Row]]
) -> tuple[list[str], int]:
    """The rows of the primary claims, and how many are decided; one whose seeds are missing counts too.

    Raises:
        ValueError: a study does not have the claim, or it holds whatever was learnt.
    """
    for name, text in claims:
        if (name, text) not in tested or tested[name, text].comparison.given:
            raise ValueError(f"{family.PRIMARY}: {name} does not test {text!r}, or it only checks the code")
    verdicts, rows = corrected([tested[claim] for claim in claims], replaced), []
    for claim, verdict in zip(claims, verdicts, strict=True):
        before = family.stated_before(claim, {row.commit for row in found[claim[0]]})
        text, difference, seeds, said = _cells(tested[claim], verdict, LEVEL / (len(claims) + replaced))
        alone = "" if verdict == tested[claim].verdict else f" (alone: {tested[claim].verdict})"
        chosen = "before" if before else "after"
        rows.append(f"| {claim[0]}: {text} | {chosen} | {difference} | {seeds} | {said}{alone} |")
    return rows, sum(verdict != UNDECIDED for verdict in verdicts)


def _exploratory(name: str, decision: Decision, shared: family.Pooled | None) -> str:
    text, difference, _, _ = _cells(decision, "")
    values, pool = list(decision.differences.values()), ""
    if shared and family.poolable(decision):
        between = shared.interval(values)
        pool = f"{between.low:+.3g} to {between.high:+.3g}"
    return f"| {name} | {text} | {difference} | {pool} | {len(values)} |"


def _cells(decision: Decision, verdict: str, level: float = LEVEL) -> tuple[str, str, str, str]:
    """The claim, its difference with the interval, seeds and verdict."""
    claim, difference, interval, seeds, said = cells(decision, verdict, level)
    text = str(decision.comparison) + ("" if claim == "above 0" else f", {claim}")
    return text, f"{difference} ({interval})" if interval else difference, seeds, said


if __name__ == "__main__":
    main()
