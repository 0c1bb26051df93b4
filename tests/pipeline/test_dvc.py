"""The pipeline as a user runs it: DVC in a fresh copy of the project, at the smallest sizes."""

import json
import re
import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import cl
from cl.config import load
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.features.extraction import extract
from cl.features.knn import classify, top1
from cl.networks import backbones
from cl.runtime.tensor_files import load_tensors
from cl.training import start
from pipeline.composition.compose import write
from pipeline.support.locations import transform
from tests.support.clone import KNN, SIZES, Clone, finished
from tests.support.stages import Stage, answers


@pytest.fixture(scope="module")
def clone(project, tmp_path_factory) -> Clone:
    return finished(project, tmp_path_factory)


def test_repro_runs_every_stage_to_a_report(clone) -> None:
    ran = [line.split("'")[1] for line in clone.output.splitlines() if line.startswith("Running stage")]
    stages = "prepare pretrain evaluate@knn transfer@voc_c4 analyze@neighbours baseline@random"
    assert {*stages.split()} < {*ran}
    assert ran[-1] == "report"
    page = (clone.folder / "report" / "index.html").read_text()
    knn = clone.metrics("evaluate/knn")
    assert f"<b>{knn['knn_top1']:.1f}</b>" in page
    assert "http://www.w3.org" not in page.replace("http://www.w3.org/2000/svg", "").replace(
        "http://www.w3.org/1999/xlink", ""
    )
    assert page.count("data:image/png;base64,") == 2, "views and detections"
    assert page.count("<img") - 2 == page.count("data:image/jpeg;base64,") > 8, "neighbours and worst classes"
    assert clone.run("git", "status", "--porcelain") == ""


def test_metrics_are_named_uniquely_and_have_provenance(clone) -> None:
    names: list[str] = []
    for path in (clone.folder / "results").rglob("*.json"):
        if not path.name.endswith(".provenance.json"):
            made = json.loads(path.with_name(f"{path.stem}.provenance.json").read_text())
            if made["parameters"].get("precision") == "auto":
                assert made["precision"] == "fp32", "what it became"
            if path.stem == "pretrain":
                assert made["compiled"] is False, "what auto became"
            names += json.loads(path.read_text())
    assert len(set(names)) == len(names)
    expected = "knn_top1 voc_c4_ap50 random_knn_top1 random_knn_pixels_top1 neighbours_same_class"
    assert {*expected.split()} <= {*names}


def test_a_second_repro_does_nothing(clone) -> None:
    assert re.findall(r"Running stage .(\w+)", clone.dvc("repro")) == ["check"]


@pytest.mark.slow
def test_a_fresh_clone_fetches_only_what_its_report_needs(clone, tmp_path) -> None:
    clone.dvc("remote", "add", "--local", "-d", "store", str(tmp_path / "store"))
    clone.dvc("push")
    fresh = Clone(tmp_path / "fresh")
    clone.run("git", "clone", "-q", ".", str(fresh.folder))
    fresh.dvc("remote", "add", "--local", "-d", "store", str(tmp_path / "store"))
    page = fresh.folder / "cl/report/pages/report.md"
    page.write_text(page.read_text() + "The end.\n")
    output = fresh.dvc("repro", "--pull", "--allow-missing")
    assert re.findall(r"Running stage .(\w+)", output) == ["check", "report"]
    assert not (fresh.folder / "data/shards").exists(), "it needs no images"
    tables = [(folder / "report/tables.md").read_text().strip() for folder in (clone.folder, fresh.folder)]
    assert tables[1] == tables[0] + "\nThe end."
    shutil.rmtree(fresh.folder / "results/evaluate")
    shutil.rmtree(fresh.folder / ".dvc/cache")
    shutil.rmtree(tmp_path / "store")
    page.write_text(page.read_text() + "The very end.\n")
    told = fresh.dvc("repro", "--allow-missing", code=255)
    assert "evaluate/knn is in dvc.lock, but cannot be pulled" in told


