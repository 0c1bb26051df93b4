"""Studies: what they decide from paired runs, and how they print it."""

import re
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.stats import ttest_rel

from benchmarks import claims, family, studies
from benchmarks import study as stage
from benchmarks.studies import Decision, Row, Study
from cl import config
from tests.support.files import read_csv
from tests.support.project import ROOT
from tests.support.study import VALUES

A, B, C = (60.0, 62.0, 61.0), (57.5, 60.0, 57.0), (61.0, 60.0, 62.0)
ZERO = (0.0, 0.0, 0.0)
PAIR = {"arm": "a", "than": "b"}
NPC = {"arm": "a.npc_mean_512", "than": "a.npc_mean_32"}


def study(**changes: Any) -> Study:
    return config.validated(Study, VALUES | changes)


def rows(**arms: tuple[float, ...]) -> list[Row]:
    return [
        Row(arm, seed, x, 60, "abc", "f") for arm, values in arms.items() for seed, x in enumerate(values)
    ]


def decided(comparison: dict[str, Any], **arms: tuple[float, ...]) -> Decision:
    """Of one comparison, in a study of three seeds."""
    return studies.decide(study(comparisons=[comparison]), rows(**arms))[0]


def test_paired_differences_decide() -> None:
    larger, smaller, open_ = studies.decide(study(), rows(a=A, b=B, c=C))
    assert larger.differences == {0: 2.5, 1: 2.0, 2: 4.0}
    expected = ttest_rel(A, B).confidence_interval(0.95)
    assert larger.interval == pytest.approx((expected.low, expected.high))
    assert [each.verdict for each in (larger, smaller, open_)] == ["shown", "refuted", "undecided"]
    margin = decided(PAIR | {"not_worse_than": 1}, a=A, b=B)
    assert margin.p == pytest.approx(ttest_rel(np.array(A) + 1, B).pvalue)
    assert decided(PAIR, a=A[:2], b=B).p == 1.0


@pytest.mark.parametrize(
    ("claim", "values", "verdict"),
    [
        ({"within": 2.0}, (0.5, 0.3, -0.4), "shown"),
        ({"within": 2.0}, (5.5, 5.3, 5.4), "refuted, above 0"),
        ({"within": 2.0}, (-5.5, -5.3, -5.4), "refuted, below 0"),
        ({"within": 2.0}, (-1.5, -2.3, -1.9), "undecided, below 0"),
        ({"within": 2.0}, (2.5, 0.3, -0.4), "undecided"),
        ({"within": 2.0}, (0.5, 0.4), "undecided"),  # a seed is missing
        ({"not_worse_than": 2.0}, (5.5, 5.3, 5.4), "shown, above 0"),
        ({"not_worse_than": 2.0}, (-0.5, -0.6, -0.7), "shown, below 0"),
        ({"not_worse_than": 2.0}, (-5.5, -5.3, -5.4), "refuted, below 0"),
        ({}, (1.0, 1.1, 1.2), "shown"),
        ({"tested": False}, (1.0, 1.1, 1.2), "not tested"),
    ],
)
def test_a_claim_needs_an_interval_inside_its_bounds(claim, values, verdict) -> None:
    decision = decided(PAIR | claim, a=values, b=ZERO)
    assert studies.cells(decision, decision.verdict)[-1] == verdict
    text = {"within": "between -2 and 2", "not_worse_than": "above -2", "tested": ""}
    assert decision.comparison.claim == (text[next(iter(claim))] if claim else "above 0")


@pytest.mark.parametrize(
    ("comparison", "differences", "text"),
    [
        (PAIR | {"minus": {"arm": "c", "than": "b"}}, (-1, 2), "a - b - (c - b)"),
        (
            {"arm": ["a", "c"], "than": "b", "minus": {"arm": "a", "than": ["b", "c"]}},
            (2.25, -1.0),
            "mean(a, c) - b - (a - mean(b, c))",
        ),
        (PAIR, (2.5, 2.0, 4.0), "a - b"),
        ({"arm": "a", "than": 60.0}, (0, 2, 1), "a - 60.0"),
        (NPC, (4, 3, 2), "a.npc_mean_512 - a.npc_mean_32"),
    ],
)
def test_gains_means_numbers_and_other_metrics_are_compared(comparison, differences, text) -> None:
    """By seed, for the seeds of all arms; `c` lacks one."""
    measured = {"a": A, "b": B, "c": C[:2], NPC["arm"]: (9, 8, 7), NPC["than"]: (5, 5, 5)}
    decision = decided(comparison, **measured)
    assert list(decision.differences.values()) == pytest.approx(differences)
    assert str(decision.comparison) == text
    assert decision.finished == (len(differences) == 3)


