"""The commands of the documentation, run in their order with a user's images, at small sizes."""

import functools
import json
import re
import shlex
import shutil

import pytest

from tests.support import documentation, pictures
from tests.support.clone import KNN, Clone, finished
from tests.support.project import ROOT

FIRST_PAGE, *OTHER_PAGES = "README.md", "docs/photographs.md", "docs/encoder.md", "docs/experiments.md"
# They need public data, a program that is not installed, or the name of an experiment.
LEFT_OUT = re.compile(r"^git clone|cifar10|^embedding-atlas|start_from=<experiment>")
PUBLISHED, STAND_IN = "torchvision:resnet50", "start.safetensors"
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
    for link in ("birds", "leaves"):
        (home / link).symlink_to(birds)
    for link in ("more", home / "new"):
        (clone.folder / link).symlink_to(birds / "val/wren")
    (clone.folder / ".venv").mkdir()
    (clone.folder / ".venv/installed").touch()
    shutil.copy(birds / "labels.csv", clone.folder / "labels.csv")
    shutil.copy(clone.folder / "models/backbone.safetensors", clone.folder / STAND_IN)
    robin = pictures.picture_file(clone.folder / "robin.jpg")
    (clone.folder / "list.txt").write_text(f"{robin}\n")
    (clone.folder / "table.csv").write_text(f"path\n{robin}\n")
    return clone


def lines(page: str) -> list[str]:
    """The lines of the page's shell blocks, with options that make runs small."""
    found = "".join(documentation.blocks(ROOT / page, "sh")).replace("\\\n", " ").splitlines()
    return [_small(line) for line in found if not LEFT_OUT.search(line)]


def _small(line: str) -> str:
    settings = SMALL_OWN if "recipe=own/" in line else SMALL
    options = shlex.join(argument for setting in settings for argument in ("-S", setting))
    return re.sub(r"dvc exp run(?! --run-all)", rf"\g<0> {options}", line).replace(PUBLISHED, STAND_IN)


def run(clone: Clone, line: str) -> str:
    variables = {"HOME": str(clone.folder.parent), "COLUMNS": "200"}
    said = clone.run("bash", "-c", line, environ=variables)
    assert "Traceback" not in said, said
    return said


@pytest.fixture(scope="module")
def after_first_page(clone) -> Clone:
    """The README's commands, then its commit and `make repro` once more."""
    first = lines(FIRST_PAGE)
    (commit,) = [line for line in first if line.startswith("git add")]
    for line in [*first, commit, "make repro"]:
        run(clone, line)
    return clone


@pytest.mark.slow
def test_each_number_of_the_table_is_of_the_parameters_beside_it(after_first_page) -> None:
    from dvc import api  # slow to import

    header, *rows = [line for line in run(after_first_page, "make table").splitlines() if "  " in line]
    columns, found = header.split()[1:], []
    for row in rows:
        read = functools.partial(api.read, repo=str(after_first_page.folder), rev=re.findall(r"\w+", row)[0])
        shown = dict(zip(columns, row.split()[-len(columns) :], strict=True))
        made_by = json.loads(read("results/pretrain.provenance.json"))["parameters"]
        data = json.loads(read("results/prepare.provenance.json"))["parameters"]["dataset"]
        parameters = [data["kind"], made_by["method"]["kind"], made_by["loss"]["kind"], str(made_by["seed"])]
        assert [shown[key] for key in ("dataset.kind", "method.kind", "loss.kind", "seed")] == parameters
        if data["kind"] == "photos":
            number = json.loads(read("results/evaluate/knn.json"))["knn_top1"]
            assert float(shown["knn_top1"]) == pytest.approx(number, rel=1e-4)
            found.append(" ".join(parameters[1:]))
        else:
            assert shown["knn_top1"] == "-", "no labels"
    assert sorted(found) == ["moco dcl 1", "moco dcl 1", "simclr dcl 0", "simclr infonce 0"]


@pytest.mark.slow
@pytest.mark.parametrize("page", OTHER_PAGES)
def test_every_command_of_a_page_runs(after_first_page, page) -> None:
    for line in lines(page):
        run(after_first_page, line)
