"""Every recipe: the commands in its header compose, validate and build a model."""

import itertools
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import torch

from cl import config
from cl.methods import Setup
from cl.networks import backbones
from cl.report import paper_tables
from cl.runtime.registry import module_of
from tests.support.documentation import runs
from tests.support.project import ROOT, compose

FOLDER = ROOT / "pipeline" / "conf" / "recipe"
RECIPES = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.yaml"))


def header(recipe: str) -> list[str]:
    lines = (FOLDER / f"{recipe}.yaml").read_text().splitlines()
    return [line.removeprefix("#") for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]


def commands(recipe: str) -> list[list[str]]:
    """The overrides of every command in the header; a sweep gives two, with its first and its last values."""
    result = []
    for line in header(recipe):
        if line.strip().startswith("dvc exp run"):
            result += runs(shlex.split(line))
    return result


def is_fast(recipe: str, number: int) -> bool:
    """The first of each of our own recipes, and of one per paper: test_paper_tables composes the others."""
    folder = recipe.partition("/")[0]
    alike = [other for other in RECIPES if other.startswith(f"{folder}/")]
    return number == 0 and (folder in ("own", "fast") or recipe in alike[:1])


COMMANDS = [
    pytest.param(
        recipe, overrides, id=" ".join(overrides), marks=[pytest.mark.slow] * (not is_fast(recipe, number))
    )
    for recipe in RECIPES
    for number, overrides in enumerate(commands(recipe))
]


@pytest.mark.parametrize(("recipe", "overrides"), COMMANDS)
def test_a_command_in_a_recipe_s_header_composes_and_builds(tmp_path, recipe, overrides) -> None:
    composed = compose(tmp_path, *overrides)
    params = config.check(composed)
    assert params.recipe == recipe
    for override in overrides[1:]:
        key = override.split("=")[0]
        if key in ("loss", "method", "views"):
            inside = any(other.startswith(f"{key}.") for other in overrides)
            assert inside or composed[key] == compose(tmp_path, override)[key], (
                f"the recipe changes {override}"
            )
    with torch.device("meta"):
        setup = Setup(
            backbones.build(params.backbone), params.temperature, params.patches, params.bn_groups, 0, 1
        )
        method = module_of("methods", params.method.kind).Method(params.method, setup)
    assert all(parameter.is_meta for parameter in method.parameters())


def sets_entries(recipe: str) -> bool:
    """Whether a recipe, or one that it builds on, has settings for evaluations, transfers and the like."""
    text = (FOLDER / f"{recipe}.yaml").read_text()
    settings = re.search(r"^(evaluations|transfers|analyses|baselines):", text, re.MULTILINE)
    return bool(settings) or any(map(sets_entries, re.findall(r"- /recipe/(\S+)", text)))


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, marks=[] if sets_entries(recipe) else pytest.mark.slow, id=recipe)
        for recipe in RECIPES
    ],
)
def test_any_recipe_composes_with_little_to_evaluate(tmp_path, recipe) -> None:
    few = ["evaluation=[retrieval]", "transfer=[]", "analysis=[]", "baseline=[random]"]
    start = [override for override in commands(recipe)[0] if override.startswith("init=")]
    values = compose(tmp_path, f"recipe={recipe}", *start, *few)  # which are checked
    found = [list(values[group]) for group in ("evaluations", "transfers", "analyses", "baselines")]
    assert found == [["retrieval"], [], [], ["random"]]


def test_every_recipe_has_a_command() -> None:
    assert {parameters.values[0] for parameters in COMMANDS} == set(RECIPES)


def test_every_row_that_the_papers_quote_names_a_recipe() -> None:
    """Each value of a quoted row comes with a run, and each of these runs names a recipe on disk."""
    for name in paper_tables.NAMES:
        for table in paper_tables.load(name).tables:
            for row in (row for row in paper_tables.cells(table) if row[0].row.quoted):
                for cell in row:
                    assert cell.run, (name, table.name, cell.row.label)
                    assert cell.run.split()[0].removeprefix("recipe=") in RECIPES