def test_numbers_of_other_metrics_have_names_and_fingerprints_of_their_own() -> None:
    other = study(comparisons=[NPC, PAIR])
    assert other.quantities["a.npc_mean_32"] == ("a", "npc_mean_32")
    assert other.of("a") == ["a", "a.npc_mean_512", "a.npc_mean_32"]
    assert other.fingerprint("a") == study(follows="Take a.", continued="new").fingerprint("a")
    changed = study(metric="linear_top1"), study(settings=[]), study(arms=VALUES["arms"] | {"a": ["x=1"]})
    prints = [other.fingerprint(each) for each in other.of("a")] + [each.fingerprint("a") for each in changed]
    assert len(set(prints)) == 6


def test_arms_that_do_not_differ_decide_nothing() -> None:
    """And do not make the correction of the others milder."""
    same, other = decided(PAIR, a=A, b=A), decided(PAIR, a=(1.0, 1.4, 1.8), b=ZERO)
    assert (same.p, other.p) == (1.0, pytest.approx(0.0260, abs=1e-3))
    assert studies.corrected([same, other]) == ["undecided", "undecided"]


def test_seeds_for_a_claim_between_bounds_clear_both_of_them() -> None:
    """A mean of 0 between -1.5 and 1.5, with a deviation of 3."""
    decision = decided(PAIR | {"within": 1.5}, a=(3.0, -3.0, 0.0), b=ZERO)
    seeds = decision.seeds_needed()
    assert seeds is not None
    samples = np.random.default_rng(0).normal(0, 3, (20_000, seeds))
    half = stats.t.ppf(0.975, seeds - 1) * samples.std(1, ddof=1) / seeds**0.5
    decided_rightly = (abs(samples.mean(1)) + half < 1.5).mean()
    assert 0.79 < decided_rightly < 0.83


def test_the_correction_is_holms() -> None:
    """The smallest p is compared with 0.05 / 3, the next with 0.05 / 2; after a failure, none is decided."""
    samples = (1.0, 1.01, 1.02), (1.0, 1.3, 1.6), (1.0, 1.4, 1.8)
    sure, likely, unsure = (decided(PAIR, a=a, b=ZERO) for a in samples)
    assert sure.p < 0.05 / 3 < likely.p < 0.05 / 2 and unsure.p < 0.05
    assert studies.corrected([unsure, likely, sure]) == ["shown", "shown", "shown"]
    assert studies.corrected([unsure, unsure, sure]) == [studies.UNDECIDED, studies.UNDECIDED, "shown"]
    assert studies.corrected([likely, likely, likely]) == [studies.UNDECIDED] * 3
    assert studies.corrected([unsure, likely, sure], others=1) == [
        studies.UNDECIDED,
        studies.UNDECIDED,
        "shown",
    ]


