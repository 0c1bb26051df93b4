"""The pipeline as a user runs it: DVC in a fresh copy of the project, at the smallest sizes."""

import ast
import json
import os
import resource
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from cl.config import kinds, load, read
from cl.data.reader import Reader
from cl.evaluations import knn
from cl.exchange import export
from cl.networks import backbones
from cl.runtime.tensor_files import load_tensors
from pipeline.compose import compose
from tests.exchange.test_foreign import detectron2_network
from tests.support.project import ROOT, TINY
from tests.support.tiny import evaluated

SIZES = [
    *TINY,
    "dataset.scenes.train=8",
    "dataset.scenes.val=4",
    "optim.monitor.k=5",
    "optim.monitor.bank=40",
    "optim.monitor.queries=20",
    "evaluation=[knn]",
    "evaluations.knn.k=5",
    "transfer=[voc_c4]",
    "transfers.voc_c4.iterations=2",
    "transfers.voc_c4.batch_size=2",
    "transfers.voc_c4.reference_batch=2",
    "transfers.voc_c4.milestones=[]",
    "transfers.voc_c4.warmup=0",
    "transfers.voc_c4.precise_bn=1",
    "analysis=[neighbours]",
    "baseline=[random]",
]


def environment() -> dict[str, str]:
    """The stages call plain `python`, so this interpreter's folder comes first."""
    own = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "DVC_NO_ANALYTICS": "1"}
    return {
        **os.environ,
        **own,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@t.t",
    } | {
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@t.t",
    }


