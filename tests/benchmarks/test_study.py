"""The stage of studies: which rows it accepts, and the experiments that it asks DVC for."""

import copy
import json
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import claims
from benchmarks import study as stage
from benchmarks.plans import parameters_hash
from benchmarks.rows import append
from benchmarks.studies import Row, Study
from cl import config
from cl.report.experiments import Experiment
from tests.support import commands
from tests.support.project import ROOT
from tests.support.study import VALUES

STUDIES = sorted(path.stem for path in (ROOT / stage.STUDIES).glob("*.yaml"))


git = partial(commands.git, Path())  # here
DATA = "0123456789"  # the hash of the images


def state(**changes: Any) -> str:
    """Commit the study `name` and everything else that is here; the commit as rows name it."""
    stage.STUDIES.mkdir(parents=True, exist_ok=True)
    (stage.STUDIES / "name.yaml").write_text(json.dumps(VALUES | changes))  # JSON is YAML too
    git("add", "-A")
    git("commit", "-qm", "plan", "--allow-empty")
    return git("rev-parse", "HEAD")[:10]


def add_row(commit: str, parameters: str = "", seed: int = 0) -> None:
    """A finished run of arm `a`, with the plan that is here."""
    study = stage.load("name")
    plan = git("hash-object", str(stage.STUDIES / "name.yaml"))[:10]
    row = Row("a", seed, 61.0, 60, commit, study.fingerprint("a"), plan, parameters)
    append(stage.RESULTS / "name.csv", Row._fields, [row])


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    """The folder of results in the current folder, a repository with a study `name` and a file of code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    stage.RESULTS.mkdir(parents=True)
    (tmp_path / "cl").mkdir()
    (tmp_path / "cl" / "code.py").touch()
    (tmp_path / ".gitignore").write_text("/scratch\n")
    git("init", "-q")
    state()
    return tmp_path / stage.RESULTS


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,0,nan,60,abc,{f}"], "name.csv, line 2: the value must be finite, found nan"),
        (["a,0,61.0,60,abc,{f}", "a,0,9.0,60,abc,{f}"], "line 3: a with seed 0 is there twice; delete one"),
        (["a,0,61.0,60,abc,{f}", "<<<<<<< HEAD"], "line 3: found 1 of 6 columns"),
        (["a,zero,61.0,60,abc,{f}"], "line 2: invalid literal for int"),
        (["a,0,61.0,60,abc,f"], "name.csv has runs of arm a whose settings or metric are not"),
        (["a,0,61.0,60,abc,{f}"], "has rows that name no plan"),
        (["old,0,61.0,60,abc,f"], "has rows that name no plan"),  # an arm that the study no longer has
    ],
)
def test_damaged_rows_get_one_sentence(lines, message, results) -> None:
    """Here of the columns of studies that are older than registered plans."""
    study = config.validated(Study, VALUES)
    text = "\n".join([",".join(Row._fields[:6]), *lines]).format(f=study.fingerprint("a"))
    (results / "name.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        stage.rows("name", study)
    older = study.model_copy(update={"registration": "with results"})
    if "no plan" in message:
        assert [row.plan for row in stage.rows("name", older)] == [""]


@pytest.mark.parametrize("case", ["good", "other commit", "uncommitted", "not in the history", "other plan"])
def test_rows_are_accepted_only_from_commits_with_their_plan(case, results) -> None:
    before = git("rev-parse", "HEAD")[:10]
    commit = state(seeds=[0, 1])
    if case == "not in the history":
        git("reset", "-q", "--soft", before)
        git("commit", "-qm", "the same in another commit")
    add_row({"other commit": before, "uncommitted": f"{commit}+"}.get(case, commit))
    if case == "good":
        state(seeds=[0, 1], follows="Take a.")  # text may change
        assert [row.commit for row in stage.rows("name", stage.load("name"))] == [commit]
        return
    if case == "other plan":
        state(seeds=[0, 1, 2])
    message = (
        "name.yaml: seeds changed after the first row"
        if case == "other plan"
        else "not an ancestor of HEAD or lacks"
    )
    with pytest.raises(ValueError, match=message):
        stage.rows("name", stage.load("name"))


@pytest.fixture
def runs(monkeypatch) -> list[Any]:
    """The runs that were made in this process, each with its readers."""
    made: list[Any] = []

    def run(params: Any, readers: Any) -> tuple[dict[str, float], float]:
        made.append(readers)
        return {"knn_top1": 60.0, "npc_mean_32": 0.5}, 59.6

    monkeypatch.setattr(stage, "collect", lambda say: [])
    monkeypatch.setattr(stage.in_process, "run", run)
    monkeypatch.setattr(stage.in_process, "shards", lambda params, folder: ["shards"])
    monkeypatch.setattr(stage.locations, "manifest_hash", lambda folder: DATA)
    return made


PLAN = stage.STUDIES / "name.yaml"
CASES: dict[str, Callable[[], object]] = {
    "does not have these files as they are here: cl/new.py ": lambda: Path("cl/new.py").touch(),
    "does not have these files as they are here: cl/code.py ": lambda: Path("cl/code.py").write_text("1"),
    "does not have these files as they are here: docs/studies/name.yaml ": lambda: PLAN.write_text(
        json.dumps(VALUES | {"seeds": [5]})
    ),
    "the last commit has no docs/studies/name.yaml": lambda: (
        git("rm", "-q", "--cached", str(PLAN)),
        git("commit", "-qm", "no plan"),
    ),
    "name.yaml: seeds changed after the first row": lambda: (add_row(state()), state(seeds=[0, 5])),
    "rows with parameters 0123456789 and would now run with": lambda: add_row(state(), "0123456789"),
    "older than registered plans": lambda: state(registration="before results"),
}


@pytest.mark.parametrize("message", CASES)
def test_nothing_runs_without_a_registered_plan(message, results, runs) -> None:
    CASES[message]()
    done = CliRunner().invoke(stage.main, ["name", "--short"])
    assert (done.exit_code, runs) == (1, []) and message in done.output and "Traceback" not in done.output


PARAMS = {"seed": 0, "dataset": {}, "optim": {"batch_size": 64}}


def made(commit: str, changed: bool = False, **others: Any) -> dict[str, Any]:
    """The provenance of a pretraining."""
    pretrain = {"seconds": 60.4, "commit": commit, "uncommitted_changes": changed}
    return {"provenance": {"pretrain": pretrain | {"data_manifest_sha256": DATA} | others}}


def experiment(arm: str, seed: int, **changes: Any) -> Experiment:
    """A finished experiment of the study `name`."""
    head = git("rev-parse", "HEAD").strip()
    values = {"params": PARAMS, "metrics": {"knn_top1": 61.0 + seed}} | made(head) | changes
    return Experiment(name=f"name-{arm}-{seed}", revision="", **values)


@pytest.fixture
def experiments(monkeypatch) -> list[Experiment]:
    """What DVC is said to know; every override composes to `PARAMS`."""
    known: list[Experiment] = []
    monkeypatch.setattr(stage, "collect", lambda say: known)
    monkeypatch.setattr(stage, "compose", lambda overrides: copy.deepcopy(PARAMS) | {"overrides": overrides})
    return known


def test_a_finished_experiment_is_recorded_once(results, experiments) -> None:
    study = config.validated(Study, VALUES)
    experiments.append(experiment("a", 0))
    stage.record("name", study)
    (results / "name.csv").write_text((results / "name.csv").read_text().rstrip("\n"))  # as some editors do
    experiments.append(experiment("b", 1))
    stage.record("name", study)
    commit, plan = git("rev-parse", "HEAD", "HEAD:docs/studies/name.yaml").splitlines()
    assert stage.rows("name", study) == [
        Row(
            arm,
            seed,
            value,
            60,
            commit[:10],
            study.fingerprint(arm),
            plan[:10],
            parameters_hash(PARAMS),
            DATA,
        )
        for arm, seed, value in (("a", 0, 61.0), ("b", 1, 62.0))
    ]
    assert len(stage._missing("name", study)) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"params": PARAMS | {"seed": 1}},
            "was run with parameters that differ from the study's; `dvc exp remove",
        ),
        (
            {"metrics": {"linear_top1": 1.0}},
            "no usable knn_top1 .*its results are linear_top1; `dvc exp remove",
        ),
        ({"metrics": {"knn_top1": math.nan}}, "no usable knn_top1"),
        (
            {"metrics": {}, "problems": ["evaluate/knn was made with a different seed"]},
            "no usable knn_top1 .*evaluate/knn was made with a different seed",
        ),
        ({"provenance": {"baseline/random": {}}}, "no usable results of a pretrained"),
        (made("HEAD", True), "uncommitted changes or without .*`dvc exp remove name-a-0`"),
        (made("0123456789", False), "without docs/studies/name.yaml"),
    ],
)
def test_an_experiment_that_cannot_be_recorded_gets_one_sentence(
    changes, message, results, experiments
) -> None:
    experiments.append(experiment("a", 0, **changes))
    with pytest.raises(ValueError, match=message):
        stage.record("name", config.validated(Study, VALUES))
    assert not (results / "name.csv").exists()


def test_an_experiment_that_was_fitted_to_few_images_is_the_studys(results, experiments) -> None:
    fitted = {"params": PARAMS | {"optim": {"batch_size": 8, "epochs": 2}}}
    head = git("rev-parse", "HEAD").strip()
    experiments.append(experiment("a", 0, **fitted | made(head, batch_size=8, epochs=2)))
    study = config.validated(Study, VALUES)
    stage.record("name", study)
    assert [row.parameters for row in stage.rows("name", study)] == [parameters_hash(PARAMS)]


def test_rows_of_other_images_are_refused(results, experiments) -> None:
    """Also for another arm, but not for older rows, which do not name theirs."""
    study, head = config.validated(Study, VALUES), git("rev-parse", "HEAD").strip()
    add_row(head[:10])
    file = results / "name.csv"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line.rpartition(",")[0] for line in lines))
    experiments.append(experiment("a", 1))
    stage.record("name", study)
    assert [row.data for row in stage.rows("name", study)] == ["", DATA]
    before = file.read_text()
    experiments.append(experiment("b", 1, **made(head, data_manifest_sha256="f" * 64)))
    with pytest.raises(ValueError, match=f"b with seed 1 ran on images f{{10}}, a with seed 1 on {DATA}"):
        stage.record("name", study)
    assert file.read_text() == before


def test_a_short_run_without_the_metric_gets_one_sentence(results, runs) -> None:
    state(metric="knn_tpo1")
    done = CliRunner().invoke(stage.main, ["name", "--short"])
    assert "a with seed 0 has no usable knn_tpo1; its results are knn_top1, npc_mean_32" in done.output
    assert done.exit_code == 1 and not (results / "name.csv").exists()


def test_short_runs_record_all_numbers_of_a_run(results, runs) -> None:
    """Without DVC; what is recorded is not run again."""
    commit = state(seeds=[0], comparisons=[{"arm": "a", "than": "a.npc_mean_32"}])
    for _ in range(2):
        assert not CliRunner().invoke(stage.main, ["name", "--short"]).exception
        assert runs == [["shards"]] * 3
    rows = stage.rows("name", stage.load("name"))
    found = [(*row[:4], row.commit) for row in rows]
    assert found == [
        ("a", 0, 60.0, 60, commit),
        ("a.npc_mean_32", 0, 0.5, 60, commit),
        ("b", 0, 60.0, 60, commit),
        ("c", 0, 60.0, 60, commit),
    ]
    assert len({row.parameters for row in rows}) == 3


def test_the_page_of_all_claims_is_that_of_the_rows(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    assert (stage.RESULTS / "claims.md").read_text() == claims.page()
