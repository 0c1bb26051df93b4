"""Experiments beside each other and beside the papers: what counts as the same, and what is never counted."""

import copy
import functools
import json
import subprocess
import sys
import tempfile
from hashlib import md5
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from cl.charts import Chart
from cl.report import paper_tables as papers
from cl.report.experiments import Experiment, differing, distinct, entry_of, measured, outdated, same, sweeps
from cl.report.paper_matches import Answer, Answers, commands, printed_values
from cl.report.summary import page
from pipeline import report
from pipeline.collect import collect
from tests.support.project import compose


@functools.cache
def composed(run: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        return compose(Path(folder), *run.split())


def experiment(name: str, run: str, metrics: dict[str, float], **changes: object) -> Experiment:
    params = copy.deepcopy(composed(run))
    for key, value in changes.items():
        *path, last = key.split("__")
        functools.reduce(lambda values, part: values[part], path, params)[last] = value
    train, val = papers.IMAGES.get(params["dataset"]["kind"], (0, 0))
    images = {"train_images": train - 5, "train_skipped": 5, "val_images": val}
    provenance = {
        "pretrain": {"seconds": 1.0, "finished": "2026-01-01T00:00"},
        "prepare": {"data_manifest_sha256": "d"},
    }
    return Experiment(name, "abc", params, images | metrics, provenance)


TABLE3 = "recipe=dcl/table3_cifar10 loss=dcl"
KNN = "knn_200_embedding_top1"


def test_a_number_is_the_recipes_only_with_its_settings() -> None:
    params = composed(TABLE3)
    assert same(KNN, params, params)
    for free in (
        {"seed": 7},
        {"precision": "bf16"},
        {"optim__chunks": 2},
        {"evaluations__knn_200__memory": "1GiB"},
    ):
        assert same(KNN, params, experiment("", TABLE3, {}, **free).params), free
    for other in (
        {"optim__batch_size": 128},
        {"optim__epochs": 20},
        {"temperature": 0.2},
        {"dataset__kind": "cifar100"},
        {"backbone__stem": "imagenet"},
        {"evaluations__knn_200__k": 20},
        {"loss": {"kind": "infonce", "alpha": None}},
    ):
        assert not same(KNN, params, experiment("", TABLE3, {}, **other).params), other
    assert not same("linear_top1", params, params), "an evaluation that the recipe has not"


def test_a_transfer_counts_with_its_engine_and_all_images() -> None:
    run = "recipe=eqco/table8"
    params, metric = composed(run), "coco_fpn_box_ap"
    assert same(metric, params, params)
    assert not same(metric, params, experiment("", run, {}, transfers__coco_fpn__engine="torchvision").params)
    assert not same(metric, params, experiment("", run, {}, transfers__coco_fpn__subset=100).params)
    other_loss = experiment("", run, {}, loss={"kind": "dcl"}).params
    assert not same(metric, params, other_loss)
    assert same("random_coco_fpn_box_ap", params, other_loss, "random"), "a baseline knows no loss"
    deeper = experiment("", run, {}, backbone__kind="resnet18").params
    assert not same("random_coco_fpn_box_ap", params, deeper, "random")
    longer = copy.deepcopy(params)
    longer["baselines"]["supervised"]["training"]["optim"]["epochs"] = 1
    assert not same("supervised_coco_fpn_box_ap", params, longer, "supervised")


def test_names_that_begin_alike_are_told_apart() -> None:
    params = {"evaluations": {"knn": {}, "knn_200": {}}, "transfers": {"voc_c4": {}}}
    assert entry_of("knn_200_top1", params) == ("evaluations", "knn_200")
    assert entry_of("knn_top1", params) == ("evaluations", "knn")
    assert entry_of("voc_c4_ap50", params) == ("transfers", "voc_c4")
    assert entry_of("npc_mean_32", params) is None


def test_seeds_are_averaged_and_count_once() -> None:
    found = [
        experiment(str(n), TABLE3, {KNN: value}, seed=seed)
        for n, (seed, value) in enumerate([(0, 80), (1, 83), (0, 99)])
    ]
    mean, sd, n, names = measured(found, KNN)
    assert (mean, n, names) == (81.5, 2, ["0", "1"])
    assert sd == pytest.approx(3 / 2**0.5)
    assert measured(found[:1], KNN) == (80, None, 1, ["0"])
    assert measured([], KNN) is None
    repeated = experiment("r", TABLE3, {KNN: 80, f"{KNN}_sd": 0.4, "knn_200_n": 5})
    assert measured([repeated], KNN) == (80, 0.4, 5, ["r"])


def test_a_workspace_and_its_experiment_are_one() -> None:
    first, again = (experiment(name, TABLE3, {KNN: 80}) for name in ("exp", "workspace"))
    other = experiment("other", TABLE3, {KNN: 81}, seed=1)
    assert [e.name for e in distinct([first, again, other])] == ["exp", "other"]
    assert differing([first, other]) == ["seed"]


def test_a_sweep_joins_what_differs_in_one_number() -> None:
    metrics = iter([60, 62, 70, 64, 66, 50])
    runs = [
        ("infonce", 32, 0),
        ("infonce", 32, 1),
        ("infonce", 64, 0),
        ("dcl", 32, 0),
        ("dcl", 64, 0),
        ("dcl", 128, 0),
    ]
    found = []
    for loss, batch, seed in runs:
        run = f"recipe=dcl/table3_cifar10 loss={loss}"
        found.append(experiment(loss, run, {KNN: next(metrics)}, seed=seed, optim__batch_size=batch))
    found[-1] = experiment("else", TABLE3, {KNN: 50}, optim__batch_size=128, temperature=0.5)
    (chart,) = sweeps(found)
    assert (chart.x, chart.y) == ("optim.batch_size", f"{KNN}, %")
    assert {label: [(point.x, point.y) for point in points] for label, points in chart.series.items()} == {
        "infonce": [(32, 61), (64, 70)],
        "dcl": [(32, 64), (64, 66)],
    }
    assert chart.series["infonce"][0].sd == pytest.approx(2**0.5)
    assert not list(sweeps(found[:2])), "seeds are no sweep"


def answer(found: list[Experiment], paper: str, table: str, row: str, column: int = 0) -> Answer:
    sheet = papers.load(paper)
    answers = Answers(found, composed)
    chosen = next(t for t in sheet.tables if t.name == table)
    cells = next(cells for cells in papers.cells(chosen) if cells[0].row.label == row)
    return answers.of_cell(cells[column], printed_values(sheet))


def test_a_cell_has_ours_beside_the_papers_and_gains_are_computed() -> None:
    found = [
        experiment("a", TABLE3.replace("loss=dcl", "loss=infonce"), {KNN: 80.0}),
        experiment("b", TABLE3, {KNN: 83.5}),
    ]
    cell = answer(found, "dcl", "Table 3", "Baseline")
    assert (cell.printed, cell.ours.mean, round(cell.difference, 6)) == (81.8, 80.0, -1.8)
    cell = answer(found, "dcl", "Table 3", "DCL, gain")
    assert (cell.printed, cell.ours.mean, cell.ours.names) == (3.1, 3.5, ["b", "a"])
    assert cell.computed == pytest.approx(2.4)
    assert cell.disagrees
    assert cell.ours.sd is None
    again = [experiment("c", TABLE3.replace("loss=dcl", "loss=infonce"), {KNN: 82.0}, seed=1)]
    again.append(experiment("d", TABLE3, {KNN: 84.5}, seed=1))
    both = answer([*found, *again], "dcl", "Table 3", "DCL, gain").ours
    assert (both.mean, both.n) == (3.0, 2)
    assert both.sd == pytest.approx((0.5 + 2) ** 0.5), "of a difference of two that vary independently"
    assert answer(found, "dcl", "Table 3", "Baseline", 3).ours is None, "ImageNet was not run"
    assert answer(found[:1], "dcl", "Table 3", "DCL, gain").ours is None


def test_commands_of_a_sweep_are_one() -> None:
    runs = [
        f"recipe=a loss={loss} optim.batch_size={size}" for loss in ("dcl", "infonce") for size in (32, 64)
    ]
    assert commands(runs) == ["dvc exp run --queue -S recipe=a -S loss=dcl,infonce -S optim.batch_size=32,64"]
    assert commands(runs[:3])[2] == "dvc exp run -S recipe=a -S loss=infonce -S optim.batch_size=32", (
        "no whole grid"
    )
    assert commands(["recipe=a loss=dcl", "recipe=b loss=dcl"]) == [
        f"dvc exp run -S recipe={name} -S loss=dcl" for name in "ab"
    ]
    assert commands(["evaluation=[a,b]"]) == ["dvc exp run -S 'evaluation=[a,b]'"]


def test_the_page_of_two_hundred_experiments(tmp_path) -> None:
    """All tables, "not run" where nothing is, names escaped, each experiment once; in HTML and in Markdown."""
    found = [experiment(f"e{n}", TABLE3, {KNN: 80 + n / 100}, seed=n) for n in range(99)]
    found += [
        curve(f"c{n}", "recipe=dcl/fig4_cifar10", n, seed=n % 10, temperature=0.1 + n // 10 / 100)
        for n in range(100)
    ]
    only = lambda run: (
        composed(run) if run.split()[0] in ("recipe=dcl/table3_cifar10", "recipe=dcl/fig4_cifar10") else {}
    )
    html, markdown = page([*found, experiment("<b>", TABLE3, {KNN: 5})], only)
    assert html.count('id="exp-') == 200
    assert "<b></td>" not in html
    assert "80.5 ± 0.3" in html
    assert "80.5 ± 0.3" in markdown
    for paper in papers.NAMES:
        for table in papers.load(paper).tables:
            assert f"<h3>{table.name}</h3>" in html
            assert f"## {table.name}\n" in markdown
    assert "not run" in html
    assert (
        "dvc exp run --queue -S recipe=dcl/table1_imagenet100 -S optim.batch_size=32,64,128,256,512 -S loss=infonce"
        in html
    )
    assert len(html) < 1_500_000
    lines = markdown.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("|---"):
            assert lines[number - 1].count("|") == line.count("|") == lines[number + 1].count("|"), lines[
                number - 1
            ]


def test_experiments_of_other_data_compose_no_recipe() -> None:
    def refuse(run: str) -> dict:
        raise AssertionError(run)

    html, _ = page([experiment("a", "seed=0", {"knn_top1": 60.0})], refuse)
    assert "0 of the" in html


class Repository:
    """A repository of DVC with hand-made results: what `dvc exp run` leaves behind, without the training."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for arguments in (["git", "init", "-q", "-b", "main"], [sys.executable, "-m", "dvc", "init", "-q"]):
            subprocess.run(arguments, cwd=folder, check=True)
        self.stages: dict[str, dict] = {}

    def put(self, stage: str, path: str, content: object, deps: dict[str, str] | None = None) -> str:
        data = json.dumps(content).encode()
        digest = md5(data).hexdigest()
        file = self.folder / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        entry = self.stages.setdefault(stage, {"deps": [], "outs": []})
        entry["outs"].append({"path": path, "md5": digest})
        entry["deps"] += [{"path": name, "md5": hashed} for name, hashed in (deps or {}).items()]
        return digest

    def commit(self, params: dict, ref: str | None = None) -> None:
        yaml = YAML()
        for name, content in (
            ("params.yaml", params),
            ("dvc.lock", {"schema": "2.0", "stages": self.stages}),
        ):
            with (self.folder / name).open("w") as file:
                yaml.dump(content, file)
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
        for arguments in (
            ["add", "-A"],
            ["commit", "-qm", "run"],
            *([["update-ref", ref, "HEAD"]] if ref else []),
        ):
            subprocess.run([*git, *arguments], cwd=self.folder, check=True)


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Repository:
    made = Repository(tmp_path / "project")
    monkeypatch.chdir(made.folder)
    return made


PARAMS = {
    "seed": 0,
    "loss": {"kind": "dcl"},
    "evaluations": {"knn": {"k": 20}},
    "transfers": {},
    "analyses": {},
    "baselines": {},
}


def fill(repository: Repository, top1: float, **used: object) -> None:
    repository.stages = {}
    model = repository.put("pretrain", "models/backbone.safetensors", top1)
    repository.put("pretrain", "results/pretrain.json", {"pretrain_loss": 1.0})
    repository.put(
        "pretrain",
        "results/pretrain.provenance.json",
        {"parameters": {"seed": 0, "loss": {"kind": "dcl"}, **used}},
    )
    repository.put(
        "evaluate@knn",
        "results/evaluate/knn.json",
        {"knn_top1": top1},
        {"models/backbone.safetensors": model},
    )
    repository.put(
        "evaluate@knn", "results/evaluate/knn.provenance.json", {"parameters": {"evaluations.knn": {"k": 20}}}
    )


def test_experiments_branches_and_the_workspace_are_gathered(repository) -> None:
    fill(repository, 61.0)
    repository.commit(PARAMS, ref=f"refs/exps/ab/{'c' * 38}/lucky-name")
    fill(repository, 62.0)
    repository.commit(PARAMS)
    (found, workspace, branch) = collect(print)
    assert [(e.name, e.metrics["knn_top1"]) for e in (found, workspace, branch)] == [
        ("lucky-name", 61.0),
        ("workspace", 62.0),
        ("main", 62.0),
    ]
    assert len(found.revision) == 10
    assert workspace.revision == ""
    assert [e.name for e in distinct([found, workspace, branch])] == ["lucky-name", "workspace"]


def test_what_has_not_followed_is_no_result(repository) -> None:
    """An evaluation of another model, one of other parameters, and all that hangs on such a pretraining."""
    fill(repository, 61.0)
    repository.stages["evaluate@knn"]["deps"] = [{"path": "models/backbone.safetensors", "md5": "0" * 32}]
    repository.commit(PARAMS)
    assert "knn_top1" not in collect(print)[0].metrics
    fill(repository, 61.0)
    repository.commit({**PARAMS, "evaluations": {"knn": {"k": 5}}})
    (found, _) = collect(print)
    assert "knn_top1" not in found.metrics
    assert found.problems == ["evaluate/knn was made with another evaluations.knn"]
    fill(repository, 61.0, loss={"kind": "infonce", "alpha": None})
    repository.commit(PARAMS)
    assert collect(print) == []


def test_what_cannot_be_read_stops_nothing_else(repository) -> None:
    fill(repository, 61.0)
    repository.commit(PARAMS)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "checkout", "-qb", "broken"], check=True)
    Path("dvc.lock").write_text("<<<<<<< ours\n")
    subprocess.run([*git, "commit", "-qam", "conflict"], check=True)
    subprocess.run([*git, "checkout", "-qb", "empty"], check=True)
    Path("dvc.lock").write_text("schema: '2.0'\n")
    subprocess.run([*git, "commit", "-qam", "nothing"], check=True)
    subprocess.run([*git, "checkout", "-q", "main"], check=True)
    told: list[str] = []
    assert [experiment.name for experiment in collect(told.append)] == ["workspace", "main"]
    assert told[0].startswith("broken is left out: dvc.lock holds no keys and values")


def test_names_that_come_twice_are_told_apart(repository) -> None:
    fill(repository, 61.0)
    repository.commit(PARAMS, ref=f"refs/exps/ab/{'c' * 38}/main")
    first, _, second = collect(print)
    assert first.name == "main"
    assert second.name == f"main@{second.revision}"


def test_results_that_are_not_in_the_cache_are_told(repository) -> None:
    fill(repository, 61.0)
    repository.commit(PARAMS)
    digest = repository.stages["evaluate@knn"]["outs"][0]["md5"]
    (repository.folder / ".dvc/cache/files/md5" / digest[:2] / digest[2:]).unlink()
    told: list[str] = []
    assert "knn_top1" not in collect(told.append)[0].metrics
    assert (
        told[0] == "workspace: 1 files of its results are not in DVC's cache; `dvc pull` or `dvc exp pull` it"
    )


def test_nothing_finished_is_a_sentence(repository) -> None:
    repository.stages = {}
    repository.commit(PARAMS)
    done = CliRunner().invoke(report.main, ["--all"])
    assert done.exit_code == 1
    assert done.output == "Error: no experiment has finished here yet; run one first: dvc exp run\n"
    assert not (repository.folder / "summary").exists()


def test_outside_of_a_project_is_a_sentence(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(report.main, ["--all"])
    assert done.exit_code == 1
    assert done.output.startswith("Error: you are not inside of a DVC repository")


def test_what_was_made_with_other_parameters_is_named() -> None:
    assert outdated({"parameters": {"a.b": 1, "c": 2}}, {"a": {"b": 1}, "c": 3}) == ["c"]
    assert outdated({}, {"a": 1}) == []


def curve(name: str, run: str, value: float, **changes: object) -> Experiment:
    made = experiment(name, run, {KNN: 1.0}, **changes)
    chart = Chart("by_epoch", "kNN", "epoch", "%")
    chart.add("backbone", 1, value)
    made.charts["knn_curve"] = [chart]
    return made


def test_charts_of_an_analysis_are_laid_over_each_other() -> None:
    """DCL, Fig. 4: the curves of both losses in one chart, seeds averaged; nothing that the figure does not vary."""
    runs = [f"recipe=dcl/fig4_cifar10 loss={loss}" for loss in ("infonce", "dcl")]
    found = [curve("a", runs[0], 50), curve("b", runs[1], 60), curve("c", runs[1], 64, seed=1)]
    found += [curve("short", runs[1], 10, optim__epochs=1), curve("other", runs[1], 11, optim__monitor__k=1)]
    found += [curve("part", runs[1], 12)]
    found[-1].metrics["train_images"] = 100
    html, _ = page(found, lambda run: composed(run) if "fig4_cifar10" in run else {})
    assert "infonce, backbone, epoch 1: 50<" in html
    assert "dcl, backbone, epoch 1: 62 ± 2.83<" in html
    assert html.count("backbone, epoch 1:") == 2
    assert "short fills no cell: recipe dcl/fig4_cifar10 with another optim.epochs." in html
    assert "part fills no cell: recipe dcl/fig4_cifar10 with another number of images (105, 10000)." in html


def test_a_part_of_the_data_answers_no_paper() -> None:
    small, other = (
        experiment(name, TABLE3, {KNN: 80.0}, seed=seed) for name, seed in (("small", 0), ("other", 1))
    )
    assert answer([small], "dcl", "Table 3", "DCL").ours.mean == 80
    small.metrics["train_images"] -= 1
    assert answer([small], "dcl", "Table 3", "DCL").ours is None
    assert measured([small, other], KNN).n == 2
    other.provenance["prepare"]["data_manifest_sha256"] = "e"
    assert measured([small, other], KNN).names == ["small"], "no mean over different data"


def test_a_sweep_keeps_protocols_and_data_apart() -> None:
    ks = [20, 20, 200]
    found = [
        experiment(f"{n}", TABLE3, {KNN: 50 + n}, optim__batch_size=32 * 2**n, evaluations__knn_200__k=k)
        for n, k in enumerate(ks)
    ]
    (chart,) = sweeps(found)
    assert [(point.x, point.y) for points in chart.series.values() for point in points] == [
        (32, 50),
        (64, 51),
    ]
    found[1].provenance["prepare"]["data_manifest_sha256"] = "e"
    assert not list(sweeps(found))


def test_repeats_of_a_baseline_are_counted() -> None:
    metrics = {"random_coco_fpn_box_ap": 31.0, "random_coco_fpn_box_ap_sd": 0.3, "random_coco_fpn_n": 5}
    found = measured([experiment("r", "recipe=eqco/table8", metrics)], "random_coco_fpn_box_ap", "random")
    assert (found.mean, found.sd, found.n) == (31.0, 0.3, 5)