def test_exports_reproduce_the_stored_score(clone, tmp_path) -> None:
    """Through the commands, in torchvision's format; the other formats have tests of their own."""
    stored = clone.metrics("evaluate/knn")["knn_top1"]
    ours = str(tmp_path / "ours.safetensors")
    stages = [
        Stage(("export", "torchvision", "--to", ours), package="cl.commands"),
        Stage(("evaluate", "--backbone", ours)),
    ]
    for answer in answers(clone.folder, stages):
        assert answer.code == 0, answer.stderr
    (result,) = clone.folder.glob("others/ours-*/knn.json")
    assert json.loads(result.read_text())["knn_top1"] == stored
    own = clone.folder / "results/evaluate/knn.provenance.json"
    keys = {json.loads(path.read_text())["run_key"] for path in (result.with_suffix(".provenance.json"), own)}
    assert len(keys) == 2, "a foreign encoder is another run"
    assert clone.run("git", "status", "--porcelain") == ""


def test_cl_load_gives_the_features_and_the_score_of_the_pipeline(clone, here, tmp_path) -> None:
    """From the image files that the shards contain, with the transform that the backbone's file records."""
    params = load(clone.folder / "params.yaml")
    path = clone.folder / "models/backbone.safetensors"
    encoder, network = cl.load(path), here.place(backbones.load(params.backbone, path))
    features, labels = [], []
    for split in ("train", "val"):
        reader = Reader(clone.folder / "data/shards", split)
        files = [tmp_path / f"{split}-{position}.png" for position in range(len(reader))]
        for position, file in enumerate(files):
            file.write_bytes(reader.read(position))
        features.append(encoder.embed(files, batch_size=len(files)))
        labels.append(torch.from_numpy(reader.labels()))
        torch.testing.assert_close(
            features[-1], extract(network, EvalSet(reader, transform(params.dataset)), here)
        )
    bank, queries = (F.normalize(x, dim=1) for x in features)
    config: Any = params.evaluations["knn"]
    predicted = classify(
        queries,
        bank,
        labels[0],
        len(reader.manifest.classes),
        k=[config.k],
        temperature=config.temperature,
    )
    assert round(top1(predicted[0], labels[1]), 4) == clone.metrics("evaluate/knn")["knn_top1"]


def test_a_docstring_of_the_report_and_other_overrides_for_the_same_parameters_train_nothing(clone) -> None:
    path = clone.folder / "cl/report/page.py"
    before = path.read_text()
    path.write_text(before.replace('"""One self-contained', '"""A self-contained', 1))
    clone.run("python", "-m", "pipeline.compose", *SIZES, "seed=0")
    changed = json.loads(clone.dvc("status", "--json"))
    path.write_text(before)
    clone.run("git", "checkout", "-q", "params.yaml")
    assert set(changed) == {"check", "report"}


def test_other_detection_data_runs_transfers_again(clone) -> None:
    summary = clone.folder / "data/detection/voc_c4.txt"
    summary.unlink()  # a link into the cache
    summary.write_text("other\n")
    changed = json.loads(clone.dvc("status", "--json"))
    clone.dvc("checkout", "--force", "data/detection")
    assert set(changed) == {"check", "transfer@voc_c4", "baseline@random"}


@pytest.fixture(scope="module")
def dclw(clone) -> list[str]:
    """The overrides of a second experiment, with-dclw, which has run."""
    overrides = [*KNN, "transfer=[]", "analysis=[]", "baseline=[]", "loss=dclw"]
    output = clone.exp(*overrides, options=("--name", "with-dclw"))
    running = [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]
    assert "pretrain" in running
    assert "evaluate@knn" in running
    assert "No file hash info" not in output
    assert "is empty" not in output
    assert "open report/index.html" in output
    assert not {"prepare", "baseline@random"} & set(running)
    return overrides