# Learning rates that follow from a recipe's own or another batch, and from the rates of its parts.
RATES = {
    "eqco/table6": 0.03,
    "dcl/table1_stl10": 0.03,
    "jcl/visualisation": 0.1,
    "fast_moco/table1": 0.1,
    "encoders/moco_v3_vit_small": 2.4e-3,
    "quoted/barlow_twins optim.batch_size=2048": 1.6,
    "quoted/vicreg": 1.6,
    "quoted/swav": 4.8,
    "quoted/swav_b256": 0.6,
    "quoted/dino": 4.8,
    "quoted/byol": 4.8,
    "quoted/nnclr": 4.8,
    "quoted/simsiam optim.batch_size=1024": 0.2,
    "quoted/simclr": 4.8,
    "quoted/npid_imagenet": 0.03,
    "quoted/npid_cld_cifar10": 0.06,
    "quoted/moco_cld_imagenet": 0.2,
    "quoted/pirl": 0.12,
    "quoted/cpc_v2": 4e-4,
}


@pytest.mark.parametrize("run", RATES)
def test_the_learning_rate_is_that_of_the_authors(tmp_path: Path, run: str) -> None:
    assert params_of(tmp_path, run).optim.peak_lr == pytest.approx(RATES[run])


def params_of(folder: Path, run: str) -> config.Params:
    return config.check(compose(folder, *f"recipe={run}".split()))


def test_recipes_follow_the_protocols_of_the_papers(tmp_path: Path) -> None:
    """What follows from several parameters, or is easily lost when files inherit from each other."""
    params = partial(params_of, tmp_path)
    assert (params("eqco/table6").bn_groups, params("jcl/visualisation").bn_groups) == (8, 8)
    assert (params("quoted/swav").bn_groups, params("quoted/byol bn_group=256").bn_groups) == (8, 16)
    small = params("dcl/table1_stl10")
    assert (small.dataset.kind, small.backbone.stem, small.view_sizes) == ("stl10", "small", [96, 96])
    for recipe in ("dcl/table3_imagenet", "dcl/table3_imagenet_sgd"):
        optim = params(recipe).optim
        assert (optim.schedule, optim.per) == ("cosine_whole", "epoch")
        assert (optim.warmup_epochs, optim.warmup_start) == (10, 1e-4)
    jcl = params("jcl/visualisation")
    assert (jcl.method.positives(len(jcl.view_sizes)), jcl.loss.strength) == (9, 4.0)
    assert list(params("eqco/fig2_simclr").evaluations) == ["simclr_lin"]
    v3 = params("fast_moco/adamw_moco_v3")
    assert v3.method.scale == 4 * v3.temperature  # 2 * temperature, times the sum of both directions
    vit = params("encoders/moco_v3_vit_small")
    assert vit.evaluations["mocov3_vit_lin"].optim.peak_lr == pytest.approx(12)
    assert [view.interpolation for view in params("fast_moco/table1").views.values()] == ["bicubic"]
    barlow = params("quoted/barlow_twins optim.batch_size=2048")
    assert barlow.optim.peak_lr * barlow.optim.lr_scale_1d == pytest.approx(0.0048 * 8)
    swav = params("quoted/swav")
    assert swav.optim.peak_lr * swav.optim.warmup_start == pytest.approx(0.3)
    local = params("quoted/local_aggregation_imagenet").method
    assert round(1_281_167 / local.images_per_neighbour) == 4096
    assert round(1_281_167 / local.images_per_cluster) == 30_000
    for recipe, drops in (("npid_cifar10", [120, 160]), ("local_aggregation_imagenet", [152, 189])):
        optim = params(f"quoted/{recipe}").optim
        assert (optim.schedule, [round(part * optim.epochs) for part in optim.milestones]) == ("steps", drops)
