"""Studies: what they decide from paired runs, and the experiments that they ask DVC for."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from cl import config
from cl.report import studies
from cl.report.studies import Row, Study
from pipeline import study as stage
from tests.support.clone import KNN, finished
from tests.support.project import ROOT, compose

VALUES: dict[str, Any] = {
    "question": "Is a larger than b?",
    "source": "nowhere",
    "settings": ["evaluation=[knn]"],
    "arms": {"a": ["loss=dcl"], "b": ["loss=infonce"], "c": ["loss=dclw"]},
    "seeds": [0, 1, 2],
    "metric": "knn_top1",
    "comparisons": [{"arm": "a", "than": "b"}, {"arm": "b", "than": "a"}, {"arm": "c", "than": "a"}],
    "limits": "few images",
}
A, B, C = (60.0, 62.0, 61.0), (57.5, 60.0, 57.0), (61.0, 60.0, 62.0)
STUDIES = sorted(path.stem for path in (ROOT / stage.STUDIES).glob("*.yaml"))


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
    assert [each.verdict for each in (larger, smaller, open_)] == [
        "shown",
        "refuted",
        "undecided with these runs",
    ]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.5, 0.3, -0.4), "shown"),
        ((5.5, 5.3, 5.4), "refuted"),
        ((-5.5, -5.3, -5.4), "refuted"),
        ((2.5, 0.3, -0.4), "undecided with these runs"),
        ((0.5,), "undecided with these runs"),
    ],
)
def test_a_claim_of_equality_needs_an_interval_inside_its_bounds(values, verdict) -> None:
    study = config.validated(Study, VALUES | {"comparisons": [{"arm": "a", "than": "b", "within": 2.0}]})
    (decision,) = studies.decide(study, rows(a=values, b=(0.0,) * 3))
    assert (decision.comparison.claim, decision.verdict) == ("between -2 and 2", verdict)


def test_what_is_not_claimed_is_not_tested() -> None:
    study = config.validated(Study, VALUES | {"comparisons": [{"arm": "a", "than": "b", "tested": False}]})
    (decision,) = studies.decide(study, rows(a=A, b=B))
    assert (decision.comparison.claim, decision.verdict) == ("", "not tested")
    assert decision.interval is not None


def test_a_gain_is_compared_with_another_gain() -> None:
    """By seed, for the seeds of all four arms."""
    comparison = {"arm": "a", "than": "b", "minus": {"arm": "c", "than": "b"}}
    study = config.validated(Study, VALUES | {"comparisons": [comparison]})
    (decision,) = studies.decide(study, rows(a=A, b=B, c=C[:2]))
    assert decision.differences == {0: (60 - 57.5) - (61 - 57.5), 1: (62 - 60) - (60 - 60)}
    assert str(decision.comparison) == "a - b - (c - b)"


def test_only_seeds_that_both_arms_have_are_compared() -> None:
    study = config.validated(Study, VALUES)
    decision, *_ = studies.decide(study, rows(a=A, b=B[:1]))
    assert (decision.differences, decision.interval) == ({0: 2.5}, None)
    assert decision.verdict == "undecided with these runs"


def test_the_page_names_every_arm_and_verdict() -> None:
    study = config.validated(Study, VALUES)
    page = studies.page("name", study, rows(a=A, b=B))
    assert "6 of 9 runs have finished" in page
    assert f"| a | `loss=dcl` | 61.0 ± {np.std(A, ddof=1):.1f} | 3 |" in page
    assert "| c | `loss=dclw` |  | 0 |" in page
    interval = ttest_rel(A, B).confidence_interval(0.95)
    assert f"| a - b | above 0 | +2.83 | {interval.low:+.2f} to {interval.high:+.2f} | 3 | shown |" in page
    assert "![Differences by seed](name.svg)" in page
    assert "svg" not in studies.page("name", study, [])


def test_a_study_that_compares_unknown_arms_is_refused() -> None:
    values = VALUES | {"comparisons": [{"arm": "a", "than": "d"}]}
    with pytest.raises(ValueError, match="d is not an arm; choose one of a, b, c"):
        config.validated(Study, values)


def test_rows_of_other_settings_are_refused(tmp_path, monkeypatch) -> None:
    """But not those of arms that the study no longer has."""
    monkeypatch.chdir(tmp_path)
    study = config.validated(Study, VALUES)
    stage.RESULTS.mkdir(parents=True)
    line = f"a,0,61.0,60,abc,{study.fingerprint('a')}\nold,0,61.0,60,abc,f\n"
    (stage.RESULTS / "name.csv").write_text(",".join(Row._fields) + "\n" + line)
    assert stage.rows("name", study) == [
        Row("a", 0, 61.0, 60, "abc", study.fingerprint("a")),
        Row("old", 0, 61.0, 60, "abc", "f"),
    ]
    for change in (
        {"metric": "linear_top1"},
        {"settings": []},
        {"arms": VALUES["arms"] | {"a": ["loss=dclw"]}},
    ):
        with pytest.raises(ValueError, match="name.csv has runs of arm a whose settings or metric are not"):
            stage.rows("name", config.validated(Study, VALUES | change))


def test_an_unknown_study_is_answered_with_those_that_exist(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=r"no study docs/studies/dcl\.yaml.*dcl_batch_size"):
        stage.load("dcl")


@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_of_a_study_composes(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    study = stage.load(name)
    evaluations = {}
    for arm in study.arms:
        params = config.check(compose(tmp_path, *study.overrides(arm, study.seeds[0])))
        evaluations[arm] = [f"{entry}{of}_top1" for entry in params.evaluations for of in ("", "_embedding")]
    assert all(study.metric in metrics for metrics in evaluations.values())


@pytest.mark.slow
def test_runs_are_recorded_once_and_missing_ones_are_queued(project, tmp_path_factory) -> None:
    clone = finished(project, tmp_path_factory)
    few = [*KNN, "transfer=[]", "analysis=[]", "baseline=[]"]
    values = VALUES | {"settings": few, "comparisons": VALUES["comparisons"][:1], "seeds": [0, 1]}
    values["arms"] = {"a": ["loss=dcl"], "b": ["loss=infonce"]}
    path = clone.folder / stage.STUDIES / "tiny.yaml"
    path.write_text(json.dumps(values))  # JSON is YAML too
    clone.run(sys.executable, "-m", "pipeline.study", "tiny", "--run")
    results = clone.folder / stage.RESULTS
    recorded = (results / "tiny.csv").read_text()
    assert [line.split(",")[:2] for line in recorded.splitlines()[1:]] == [
        list(x) for x in ("a0", "b0", "a1", "b1")
    ]
    assert "4 of 4 runs have finished" in (results / "tiny.md").read_text()
    assert (results / "tiny.svg").exists()
    path.write_text(json.dumps(values | {"seeds": [0, 1, 2]}))
    for _ in range(2):
        clone.run(sys.executable, "-m", "pipeline.study", "tiny")
    commit, parent = clone.run("git", "log", "--format=%H", "-2").split()
    made = {line.split(",")[4] for line in recorded.splitlines()[1:]}
    assert made == {commit[:10], parent[:10]}, (
        "the clone's first run was made before its lock file was committed"
    )
    queue = clone.dvc("queue", "status")
    assert [queue.count(f"tiny-{arm}-2") for arm in "ab"] == [1, 1]
    assert (results / "tiny.csv").read_text() == recorded
    (results / "tiny.csv").unlink()
    path.write_text(json.dumps(values | {"arms": values["arms"] | {"b": ["loss=dclw"]}}))
    said = clone.run(sys.executable, "-m", "pipeline.study", "tiny", code=1)
    assert "experiment tiny-b-0 has other parameters than the study asks for now; `dvc exp remove" in said
