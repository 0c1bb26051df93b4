"""Every recipe: the commands in its header compose, validate and build a model."""

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cl import config
from cl.methods import Setup
from cl.networks import backbones
from cl.objective.batch import Batch
from cl.report import paper_tables
from cl.runtime.machine import Machine
from cl.runtime.registry import module_of
from pipeline.pretrain import build
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


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_commands_in_a_recipe_s_header_compose_and_build(tmp_path: Path, recipe: str) -> None:
    found = commands(recipe)
    assert found
    for overrides in found:
        assert f"recipe={recipe}" in overrides
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


SMALL_IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "stl10": 105_000}
PEAKS = {"fp32": 67, "tf32": 494, "bf16": 989}  # of an H200, in TFLOP/s


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_cost_of_small_images_is_calculated_from_operations(tmp_path: Path, recipe: str) -> None:
    """In convolutions and matrix products, forward and backward."""
    params = config.check(compose(tmp_path, f"recipe={recipe}"))
    images, few = SMALL_IMAGES.get(params.dataset.kind), 4
    if not images:
        pytest.skip("large images")
    changes = {"batch_size": few, "microbatches": 1}
    method = {"shuffle": False} if getattr(params.method, "shuffle", False) else {}
    small = params.model_copy(
        update={
            "optim": params.optim.model_copy(update=changes),
            "method": params.method.model_copy(update=method),
            "bn_group": "global",
        }
    )
    task = build(small, Machine(torch.device("cpu"), 0, "fp32"), images).train()
    views = [
        torch.rand(few, 3, view.size, view.size) for view in small.views.values() for _ in range(view.count)
    ]
    with FlopCounterMode(display=False) as counter:
        task.begin_step(0, 0.0)
        task.begin_epoch(0)
        task(Batch(views, torch.zeros(few), torch.arange(few))).backward()
    batch = params.optim.batch_size
    operations = counter.get_total_flops() / few * params.optim.epochs * (images // batch * batch)
    (cost,) = [line for line in header(recipe) if line.startswith(" Cost: ")]
    (printed,) = re.findall(r"([\d.]+) EFLOP per run; with 30 % of an H200's peak", cost)
    assert float(printed) == pytest.approx(operations / 1e18, rel=0.05)
    for precision, peak in PEAKS.items():
        (hours,) = re.findall(rf"([\d.]+) h in {precision}", cost)
        assert float(hours) == pytest.approx(operations / (0.3e12 * peak) / 3600, rel=0.06)


def test_every_row_that_the_papers_quote_names_a_recipe() -> None:
    """Each value of a quoted row comes with a run, and each of these runs names a recipe on disk."""
    for name in paper_tables.NAMES:
        for table in paper_tables.load(name).tables:
            for row in (row for row in paper_tables.cells(table) if row[0].row.quoted):
                for cell in row:
                    assert cell.run, (name, table.name, cell.row.label)
                    assert cell.run.split()[0].removeprefix("recipe=") in RECIPES


@pytest.mark.parametrize("loss", ["infonce", "dcl", "dclw"])
@pytest.mark.parametrize("recipe", ["eqco/table2_k16", "dcl/table3_cifar10", "fast_moco/table1"])
def test_a_recipe_allows_another_loss(tmp_path: Path, recipe: str, loss: str) -> None:
    params = config.check(compose(tmp_path, f"recipe={recipe}", f"loss={loss}", "optim.batch_size=64"))
    assert (params.loss.kind, params.optim.batch_size) == (loss, 64)


def test_recipes_follow_the_protocols_of_the_papers(tmp_path: Path) -> None:
    """The settings of each paper that are easily lost when files inherit from each other."""

    def params(recipe: str) -> config.Params:
        return config.check(compose(tmp_path, f"recipe={recipe}"))

    moco = params("eqco/table6")
    assert (moco.optim.lr(), moco.optim.schedule, moco.optim.per) == (0.03, "cosine", "epoch")
    assert (moco.bn_groups, moco.method.ema.momentum) == (8, 0.999)
    simo = params("eqco/table2_k16")
    assert (simo.optim.schedule, simo.optim.warmup_start, simo.bn_group) == ("cosine_whole", 0.001, "global")
    assert (simo.method.negatives, simo.loss.alpha, simo.temperature) == (16, 256, 0.2)
    assert simo.backbone.zero_init_residual
    dcl = params("dcl/table3_imagenet")
    assert (dcl.optim.kind, dcl.optim.lars.norm, dcl.optim.lars.order) == ("lars", "parts", "ratio_rate")
    assert (dcl.optim.decay_1d, dcl.optim.weight_decay, dcl.temperature) == (False, 1e-6, 0.1)
    for schedule in (dcl.optim, params("dcl/table3_imagenet_sgd").optim):
        assert (schedule.schedule, schedule.per) == ("cosine_whole", "epoch")
        assert (schedule.warmup_epochs, schedule.warmup_start) == (10, 1e-4)
    small = params("dcl/table1_stl10")
    assert (small.dataset.kind, small.backbone.stem, small.view_sizes) == ("stl10", "small", [96, 96])
    assert (small.temperature, small.optim.lr()) == (0.07, 0.03)
    jcl = params("jcl/visualisation")
    assert (jcl.method.positives(len(jcl.view_sizes)), jcl.loss.strength) == (9, 4.0)
    assert (jcl.optim.lr(), jcl.bn_groups, jcl.method.projector.hidden) == (0.1, 8, [512])
    negatives = params("eqco/fig2_simclr")
    assert (list(negatives.evaluations), negatives.optim.kind) == (["simclr_lin"], "sgd")
    v3 = params("fast_moco/adamw_moco_v3")
    assert v3.method.scale == 4 * v3.temperature  # 2 * temperature, times the sum of both directions
    vit = params("encoders/moco_v3_vit_small")
    assert (vit.optim.lr(), vit.optim.weight_decay, vit.optim.warmup) == (pytest.approx(2.4e-3), 0.1, 40)
    assert (vit.temperature, vit.method.scale, vit.optim.decay_1d) == (0.2, 0.8, True)
    assert (vit.method.projector.hidden, vit.method.predictor.last_norm) == ([4096, 4096], "plain")
    assert [(view.area[0], view.interpolation) for view in vit.views.values()] == [(0.08, "bilinear")] * 2
    assert vit.evaluations["mocov3_vit_lin"].optim.lr() == pytest.approx(12)
    fast = params("fast_moco/table1")
    assert (fast.optim.lr(), fast.optim.warmup_start, fast.optim.clip) == (0.1, 0.25, 1.0)
    assert (fast.optim.predictor_lr, fast.temperature) == ("fixed", 1.0)
    assert (fast.method.ema.schedule, fast.patches.kind) == ("constant", "combine")
    assert [view.interpolation for view in fast.views.values()] == ["bicubic"]


def test_recipes_of_quoted_systems_follow_their_authors(tmp_path: Path) -> None:
    """Learning rates of the batches that the headers name, and what a method's own file does not say."""

    def params(recipe: str, *overrides: str) -> config.Params:
        return config.check(compose(tmp_path, f"recipe=quoted/{recipe}", *overrides))

    barlow = params("barlow_twins", "optim.batch_size=2048")
    assert barlow.optim.lr() == pytest.approx(1.6)
    assert barlow.optim.lr() * barlow.optim.lr_scale_1d == pytest.approx(0.0048 * 8)
    assert (barlow.optim.final, barlow.method.scale, barlow.optim.warmup_epochs) == (0.001, 1 / 16, 10)
    vicreg = params("vicreg")
    assert (vicreg.optim.lr(), vicreg.method.scale) == (pytest.approx(1.6), 1.0)
    swav = params("swav")
    assert (swav.optim.lr(), swav.optim.lars.adapt_1d, swav.bn_groups) == (pytest.approx(4.8), True, 8)
    assert swav.optim.lr() * swav.optim.warmup_start == pytest.approx(0.3)
    assert (swav.view_sizes, swav.method.queue) == ([224] * 2 + [96] * 6, None)
    small = params("swav_b256")
    assert (small.optim.lr(), small.optim.warmup, small.bn_groups) == (0.6, 0, 1)
    assert (small.method.queue, small.method.queue_epoch, small.method.prototypes) == (3840, 15, 3000)
    dino = params("dino")
    assert (dino.optim.lr(), dino.method.ema.momentum) == (pytest.approx(4.8), 0.996)
    assert [view.solarize for view in dino.views.values()] == [0.0, 0.2, 0.0]
    byol = params("byol", "bn_group=256")
    assert (byol.optim.lr(), byol.bn_groups, byol.method.ema.momentum) == (pytest.approx(4.8), 16, 0.99)
    nnclr = params("nnclr")
    assert (nnclr.optim.lr(), nnclr.optim.weight_decay) == (pytest.approx(4.8), 1e-6)
    assert (nnclr.optim.warmup_epochs, nnclr.method.queue, nnclr.temperature) == (10, 98304, 0.1)
    simsiam = params("simsiam", "optim.batch_size=1024")
    assert (simsiam.optim.lr(), simsiam.optim.predictor_lr) == (pytest.approx(0.2), "fixed")
    simclr = params("simclr")
    assert (simclr.optim.lr(), simclr.loss.kind, simclr.loss.alpha) == (pytest.approx(4.8), "infonce", None)


# Loss, temperature, learning rate, weight decay, batch, epochs, and the epochs at which the rate drops.
QUOTED = {
    "npid_cifar10": ("infonce", 0.1, 0.03, 5e-4, 128, 200, [120, 160]),
    "npid_imagenet": ("nce", 0.07, 0.03, 1e-4, 256, 200, [120, 160]),
    "npid_cld_cifar10": ("infonce", 0.1, 0.06, 7e-4, 256, 200, []),
    "npid_cld_cifar100": ("infonce", 0.1, 0.06, 7e-4, 256, 200, []),
    "moco_cifar10": ("infonce", 0.07, 0.06, 8e-4, 256, 200, []),
    "moco_cld_cifar10": ("infonce", 0.07, 0.06, 8e-4, 256, 200, []),
    "moco_cld_cifar100": ("infonce", 0.07, 0.03, 7e-4, 128, 200, []),
    "moco_cld_imagenet": ("infonce", 0.2, 0.2, 1e-4, 512, 200, []),
    "invariant_spread_cifar10": ("invariant_spread", 0.1, 0.03, 5e-4, 128, 301, [120, 160, 200]),
    "exemplar_cifar10": ("infonce", 0.1, 0.03, 5e-4, 128, 200, [120, 160]),
    "local_aggregation_imagenet": ("infonce", 0.07, 0.03, 1e-4, 128, 200, [152, 189]),
    "cmc": ("nce", 0.07, 0.03, 1e-4, 128, 240, [120, 160, 200]),
    "pirl": ("nce", 0.07, 0.12, 1e-4, 1024, 800, []),
    "cpc_v2": ("infonce", 1.0, 4e-4, 0, 512, 200, []),
}


@pytest.mark.parametrize("name", QUOTED)
def test_recipes_of_instance_discrimination_follow_their_authors(tmp_path: Path, name: str) -> None:
    params = config.check(compose(tmp_path, f"recipe=quoted/{name}"))
    loss, temperature, rate, decay, batch, epochs, drops = QUOTED[name]
    optim = params.optim
    assert (params.loss.kind, params.temperature) == (loss, temperature)
    assert (optim.lr(), optim.weight_decay) == (pytest.approx(rate), decay)
    assert (optim.batch_size, optim.epochs) == (batch, epochs)
    assert [round(part * epochs) for part in optim.milestones] == drops
    assert optim.schedule == ("steps" if drops else "constant" if name == "cpc_v2" else "cosine")


def test_sizes_of_queues_banks_and_groups_follow_their_authors(tmp_path: Path) -> None:
    def method(recipe: str) -> Any:
        return config.check(compose(tmp_path, f"recipe=quoted/{recipe}")).method

    for name, negatives in (("npid_imagenet", 4096), ("cmc", 16384), ("pirl", 32000)):
        assert (method(name).negatives, method(name).bank_momentum) == (negatives, 0.5), name
    assert method("npid_cifar10").negatives is None
    for name, queue, images, groups, temperature, weight in (
        ("moco_cld_cifar10", 12288, "global", 200, 0.2, 0.8),
        ("moco_cld_cifar100", 4096, "global", 100, 0.2, 0.25),
        ("moco_cld_imagenet", 65536, 64, 120, 0.4, 0.25),
    ):
        found = method(name)
        assert (found.queue, found.ema.momentum) == (queue, 0.999), name
        assert (found.group.images, found.group.clusters) == (images, groups), name
        assert (found.group.temperature, found.group.weight, found.group.iterations) == (
            temperature,
            weight,
            5,
        )
    local = method("local_aggregation_imagenet")
    assert (local.clusterings, local.warmup_epochs, local.iterations) == (10, 10, 20)
    assert round(1_281_167 / local.images_per_neighbour) == 4096
    assert round(1_281_167 / local.images_per_cluster) == 30_000