class Clone:
    """A copy of the project under Git."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: str, code: int = 0) -> str:
        result = subprocess.run(arguments, cwd=self.folder, env=environment(), capture_output=True, text=True)
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr

    def dvc(self, *arguments: str, code: int = 0) -> str:
        return self.run("dvc", *arguments, code=code)

    def exp(self, *overrides: str, options: tuple[str, ...] = (), code: int = 0) -> str:
        settings = [argument for override in [*SIZES, *overrides] for argument in ("-S", override)]
        return self.dvc("exp", "run", *options, *settings, code=code)

    def files(self) -> dict[Path, int]:
        """Every file outside .git with the time of its last change."""
        paths = [path for path in self.folder.rglob("*") if path.is_file() and ".git" not in path.parts]
        return {path: path.stat().st_mtime_ns for path in paths}

    def metrics(self, name: str) -> dict[str, float]:
        return json.loads((self.folder / "results" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def clone(project, tmp_path_factory) -> Clone:
    """After `dvc repro`, committed."""
    folder = tmp_path_factory.mktemp("dvc") / "project"
    shutil.copytree(project, folder)
    clone = Clone(folder)
    compose(folder / "params.yaml", SIZES)
    clone.run("git", "init", "-q")
    clone.run("git", "add", "-A")
    clone.run("git", "commit", "-qm", "start")
    began = time.monotonic()
    clone.output = clone.dvc("repro")
    clone.seconds = time.monotonic() - began
    clone.run("git", "add", "dvc.lock")
    clone.run("git", "commit", "-qm", "first run")
    return clone


def test_repro_runs_every_stage_to_a_report(clone) -> None:
    for stage in (
        "prepare",
        "pretrain",
        "evaluate@knn",
        "transfer@voc_c4",
        "analyze@neighbours",
        "baseline@random",
    ):
        assert f"Running stage '{stage}'" in clone.output
    assert clone.output.rindex("Running stage 'report'") > clone.output.rindex(
        "Running stage 'baseline@random'"
    )
    page = (clone.folder / "report" / "index.html").read_text()
    knn = clone.metrics("evaluate/knn")
    assert f"<b>{knn['knn_top1']:.1f}</b>" in page
    assert "http://www.w3.org" not in page.replace("http://www.w3.org/2000/svg", "").replace(
        "http://www.w3.org/1999/xlink", ""
    )
    assert page.count("<img") == page.count("data:image/png;base64,") == 3
    assert clone.run("git", "status", "--porcelain") == ""


def test_metrics_are_named_uniquely_and_have_provenance(clone) -> None:
    names: list[str] = []
    for path in (clone.folder / "results").rglob("*.json"):
        if path.name.endswith(".provenance.json"):
            provenance = json.loads(path.read_text())
            told = {
                "parameters",
                "parameters_sha256",
                "data_manifest_sha256",
                "recipe",
                "seed",
                "commit",
                "uncommitted_changes",
            }
            assert told | {"versions", "hardware", "seconds", "finished", "energy_joules"} <= set(provenance)
        else:
            assert path.with_name(f"{path.stem}.provenance.json").exists()
            names += json.loads(path.read_text())
    assert len(set(names)) == len(names)
    assert {
        "knn_top1",
        "voc_c4_ap50",
        "random_knn_top1",
        "random_knn_pixels_top1",
        "neighbours_same_class",
    } <= set(names)


def test_a_second_repro_does_nothing(clone) -> None:
    """And takes no tenth of the time of the first, whatever the machine."""
    began = time.monotonic()
    output = clone.dvc("repro")
    assert "Data and pipelines are up to date" in output
    assert time.monotonic() - began < clone.seconds / 10


def test_a_fresh_clone_fetches_what_it_needs_and_shows_all(clone, tmp_path) -> None:
    clone.dvc("remote", "add", "--local", "-d", "store", str(tmp_path / "store"))
    clone.dvc("push")
    fresh = Clone(tmp_path / "fresh")
    clone.run("git", "clone", "-q", ".", str(fresh.folder))
    fresh.dvc("remote", "add", "--local", "-d", "store", str(tmp_path / "store"))
    page = fresh.folder / "cl/report/pages/report.md"
    page.write_text(page.read_text() + "The end.\n")
    told = fresh.dvc("repro", "--pull", "--allow-missing")
    assert told.count("> python") == 1, "only the report is made"
    assert not (fresh.folder / "data/shards").exists(), "which needs no images"
    tables = [(folder / "report/tables.md").read_text().strip() for folder in (clone.folder, fresh.folder)]
    assert tables[1] == tables[0] + "\nThe end."
    shutil.rmtree(fresh.folder / "results/evaluate")
    shutil.rmtree(fresh.folder / ".dvc/cache")
    shutil.rmtree(tmp_path / "store")
    page.write_text(page.read_text() + "The very end.\n")
    assert "evaluate/knn is in dvc.lock, but neither here nor in DVC's cache or remote" in fresh.dvc(
        "repro", "--allow-missing", code=255
    )


def test_exports_reproduce_the_stored_score(clone, here, tmp_path) -> None:
    """In torchvision's file by the commands; in the other formats by the libraries that read them, where they are there."""
    stored = clone.metrics("evaluate/knn")["knn_top1"]
    clone.run("python", "-m", "pipeline.export", "torchvision", "--to", f"{tmp_path}/ours.safetensors")
    clone.run("python", "-m", "pipeline.evaluate", "--backbone", f"{tmp_path}/ours.safetensors")
    (found,) = (json.loads(path.read_text()) for path in clone.folder.glob("others/ours-*/knn.json"))
    assert found["knn_top1"] == stored
    assert clone.run("git", "status", "--porcelain") == ""

    params = load(clone.folder / "params.yaml")
    network = backbones.load(params.backbone, clone.folder / "models/backbone.safetensors")
    readers = [Reader(clone.folder / "data/shards", split) for split in ("train", "val")]
    for name, read_back in READERS.items():
        path = tmp_path / f"{name}.{export.SUFFIXES[name]}"
        export.write(network, name, path, params.dataset.crop, {})
        try:
            theirs = read_back(path)
        except ImportError as error:
            warnings.warn(f"{name} is not installed: its round trip is not shown ({error})", stacklevel=1)
            continue
        context = evaluated(*readers, params, theirs, tmp_path, representations={}, source=params.dataset)
        assert round(knn.evaluate(params.evaluations["knn"], context)["top1"], 4) == stored, name


