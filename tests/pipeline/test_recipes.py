"""Every recipe: what its header promises composes, validates, and builds its model."""

import functools
import itertools
import re
import shlex
import tempfile
from pathlib import Path

import pytest
import torch

from cl import config
from cl.methods import Setup
from cl.networks import backbones
from cl.runtime.kinds import module_of
from tests.support.project import ROOT, compose

FOLDER = ROOT / "pipeline" / "conf" / "recipe"
RECIPES = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.yaml"))


def header(recipe: str) -> list[str]:
    lines = (FOLDER / f"{recipe}.yaml").read_text().splitlines()
    return [line.removeprefix("#") for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]


@functools.cache
def chosen(override: str) -> dict:
    """What a choice of a group brings without the recipe."""
    with tempfile.TemporaryDirectory() as folder:
        return compose(Path(folder), override)


def commands(recipe: str) -> list[list[str]]:
    """The overrides of every command of the header; of a sweep's values the first and the last."""
    found = []
    for line in header(recipe):
        if line.strip().startswith("dvc exp run"):
            words = shlex.split(line)
            overrides = [words[i + 1] for i, word in enumerate(words) if word == "-S"]
            swept = [values(override) for override in overrides]
            assert ("--queue" in words) == any(len(v) > 1 for v in swept), line
            found += [list(choice) for choice in {tuple(v[0] for v in swept), tuple(v[-1] for v in swept)}]
    return found


def values(override: str) -> list[str]:
    key, value = override.split("=", 1)
    return [override] if value.startswith("[") else [f"{key}={part}" for part in value.split(",")]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_what_its_header_says(tmp_path: Path, recipe: str) -> None:
    text = "\n".join(header(recipe))
    assert "Run, and what the paper reports:" in text
    assert re.search(r"^ Cost: .+", text, re.MULTILINE)
    runs = commands(recipe)
    assert runs
    for overrides in runs:
        assert f"recipe={recipe}" in overrides
        composed = compose(tmp_path, *overrides)
        params = config.check(composed)
        assert params.recipe == recipe
        for override in overrides[1:]:
            key = override.split("=")[0]
            if key in ("loss", "method", "views"):
                inside = any(other.startswith(f"{key}.") for other in overrides)
                assert inside or composed[key] == chosen(override)[key], f"the recipe changes {override}"
        with torch.device("meta"):
            setup = Setup(
                backbones.build(params.backbone), params.temperature, params.patches, params.bn_groups, 0, 1
            )
            method = module_of("methods", params.method.kind).Method(params.method, setup)
        assert all(parameter.is_meta for parameter in method.parameters())


def test_the_rows_that_the_papers_ran_have_a_recipe() -> None:
    small = ("cifar10", "cifar100", "stl10")
    rows = {
        "eqco": [
            *(
                "fig1",
                "fig2_moco",
                "fig2_moco_v2",
                "fig2_simclr",
                "fig3",
                "fig4",
                "table1",
                "table3",
                "table4",
                "table5",
            ),
            *(
                "table2_k16",
                "table2_k256",
                "table2_k256_a65536",
                "table2_800",
                "table6",
                "table7_2x",
                "table7_4x",
                "table8",
            ),
        ],
        "dcl": [
            *("fig1", "fig3_simclr", "fig3_moco", *(f"fig4_{name}" for name in small)),
            *(f"table1_{name}" for name in (*small, "imagenet100")),
            *(f"table2_{name}" for name in small),
            *(
                f"table3_{name}"
                for name in ("cifar10", "cifar100", "imagenet100", "imagenet", "imagenet_sgd")
            ),
            *("table4_simclr", "table4_moco_v2"),
        ],
        "jcl": ["fig2a", "fig2b", "fig2c", "visualisation", "imagenet", "vanilla"],
        "fast_moco": [
            *(
                "fig1",
                "fig2",
                "table1",
                "table1_20",
                "table2",
                "table3_nnclr",
                "table3_byol",
                "table3_simsiam",
                "table4",
            ),
            *("choose3", "multicrop", "adamw", "adamw_moco_v3"),
        ],
    }
    assert sorted(f"{paper}/{row}" for paper, names in rows.items() for row in names) == RECIPES


@pytest.mark.parametrize("loss", ["infonce", "dcl", "dclw"])
@pytest.mark.parametrize("recipe", ["eqco/table2_k16", "dcl/table3_cifar10", "fast_moco/table1"])
def test_a_recipe_yields_to_another_loss(tmp_path: Path, recipe: str, loss: str) -> None:
    params = config.check(compose(tmp_path, f"recipe={recipe}", f"loss={loss}", "optim.batch_size=64"))
    assert (params.loss.kind, params.optim.batch_size) == (loss, 64)


def test_protocols_of_the_papers(tmp_path: Path) -> None:
    """What the papers state, on the composed parameters: one line of each that is easily lost in inheritance."""

    def params(recipe: str) -> config.Params:
        return config.check(compose(tmp_path, f"recipe={recipe}"))

    moco = params("eqco/table6")
    assert (moco.optim.lr(), moco.optim.schedule, moco.optim.per, moco.bn_groups) == (
        0.03,
        "cosine",
        "epoch",
        8,
    )
    assert moco.method.ema.momentum == 0.999
    simo = params("eqco/table2_k16")
    assert (simo.optim.schedule, simo.optim.warmup_start, simo.bn_group) == ("cosine_whole", 0.001, "global")
    assert (simo.method.negatives, simo.loss.alpha, simo.temperature, simo.backbone.zero_init_residual) == (
        16,
        256,
        0.2,
        True,
    )
    dcl = params("dcl/table3_imagenet")
    assert (dcl.optim.kind, dcl.optim.lars.norm, dcl.optim.lars.order) == ("lars", "parts", "ratio_rate")
    assert (dcl.optim.decay_1d, dcl.optim.weight_decay, dcl.temperature) == (False, 1e-6, 0.1)
    small = params("dcl/table1_stl10")
    assert (small.dataset.kind, small.backbone.stem, small.temperature, small.optim.lr()) == (
        "stl10",
        "small",
        0.07,
        0.03,
    )
    assert small.view_sizes == [96, 96]
    jcl = params("jcl/visualisation")
    assert (jcl.method.positives(len(jcl.view_sizes)), jcl.loss.strength, jcl.optim.lr(), jcl.bn_groups) == (
        9,
        4.0,
        0.1,
        8,
    )
    v3 = params("fast_moco/adamw_moco_v3")
    assert v3.method.scale == 4 * v3.temperature  # 2 temperature times the sum of both directions
    fast = params("fast_moco/table1")
    assert (fast.optim.lr(), fast.optim.warmup_start, fast.optim.clip, fast.optim.predictor_lr) == (
        0.1,
        0.25,
        1.0,
        "fixed",
    )
    assert (fast.temperature, fast.method.ema.schedule, fast.patches.kind) == (1.0, "constant", "combine")
    assert [view.interpolation for view in fast.views.values()] == ["bicubic"]
