"""The shipped configuration: every file composes, and gives way to the command line."""

import re

import pytest

from benchmarks.combinations import methods
from cl import config
from pipeline.composition.compose import write
from tests.support.project import ROOT, compose

CONF = ROOT / "pipeline" / "conf"
LISTS = ("evaluation", "transfer", "analysis")
PARTS = ("scenes", "crop", "trainer", "storage")  # groups that other files choose


def test_params_yaml_is_the_default_composition(tmp_path) -> None:
    write(tmp_path / "params.yaml", [])
    assert (tmp_path / "params.yaml").read_text() == (ROOT / "params.yaml").read_text()


def choices() -> list[str]:
    """Overrides that choose every file that no recipe chooses (test_recipes.py); lists at once.

    `test_compatibility.py` composes the methods at the size of the embedded data.
    """
    names: dict[str, list[str]] = {}
    for path in sorted(CONF.rglob("*.yaml")):
        group, *name = path.relative_to(CONF).with_suffix("").parts
        if name and group not in (*PARTS, "recipe"):
            names.setdefault(group, []).append("/".join(name))
    names["evaluation"].remove("dino_vit_lin")  # takes a transformer, as its recipe has
    lists = [f"{group}=[{','.join(names.pop(group))}]" for group in LISTS]
    lists += [f"baseline=[{name}]" for name in names.pop("baseline")]
    chosen = {
        choice
        for path in (CONF / "recipe").rglob("*.yaml")
        for choice in re.findall(r"override /(\w+): (\w+)$", path.read_text(), re.MULTILINE)
    } | {("method", name) for name in methods()}
    return lists + [
        f"{group}={name}" for group, files in names.items() for name in files if (group, name) not in chosen
    ]


# What only some methods take.
NEEDS = dict.fromkeys(("views=pirl", "views=pirl_small"), "method=pirl")
NEEDS |= dict.fromkeys(("views=cmc", "views=cmc_small"), "method=cmc")
NEEDS |= {f"loss={name}": f"method={name}" for name in ("barlow_twins", "vicreg")}
NEEDS |= dict.fromkeys(("loss=soft_targets", "baseline=[teacher]"), "method=distill")


@pytest.mark.parametrize("choice", choices())
def test_every_file_composes_and_validates(tmp_path, choice) -> None:
    compose(tmp_path, choice, *([NEEDS[choice]] if choice in NEEDS else []))


def test_the_command_line_overrides_a_recipe(tmp_path) -> None:
    recipe = "dcl/table1_imagenet100"
    params = config.check(compose(tmp_path, f"recipe={recipe}", "loss=infonce", "optim.batch_size=64"))
    assert (params.recipe, params.loss.kind, params.optim.batch_size) == (recipe, "infonce", 64)


def test_byol_brings_its_loss_and_the_command_line_overrides_it(tmp_path) -> None:
    assert config.check(compose(tmp_path, "method=byol")).loss.kind == "cosine"
    with pytest.raises(ValueError, match="loss=dclw needs .*; choose loss=cosine"):
        compose(tmp_path, "method=byol", "loss=dclw")
    assert config.check(compose(tmp_path, "method=fast_moco")).patches.kind == "combine"
    assert config.check(compose(tmp_path, "method=fast_moco", "patches=whole")).patches.kind == "whole"