class Onnx(nn.Module):
    """A file of ONNX as an encoder."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        super().__init__()
        self.session = onnxruntime.InferenceSession(path)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.session.run(["features"], {"images": images.contiguous().numpy()})[0])


def timm_network(path: Path) -> nn.Module:
    import timm

    network = timm.create_model("resnet18", num_classes=0)
    network.load_state_dict(load_tensors(path)[0])
    return network


READERS = {"timm": timm_network, "onnx": Onnx, "detectron2": detectron2_network}


def test_another_loss_trains_again_but_prepares_nothing(clone) -> None:
    output = clone.exp("loss=dclw", options=("--name", "with-dclw"))
    running = [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]
    assert "pretrain" in running
    assert "evaluate@knn" in running
    assert not {"prepare", "baseline@random"} & set(running)
    shown = json.loads(clone.dvc("exp", "show", "--json"))
    assert "with-dclw" in json.dumps(shown)
    table = clone.dvc("exp", "show", "--csv", "--only-changed")
    assert "knn_top1" in table.splitlines()[0]
    assert "loss.kind" in clone.dvc("params", "diff")
    assert "dclw" in clone.dvc("params", "diff")
    assert "pretrain_loss" in clone.dvc("metrics", "diff")
    assert (clone.folder / "dvc_plots" / "index.html").exists() or "file://" in clone.dvc("plots", "show")
    clone.run(sys.executable, "-m", "pipeline.report", "--all")
    page = (clone.folder / "summary" / "index.html").read_text()
    assert '<tr id="exp-with-dclw">' in page
    assert f">{clone.metrics('evaluate/knn')['knn_top1']:.1f}<" in page
    assert clone.run("git", "status", "--porcelain", "--", "summary") == ""
    back = clone.exp("loss=dcl")
    assert "Running stage 'pretrain'" not in back
    assert "is cached - skipping run" in back


@pytest.mark.slow
def test_temporary_runs_say_what_cannot_be_resumed(clone) -> None:
    output = clone.exp("loss=infonce", options=("--temp",))
    assert "set CL_SCRATCH to an absolute folder to make it resumable" in output
    assert "Ran experiment" in output


def test_a_docstring_of_the_report_trains_nothing(clone) -> None:
    path = clone.folder / "cl/report/page.py"
    before = path.read_text()
    path.write_text(before.replace('"""One self-contained', '"""A self-contained', 1))
    changed = json.loads(clone.dvc("status", "--json"))
    path.write_text(before)
    assert set(changed) == {"report"}


def test_wrong_choices_are_answered_with_the_right_ones(clone) -> None:
    unknown = clone.exp("loss=dclx", code=255)
    assert "dclx" in unknown
    assert all(name in unknown for name in ("cosine", "dcl", "dclw", "infonce"))
    recipe = clone.exp("recipe=dcl/table9", code=255)
    assert "Could not find 'recipe/dcl/table9'" in recipe
    assert "dcl/table1_imagenet100" in recipe
    assert "losss" in clone.exp("losss=dcl", code=255)
    collapse = clone.exp("loss=cosine", code=255)
    assert "loss=cosine does not look at the negatives that method=simclr gives" in collapse
    assert "Traceback" not in collapse
    clone.run("git", "checkout", "-q", "params.yaml")


def limited(clone: Clone, stage: str, size: int, **variables: str) -> subprocess.CompletedProcess:
    """A stage that may write no file larger than `size`: what a full disk looks like to it."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    command = [sys.executable, "-m", f"pipeline.{stage}"]
    own = {**environment(), **variables, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=clone.folder, env=own, capture_output=True, text=True, preexec_fn=limit
    )