def test_another_loss_trains_again_without_preparing_again(clone, dclw, tmp_path) -> None:
    write(tmp_path / "params.yaml", dclw)
    assert (clone.folder / "params.yaml").read_text() == (tmp_path / "params.yaml").read_text()
    assert "-S loss=dclw</pre>" in (clone.folder / "report/index.html").read_text()
    header, *rows = clone.run("make", "--no-print-directory", "-o", ".venv/installed", "table").splitlines()
    assert header.split() == ["experiment", "data", "method", "loss", "seed", "knn", "voc_c4"]
    (row,) = [line for line in rows if line.startswith("with-dclw ")]
    assert row.split()[1:5] == ["photos", "simclr", "dclw", "0"]
    assert row.split()[6:] == ["-"], "it has no transfer"


@pytest.mark.slow
def test_dvc_and_the_summary_compare_two_losses(clone, dclw) -> None:
    """And the first needs no second training."""
    changes = clone.dvc("params", "diff")
    assert "loss.kind" in changes
    assert "dclw" in changes
    assert "pretrain_loss" in clone.dvc("metrics", "diff")
    assert (clone.folder / "dvc_plots" / "index.html").exists() or "file://" in clone.dvc("plots", "show")
    clone.run("python", "-m", "pipeline.report", "--all")
    page = (clone.folder / "summary" / "index.html").read_text()
    assert '<tr id="exp-with-dclw">' in page
    assert f">{clone.metrics('evaluate/knn')['knn_top1']:.1f}<" in page
    assert clone.run("git", "status", "--porcelain", "--", "summary") == ""
    back = clone.exp(*SIZES)
    assert "Running stage 'pretrain'" not in back
    assert "is cached - skipping run" in back


@pytest.mark.slow
def test_a_run_starts_from_the_backbone_of_an_experiment_or_continues_one(clone, dclw) -> None:
    """Both are found in DVC's cache by the hashes that composing puts beside the names."""

    def stages(*arguments: str, names: tuple[str, ...] = ("weights",), code: int = 0) -> str:
        clone.run("python", "-m", "pipeline.compose", *SIZES, "loss=dclw", *arguments)
        return [clone.run("python", "-m", f"pipeline.{name}", code=code) for name in names][-1]

    first, _ = load_tensors(clone.folder / "models" / "backbone.safetensors")
    stages("init=HEAD")
    given = start.load(clone.folder / "models" / "start.safetensors").tensors
    assert given.keys() == {f"backbone.{name}" for name in first}
    assert all(torch.equal(given[f"backbone.{name}"], tensor) for name, tensor in first.items())
    continued = stages("start_from=with-dclw", names=("weights", "pretrain"))
    assert re.search(r"epoch 4/4, ", continued)
    provenance = json.loads((clone.folder / "results/pretrain.provenance.json").read_text())
    assert (provenance["parent"]["name"], provenance["parent"]["licence"]) == ("with-dclw", "unknown")
    cached = clone.folder / ".dvc/cache/files/md5" / provenance["parent"]["hashes"][0][4:6]
    shutil.move(cached, clone.folder / "moved")
    assert "the weights of with-dclw are neither in DVC's cache nor in its remote" in stages(
        "start_from=with-dclw", code=1
    )
    shutil.move(clone.folder / "moved", cached)
    other = clone.run("python", "-m", "pipeline.compose", *SIZES, "start_from=with-dclw", code=1)
    assert "start_from=with-dclw was trained with loss={'kind': 'dclw'" in other
    unknown = clone.run("python", "-m", "pipeline.compose", "start_from=1234567", code=1)
    assert "must be the name of an experiment, a branch or a commit; nothing is called '1234567'" in unknown
    clone.run("git", "checkout", "-q", "params.yaml")
    clone.dvc("checkout", "--force")
    assert clone.dvc("status").split() == ["check:", "always", "changed"]
