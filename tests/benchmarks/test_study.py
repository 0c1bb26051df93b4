"""The stage of studies: which rows it accepts, and the experiments that it asks DVC for."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import claims
from benchmarks import study as stage
from benchmarks.studies import Row, Study
from cl import config
from cl.report.experiments import Experiment
from tests.support.project import ROOT, compose
from tests.support.study import VALUES

STUDIES = sorted(path.stem for path in (ROOT / stage.STUDIES).glob("*.yaml"))


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    """An empty folder of results in an otherwise empty current folder."""
    monkeypatch.chdir(tmp_path)
    stage.RESULTS.mkdir(parents=True)
    return tmp_path / stage.RESULTS


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,0,nan,60,abc,{f}"], "name.csv, line 2: the value must be finite, found nan"),
        (["a,0,61.0,60,abc,{f}", "a,0,9.0,60,abc,{f}"], "line 3: a with seed 0 is there twice; delete one"),
        (["a,0,61.0,60,abc,{f}", "<<<<<<< HEAD"], "line 3: found 1 of 6 columns"),
        (["a,zero,61.0,60,abc,{f}"], "line 2: invalid literal for int"),
    ],
)
def test_damaged_rows_get_one_sentence(lines, message, results) -> None:
    study = config.validated(Study, VALUES)
    text = "\n".join([",".join(Row._fields), *lines]).format(f=study.fingerprint("a"))
    (results / "name.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        stage.rows("name", study)


PARAMS = {"seed": 0}


def experiment(arm: str, seed: int, **changes: Any) -> Experiment:
    """A finished experiment of the study `name`."""
    made = {"pretrain": {"seconds": 60.4, "commit": "0123456789abcdef", "uncommitted_changes": False}}
    values = {"params": PARAMS, "metrics": {"knn_top1": 61.0 + seed}, "provenance": made} | changes
    return Experiment(name=f"name-{arm}-{seed}", revision="", **values)


@pytest.fixture
def experiments(monkeypatch) -> list[Experiment]:
    """What DVC is said to know; every override composes to `PARAMS`."""
    known: list[Experiment] = []
    monkeypatch.setattr(stage, "collect", lambda say: known)
    monkeypatch.setattr(stage, "compose", lambda overrides: PARAMS | {"overrides": overrides})
    return known


def test_a_finished_experiment_is_recorded_once(results, experiments) -> None:
    study = config.validated(Study, VALUES)
    experiments.append(experiment("a", 0))
    stage.record("name", study)
    (results / "name.csv").write_text((results / "name.csv").read_text().rstrip("\n"))  # as some editors do
    made = experiments[0].provenance["pretrain"] | {"uncommitted_changes": True}
    experiments.append(experiment("b", 1, provenance={"pretrain": made}))
    stage.record("name", study)
    assert stage.rows("name", study) == [
        Row("a", 0, 61.0, 60, "0123456789", study.fingerprint("a")),
        Row("b", 1, 62.0, 60, "0123456789+", study.fingerprint("b")),
    ]
    assert len(stage._missing("name", study)) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"params": {"seed": 1}}, "was run with parameters that differ from the study's; `dvc exp remove"),
        (
            {"metrics": {"linear_top1": 1.0}},
            "no usable knn_top1 .*its results are linear_top1; `dvc exp remove",
        ),
        ({"metrics": {"knn_top1": math.nan}}, "no usable knn_top1"),
        (
            {"metrics": {}, "problems": ["evaluate/knn was made with a different seed"]},
            "no usable knn_top1 .*evaluate/knn was made with a different seed",
        ),
        ({"provenance": {"baseline/random": {}}}, "no usable knn_top1"),
    ],
)
def test_an_experiment_that_cannot_be_recorded_gets_one_sentence(
    changes, message, results, experiments
) -> None:
    experiments.append(experiment("a", 0, **changes))
    with pytest.raises(ValueError, match=message):
        stage.record("name", config.validated(Study, VALUES))
    assert not (results / "name.csv").exists()


@pytest.fixture
def asked(results, experiments, monkeypatch) -> list[tuple[str, int, str]]:
    """The experiments that the command asks DVC for; `a` with seed 0 is in its queue already."""
    calls: list[tuple[str, int, str]] = []
    monkeypatch.setattr(stage, "_queued", lambda: {"name-a-0"})
    monkeypatch.setattr(
        stage, "_experiment", lambda name, study, arm, seed, how: calls.append((arm, seed, how))
    )
    monkeypatch.setattr(stage, "load", lambda name: config.validated(Study, VALUES | {"seeds": [0]}))
    monkeypatch.delenv("CL_SCRATCH", raising=False)
    return calls


@pytest.mark.parametrize(("options", "how"), [([], "--queue"), (["--run"], "--temp")])
def test_what_is_queued_is_left_to_the_queue(options, how, asked) -> None:
    said = CliRunner().invoke(stage.main, ["name", *options]).output
    assert asked == [("b", 0, how), ("c", 0, how)]
    assert ("name-a-0 is in DVC's queue: `dvc queue remove name-a-0`" in said) == bool(options)
    assert f"run `CL_SCRATCH={Path('scratch').resolve()} dvc queue start`" in said
    assert "0 of 3 runs have finished" in said


def test_short_runs_record_all_numbers_of_a_run(asked, results, monkeypatch) -> None:
    """Without DVC; what is recorded is not run again."""
    values = VALUES | {"seeds": [0], "comparisons": [{"arm": "a", "than": "a.npc_mean_32"}]}
    monkeypatch.setattr(stage, "load", lambda name: config.validated(Study, values))
    monkeypatch.setattr(stage, "parameters", lambda *overrides: SimpleNamespace(dataset=Dataset()))
    monkeypatch.setattr(stage.in_process, "shards", lambda params, folder: ["shards"])
    runs: list[Any] = []

    def run(params: Any, readers: Any) -> tuple[dict[str, float], float]:
        runs.append(readers)
        return {"knn_top1": 60.0, "npc_mean_32": 0.5}, 59.6

    monkeypatch.setattr(stage.in_process, "run", run)
    for _ in range(2):
        assert not CliRunner().invoke(stage.main, ["name", "--short"]).exception
        assert runs == [["shards"]] * 3 and not asked
    found = [row[:4] for row in stage.rows("name", stage.load("name"))]
    assert found == [
        ("a", 0, 60.0, 60),
        ("a.npc_mean_32", 0, 0.5, 60),
        ("b", 0, 60.0, 60),
        ("c", 0, 60.0, 60),
    ]


class Dataset:
    """Stands for all parameters of the data."""

    def model_dump_json(self) -> str:
        return "{}"


def test_the_page_of_all_claims_is_that_of_the_rows(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    assert (stage.RESULTS / "claims.md").read_text() == claims.page()


def test_rows_of_other_settings_are_refused(results) -> None:
    """But not those of arms that the study no longer has."""
    study = config.validated(Study, VALUES)
    line = f"a,0,61.0,60,abc,{study.fingerprint('a')}\nold,0,61.0,60,abc,f\n"
    (results / "name.csv").write_text(",".join(Row._fields) + "\n" + line)
    assert stage.rows("name", study) == [
        Row("a", 0, 61.0, 60, "abc", study.fingerprint("a")),
        Row("old", 0, 61.0, 60, "abc", "f"),
    ]
    for change in (
        {"metric": "linear_top1"},
        {"settings": []},
        {"arms": VALUES["arms"] | {"a": ["loss=nce"]}},
    ):
        with pytest.raises(ValueError, match="name.csv has runs of arm a whose settings or metric are not"):
            stage.rows("name", config.validated(Study, VALUES | change))


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_of_a_study_composes(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    study = stage.load(name)
    for arm in study.arms:
        params = config.check(compose(tmp_path, *study.overrides(arm, study.seeds[0])))
        measured = {**params.evaluations, **params.analyses}
        numbers = {
            f"{entry}{of}_{number}"
            for entry, settings in measured.items()
            for of in ("", "_embedding")
            for number in settings.numbers()
        }
        assert numbers >= {study.quantities[quantity][1] for quantity in study.of(arm)}