@pytest.mark.parametrize(("stage", "size"), [("prepare", 20_000), ("pretrain", 5_000_000)])
def test_a_write_that_fails_is_told_and_leaves_nothing(clone, stage, size, tmp_path) -> None:
    before = clone.files()
    result = limited(clone, stage, size, CL_SCRATCH=str(tmp_path), CL_RAW=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("Error: File too large")
    assert "Traceback" not in result.stderr
    unfinished = clone.folder / "data" / "shards.partial"  # for the next run to go on from
    assert not list(unfinished.glob("*.partial"))
    shutil.rmtree(unfinished, ignore_errors=True)
    assert clone.files() == before


def imports(path: Path) -> set[Path]:
    """The project's files that a file imports, wherever in it but for types, directly."""
    found = set()
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if ast.unparse(getattr(node, "test", node)) != "TYPE_CHECKING"]
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            base = ROOT / name.replace(".", "/")
            found |= {p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()}
    return found


# They check, show and hand over; what they hand over is tracked as parameters and outputs. `foreign` is for no stage.
GLUE = {
    f"cl/{name}.py"
    for name in ("config", "exchange/foreign", "console/progress", "console/stop", "runtime/base_config")
}
GLUE |= {f"pipeline/{name}.py" for name in ("__init__", "command", "launch", "provenance", "locations")}


def is_only_a_docstring(path: Path) -> bool:
    return len(ast.parse(path.read_text()).body) <= 1


def closure(paths: set[Path]) -> set[str]:
    """All project files behind `paths`, through imports; what is glue is neither followed nor listed."""
    todo, seen = list(paths), set()
    while todo:
        path = todo.pop()
        name = str(path.relative_to(ROOT))
        if name in GLUE or name in seen or is_only_a_docstring(path):
            continue
        seen.add(name)
        todo += imports(path)
    return seen


def declared(stage: str, group: str, kind: str) -> tuple[set[str], set[str]]:
    """The source files that dvc.yaml names for a stage of the default experiment, and those among them chosen by a kind.

    group, kind: the kind of the data set, method or loss instead of the default one.
    """
    values = read(ROOT / "params.yaml")
    values[group]["kind"] = kind
    stages = read(ROOT / "dvc.yaml")["stages"]
    entries = [None] if "do" not in stages[stage] else [*values[stages[stage]["foreach"][2:-1]].values()]
    if stage == "analyze":
        entries = [{"kind": kind} for kind in kinds("analyses")]
    files: set[str] = set()
    chosen: set[str] = set()
    for entry in entries:
        for template in stages[stage].get("do", stages[stage])["deps"]:
            dependency = template
            for key, value in {**values, "item": entry}.items():
                for choice in {"kind", "engine"} & set(value if isinstance(value, dict) else ()):
                    dependency = dependency.replace(f"${{{key}.{choice}}}", value[choice])
            found = {dependency} if dependency.endswith(".py") else set()
            if (ROOT / dependency).is_dir() and dependency.startswith("cl/"):
                found = {f"{dependency}/"}
            files |= found
            if dependency != template:
                chosen |= found
    return files, chosen


@pytest.mark.parametrize(
    "stage", ["prepare", "pretrain", "evaluate", "transfer", "analyze", "baseline", "report"]
)
def test_dependencies_are_what_a_stage_imports(stage) -> None:
    """Neither too few for any kind, or an edit goes unnoticed, nor what none imports, or it trains again for nothing."""
    listed: set[str] = set()
    needed: set[str] = set()
    packages = {"dataset": "sources", "method": "methods", "loss": "losses"}
    for group, kind in [(group, kind) for group, package in packages.items() for kind in kinds(package)]:
        files, chosen = declared(stage, group, kind)
        imported = closure({ROOT / f"pipeline/{stage}.py", *(ROOT / name for name in chosen)})
        packages = [name for name in files if name.endswith("/")]
        imported = {next((p for p in packages if name.startswith(p)), name) for name in imported}
        assert imported <= files
        listed |= files
        needed |= imported
    assert listed == needed
