"""Studies: what they decide from paired runs, and how they print it."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from benchmarks import studies
from benchmarks.studies import Row, Study
from cl import config
from tests.support.study import VALUES

A, B, C = (60.0, 62.0, 61.0), (57.5, 60.0, 57.0), (61.0, 60.0, 62.0)


def rows(**arms: tuple[float, ...]) -> list[Row]:
    return [
        Row(arm, seed, x, 60, "abc", "f") for arm, values in arms.items() for seed, x in enumerate(values)
    ]


def test_paired_differences_decide() -> None:
    study = config.validated(Study, VALUES)
    larger, smaller, open_ = studies.decide(study, rows(a=A, b=B, c=C))
    assert larger.differences == {0: 2.5, 1: 2.0, 2: 4.0}
    expected = ttest_rel(A, B).confidence_interval(0.95)
    assert larger.interval == pytest.approx((expected.low, expected.high))
    assert larger.p == pytest.approx(ttest_rel(A, B).pvalue)
    assert [each.verdict for each in (larger, smaller, open_)] == [
        "shown",
        "refuted",
        "undecided",
    ]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.5, 0.3, -0.4), "shown"),
        ((5.5, 5.3, 5.4), "refuted"),
        ((-5.5, -5.3, -5.4), "refuted"),
        ((2.5, 0.3, -0.4), "undecided"),
        ((0.5,), "undecided"),
    ],
)
def test_a_claim_of_equality_needs_an_interval_inside_its_bounds(values, verdict) -> None:
    study = config.validated(Study, VALUES | {"comparisons": [{"arm": "a", "than": "b", "within": 2.0}]})
    study = study.model_copy(update={"seeds": list(range(len(values)))})
    (decision,) = studies.decide(study, rows(a=values, b=(0.0,) * 3))
    assert (decision.comparison.claim, decision.verdict) == ("between -2 and 2", verdict)


def test_a_gain_is_compared_with_another_gain() -> None:
    """By seed, for the seeds of all arms; each side may be the mean of several."""
    comparison = {"arm": ["a", "c"], "than": "b", "minus": {"arm": ["b", "c"], "than": "a"}}
    study = config.validated(Study, VALUES | {"comparisons": [comparison]})
    (decision,) = studies.decide(study, rows(a=A, b=B, c=C[:2]))
    expected = [(a + c) / 2 - b - ((b + c) / 2 - a) for a, b, c in zip(A, B, C[:2], strict=False)]
    assert decision.differences == dict(enumerate(expected))
    assert str(decision.comparison) == "mean(a, c) - b - (mean(b, c) - a)"


def test_other_metrics_and_numbers_are_compared() -> None:
    """`arm.metric`, whose rows have that name; and a number instead of the second arm."""
    comparisons = [{"arm": "a.npc_mean_512", "than": "a.npc_mean_32"}, {"arm": "a", "than": 60.0}]
    study = config.validated(Study, VALUES | {"comparisons": comparisons})
    assert study.quantities["a.npc_mean_32"] == ("a", "npc_mean_32")
    assert study.of("a") == ["a", "a.npc_mean_512", "a.npc_mean_32"]
    assert study.fingerprint("a") == config.validated(Study, VALUES).fingerprint("a")
    assert len({study.fingerprint(each) for each in study.of("a")}) == 3
    measured = rows(**{"a": A, "a.npc_mean_512": (0.9, 0.8, 0.7), "a.npc_mean_32": (0.5, 0.5, 0.5)})
    within, number = studies.decide(study, measured)
    assert within.differences == pytest.approx({0: 0.4, 1: 0.3, 2: 0.2})
    assert number.differences == {0: 0.0, 1: 2.0, 2: 1.0}
    assert str(number.comparison) == "a - 60.0"
    assert "3 of 9 runs have finished" in studies.page(study, measured)


def test_a_claim_about_the_same_encoders_or_of_a_theorem_is_no_comparison_of_trainings() -> None:
    pairs = [
        {"arm": "a", "than": "b"},
        {"arm": "a.npc_mean_512", "than": "a.npc_mean_32"},
        {"arm": "a", "than": 60.0},
        {"arm": "a", "than": "a.npc_mean_32", "minus": {"arm": "b", "than": "b.npc_mean_32"}},
        {"arm": "a", "than": 60.0, "theorem": True},
    ]
    kinds = [each.kind for each in config.validated(Study, VALUES | {"comparisons": pairs}).comparisons]
    assert kinds == ["trainings", "encoders", "encoders", "trainings", "theorem"]


def test_the_correction_is_holms() -> None:
    """The smallest p is compared with 0.05 / 3, the next with 0.05 / 2; after a failure, none is decided."""
    study = config.validated(Study, VALUES | {"comparisons": VALUES["comparisons"][:1]})
    sure, likely, unsure = (
        studies.decide(study, rows(a=a, b=(0.0, 0.0, 0.0)))[0]
        for a in ((1.0, 1.01, 1.02), (1.0, 1.3, 1.6), (1.0, 1.4, 1.8))
    )
    assert sure.p < 0.05 / 3 < likely.p < 0.05 / 2 and unsure.p < 0.05
    assert studies.corrected([unsure, likely, sure]) == ["shown", "shown", "shown"]
    assert studies.corrected([unsure, unsure, sure]) == [studies.UNDECIDED, studies.UNDECIDED, "shown"]
    assert studies.corrected([likely, likely, likely]) == [studies.UNDECIDED] * 3


def test_seeds_needed_are_those_of_a_power_of_80_percent() -> None:
    """Of a paired t test: 34 for half a standard deviation, 3 for four (G*Power)."""
    assert studies.power(0.5, 34) == pytest.approx(0.8078, abs=1e-4)
    study = config.validated(Study, VALUES | {"comparisons": VALUES["comparisons"][:1]})
    (decision,) = studies.decide(study, rows(a=(-0.5, 0.5, 1.5), b=(0.0, 0.0, 0.0)))
    assert decision.seeds_needed() == 34
    assert studies.cells(decision, decision.verdict)[-2:] == ["3 (34)", "undecided"]


def test_nothing_is_decided_before_all_seeds_have_finished() -> None:
    study = config.validated(Study, VALUES)
    decision, *_ = studies.decide(study, rows(a=(62.5, 62.6), b=(60.0, 60.0)))
    assert decision.interval is not None and decision.interval.low > 0
    assert (decision.verdict, decision.p) == ("undecided", 1.0)
    decision, *_ = studies.decide(study, rows(a=A, b=B[:1]))
    assert (decision.differences, decision.interval) == ({0: 2.5}, None), "of seeds that both arms have"
    untested = VALUES | {"comparisons": [{"arm": "a", "than": "b", "tested": False}]}
    (decision,) = studies.decide(config.validated(Study, untested), rows(a=A, b=B))
    assert decision.verdict == "not tested"


def test_the_page_names_every_arm_and_verdict() -> None:
    study = config.validated(Study, VALUES)
    page = studies.page(study, rows(a=A, b=B))
    assert "6 of 9 runs have finished" in page
    assert f"| a | `loss=dcl` | 61.0 ± {np.std(A, ddof=1):.1f} | 3 |" in page
    assert "| c | `loss=dclw` |  | 0 |" in page
    interval = ttest_rel(A, B).confidence_interval(0.95)
    assert f"| a - b | above 0 | +2.83 | {interval.low:+.3g} to {interval.high:+.3g} | 3 | shown |" in page
    assert "* Commits of the code: abc\n" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"comparisons": [{"arm": "a", "than": "d"}]}, "d is not an arm; choose one of a, b, c"),
        ({"comparisons": [{"arm": "a", "than": "a"}]}, "a is compared with itself"),
        ({"comparisons": [{"arm": ["b", "a"], "than": "a"}]}, "a is compared with itself"),
        ({"comparisons": [{"arm": "a", "than": "b", "within": 2, "tested": False}]}, "makes none"),
        ({"arms": {"a": ["x=1", "y=2"], "b": ["y=2", "x=1"]}}, "b and a have the same overrides"),
        ({"settings": ["seed=1"]}, "must not set the seed"),
    ],
)
def test_a_study_that_contradicts_itself_is_refused(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        config.validated(Study, VALUES | change)
