"""The commands of all pages, run in their order with a user's images, at small sizes."""

import functools
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import timm
import torch

from tests.support import documentation, pictures
from tests.support.clone import KNN, Clone, finished
from tests.support.project import ROOT

README, *OTHER_PAGES = [page for page in documentation.PAGES if page.parent.name != "results"]
LEFT_OUT = re.compile(
    r"""^git\ clone|~/moco|https://|data/\*\.dvc                # they need the network,
    |=(cifar10|imagenet|dcl/|fast/)|league|voc_c4_24k|--short   # public data,
    |s3://bucket/(raw|shards)                                    # an object store,
    |^embedding-atlas|detectron2|docker|^box|^sbatch|^kubectl    # programs that are not installed""",
    re.VERBOSE,
)
STAND_INS = {
    r"torchvision:\w+|moco_v2_\w+\.pth\.tar": "start.safetensors",
    r"timm:(\S+)": r"\1.pth",
    r"CUDA_VISIBLE_DEVICES=\S*": "CUDA_VISIBLE_DEVICES=",
    r"/shared/cache": "../cache",
    r"s3://bucket/cl": "../remote",
    r"seed=[\d,]+,\d": "seed=1",
    r"optim.epochs=100": "optim.epochs=1",
    r"'analysis=\[npc,views\]'": r"\g<0> -S 'analyses.npc.batch_sizes=[32]' -S analyses.npc.anchors=64 "
    "-S analyses.views.images=10 -S analyses.views.batch_size=10",
}
# Two groups of batch norm, which MoCo shuffles between.
SMALL = [*KNN, "optim.batch_size=64", "transfer=[]", "analysis=[]", "baseline=[]"]
SMALL_OWN = ["optim.epochs=1", "optim.warmup_epochs=0", "optim.least_steps=null"]
SMALL_OWN += ["evaluation=[knn,retrieval]", "baseline=[random]"]


@pytest.fixture(scope="module")
def clone(project, tmp_path_factory) -> Clone:
    """A copy of the project after its first run, beside the images and lists that the pages name."""
    clone = finished(project, tmp_path_factory)
    clone.run("git", "reset", "-q", "HEAD~1")  # to before dvc.lock was committed
    home = clone.folder.parent
    birds = home / "pictures/birds"
    images = [f"{'train' if n % 3 else 'val'}/{('robin', 'wren')[n % 2]}/{n}.jpg" for n in range(60)]
    for seed, image in enumerate(images):
        pictures.picture_file(birds / image, seed)
    labels = [f"{image},{image.split('/')[1]}" for image in images[:30]]
    (birds / "labels.csv").write_text("\n".join(["path,label", *labels]))
    (birds / "images.csv").write_text(
        "\n".join(["path,label", *labels, *(f"{image}," for image in images[30:])])
    )
    robin = pictures.picture_file(home / "pictures/new/robin.jpg")
    links = {"birds": birds, "leaves": birds, "train": birds / "train", "test": birds / "val"}
    for link, target in {**links, "new": robin.parent, clone.folder / "more": robin.parent}.items():
        (home / link).symlink_to(target)
    (clone.folder / ".venv").mkdir()
    (clone.folder / ".venv/installed").touch()
    shutil.copy(birds / "labels.csv", clone.folder / "labels.csv")
    shutil.copy(clone.folder / "models/backbone.safetensors", clone.folder / "start.safetensors")
    for name in re.findall(r"--backbone timm:(\S+)", (ROOT / "docs/evaluation.md").read_text()):
        torch.save(timm.create_model(name).state_dict(), clone.folder / f"{name}.pth")
    robin = pictures.picture_file(clone.folder / "robin.jpg")
    (clone.folder / "list.txt").write_text(f"{robin}\n")
    (clone.folder / "table.csv").write_text(f"path\n{robin}\n")
    return clone


def lines(page: Path) -> list[str]:
    """The lines of the page's shell blocks without comments, with options that make runs small."""
    found = "".join(documentation.blocks(page, "sh")).replace("\\\n", " ").splitlines()
    found = [re.sub(r"\s+# .*", "", line) for line in found]
    # One epoch is enough, but would give experiments of the README's table equal numbers.
    settings = SMALL if page == README else [*SMALL, "optim.epochs=1"]
    return [_small(line, settings) for line in found if not LEFT_OUT.search(line)]


def _small(line: str, settings: list[str]) -> str:
    for pattern, stand_in in STAND_INS.items():
        line = re.sub(pattern, stand_in, line)
    settings = SMALL_OWN if "recipe=own/" in line else settings
    options = shlex.join(argument for setting in settings for argument in ("-S", setting))
    return re.sub(r"dvc exp run(?! --run-all)", rf"\g<0> {options}", line)


def run(clone: Clone, line: str) -> str:
    if "<experiment>" in line:
        (infonce,) = [each for each in lines(README) if "loss=infonce" in each]
        (name,) = re.findall(r"Ran experiment\(s\): (\S+)", run_once(clone, infonce))
        line = line.replace("<experiment>", name)
    variables = {"HOME": str(clone.folder.parent), "COLUMNS": "200"}
    said = clone.run("bash", "-c", line, environ=variables)
    assert not re.search("Traceback|Missing cache files", said), said
    return said


run_once = functools.cache(run)  # experiments that several pages name


@pytest.fixture(scope="module")
def after_first_page(clone) -> Clone:
    """The README's commands, then its commit and `make repro` once more."""
    first = lines(README)
    (commit,) = [line for line in first if line.startswith("git add")]
    for line in first:
        run_once(clone, line)
    for line in (commit, "make repro"):
        run(clone, line)
    return clone


@pytest.mark.slow
def test_each_number_of_the_table_is_of_the_parameters_beside_it(after_first_page) -> None:
    from dvc import api  # slow to import

    said = run(after_first_page, "make table").splitlines()
    (start,) = [number for number, line in enumerate(said) if line.startswith("experiment ")]
    columns, found = said[start].split(), []
    for row in said[start + 1 :]:
        shown = dict(zip(columns, row.split(), strict=True))
        revision = None if shown["experiment"] == "workspace" else shown["experiment"].rpartition("@")[2]
        read = functools.partial(api.read, repo=str(after_first_page.folder), rev=revision)
        made_by = json.loads(read("results/pretrain.provenance.json"))["parameters"]
        parameters = [made_by["method"]["kind"], made_by["loss"]["kind"], str(made_by["seed"])]
        assert [shown[key] for key in ("method", "loss", "seed")] == parameters
        if shown["data"] == "photos":
            number = json.loads(read("results/evaluate/knn.json"))["knn_top1"]
            assert float(shown["knn"]) == pytest.approx(number, abs=0.051)
            found.append(" ".join(parameters))
        else:
            assert shown["knn"] == "-", "no labels"
    assert set(found) == {"moco dcl 1", "simclr dcl 0", "simclr infonce 0"}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in OTHER_PAGES if lines(page)], ids=lambda page: page.stem)
def test_every_command_of_a_page_runs(after_first_page, page) -> None:
    for line in lines(page):
        (run_once if "dvc exp run" in line else run)(after_first_page, line)