def test_deviations_of_different_arms_are_pooled_unless_they_differ() -> None:
    narrow, wide = (decided(PAIR, a=a, b=ZERO) for a in ((1.0, 1.1, 1.2), (1.0, 11.0, 21.0)))
    assert family.pooled([[narrow], [narrow]]) == pytest.approx((0.1, 4, 1.0))
    assert family.pooled([[narrow], [wide]]) is family.pooled([[narrow, narrow]]) is None
    unfinished = decided(PAIR, a=(1.0, 1.1), b=ZERO)
    assert family.pooled([[narrow], [unfinished]]) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"comparisons": [PAIR, PAIR | {"within": 2}]}, "a difference is there twice"),
        ({"comparisons": [{"arm": "a", "than": "d"}]}, "d is not an arm; choose one of a, b, c"),
        ({"comparisons": [{"arm": "a", "than": "a"}]}, "a is compared with itself"),
        ({"comparisons": [{"arm": ["b", "a"], "than": ["a", "c"]}]}, "a is compared with itself"),
        ({"comparisons": [PAIR | {"within": 2, "tested": False}]}, "exclude each other"),
        ({"comparisons": [PAIR | {"within": 2, "not_worse_than": 2}]}, "exclude each other"),
        ({"arms": {"a": ["x=1", "y=2"], "b": ["y=2", "x=1"]}}, "b and a have the same overrides"),
        ({"settings": ["seed=1"]}, "must not set the seed"),
    ],
)
def test_a_study_that_contradicts_itself_is_refused(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        study(**change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eqco_batch: [all - plain_64]", "eqco_batch does not test 'all - plain_64'"),  # tested: false
        ("eqco_gradient: [moco_v2 - moco_v2.gradient_norm_plain_ratio]", "only checks the code"),
        ("eqco_simo: [simo - moco_v2, simo - moco_v2]", "at most 10 different claims, found 2"),
        (f"a: [{','.join('abcdefghijk')}]", "at most 10 different claims, found 11"),
    ],
)
def test_primary_claims_are_few_tests_of_trainings(text, message, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(family, "PRIMARY", tmp_path / "primary.yaml")
    family.PRIMARY.write_text(text)
    with pytest.raises(ValueError, match=message):
        claims.page()


def test_the_claims_of_the_page_are_recomputed(monkeypatch) -> None:
    """From the files of rows, with NumPy and SciPy alone: intervals, pooled intervals, Holm's verdicts."""
    monkeypatch.chdir(ROOT)
    primary, rest = claims.page().split("## Exploratory")
    shown, p = {}, {}
    for line in (
        line.split(" | ") for line in primary.splitlines() if re.search(r"\| (after|before) \|", line)
    ):
        name, claim = line[0].removeprefix("| ").split(", between")[0].split(": ", 1)
        values, within = differences(name, claim), 1.5 if "between" in line[0] else 0.0
        p[name, claim], shown[name, claim] = 1.0, not line[4].startswith("undecided")
        if len(values) < len(stage.load(name).seeds):  # not all of its runs have finished
            continue
        interval = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
        assert line[2] == f"{values.mean():+.3g} ({interval[0]:+.3g} to {interval[1]:+.3g})"
        p[name, claim] = max(stats.ttest_1samp(values, bound).pvalue for bound in (within, -within))
    ordered = sorted(p, key=lambda claim: p[claim])
    passed = np.cumprod([p[claim] <= 0.05 / (len(p) + 5 - tried) for tried, claim in enumerate(ordered)])
    assert {claim: bool(each) for claim, each in zip(ordered, passed, strict=True)} == shown and len(p) == 10
    assert stats.bartlett(*(differences(*each) for each in VIEWS_20)).pvalue < 0.05 and "views_20" not in rest
    samples = [differences(*each) for each in PATCHES]
    assert stats.bartlett(*samples).pvalue > 0.05
    degrees = sum(len(each) - 1 for each in samples)
    deviation = np.sqrt(sum(each.var() * len(each) for each in samples) / degrees)
    values = samples[0]
    half = stats.t.ppf(0.975, degrees) * deviation / np.sqrt(len(values))
    assert f" | {values.mean() - half:+.3g} to {values.mean() + half:+.3g} | {len(values)} |" in rest


VIEWS_20 = [
    ("dcl_linear", "dcl - infonce"),
    ("jcl_memory", "jcl_5 - vanilla_2"),
    ("dcl_sensitivity_again", "dcl - infonce"),
    ("dcl_tuned", "dcl - infonce"),
]
PATCHES = [("fast_moco_64", "fast_moco - moco_v3"), ("fast_moco_96", "fast_moco - moco_v3")]


def differences(name: str, claim: str) -> np.ndarray:
    """By seed; the claim is evaluated as it is written."""
    values: dict[str, dict[str, float]] = {}
    for row in read_csv(stage.RESULTS / f"{name}.csv"):
        values.setdefault(row["seed"], {})[row["arm"]] = float(row["value"])
    mean = {"mean": lambda *numbers: sum(numbers) / len(numbers)}
    finished = [by_arm for by_arm in values.values() if set(stage.load(name).arms) <= set(by_arm)]
    return np.array([eval(claim, mean, by_arm) for by_arm in finished])
