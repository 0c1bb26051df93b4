"""The shipped configuration: every file composes, and gives way to the command line."""

import pytest
from click.testing import CliRunner

from cl import config
from cl.contrast import Contrast
from cl.runtime.kinds import module_of
from pipeline.compose import main
from tests.support.project import ROOT, compose

CONF = ROOT / "pipeline" / "conf"
LISTS = ("evaluation", "transfer", "analysis")
PARTS = ("scenes", "crop", "trainer", "storage")  # groups that other files choose


def test_params_yaml_is_the_default_composition(tmp_path) -> None:
    compose(tmp_path)
    assert (tmp_path / "params.yaml").read_text() == (ROOT / "params.yaml").read_text()


def choices() -> list[str]:
    """Overrides that choose every file of every group; those of a list together."""
    names: dict[str, list[str]] = {}
    for path in sorted(CONF.rglob("*.yaml")):
        group, *name = path.relative_to(CONF).with_suffix("").parts
        if name and group not in PARTS:
            names.setdefault(group, []).append("/".join(name))
    lists = [f"{group}=[{','.join(names.pop(group))}]" for group in LISTS]
    lists += [f"baseline=[{name}]" for name in names.pop("baseline")]
    return lists + [f"{group}={name}" for group, files in names.items() for name in files]


NEEDS_PREDICTOR = ("patches=fast", "patches=fast_3", "patches=drawn")


def refusal(choice: str, values: dict) -> str:
    """Why the default method refuses a loss; empty where it does not."""
    loss = module_of("losses", values["loss"]["kind"]).Config
    if not choice.startswith("loss="):
        return ""
    if loss.takes is not Contrast:
        return "choose loss=dcl or dclw or infonce"
    return "needs several positives per query" if loss.needs_several_positives else ""


@pytest.mark.parametrize("choice", choices())
def test_every_file_composes_and_validates(tmp_path, choice) -> None:
    with_predictor = ["method=moco_v3"] if choice in NEEDS_PREDICTOR else []
    values = compose(tmp_path, choice, *with_predictor)
    if message := refusal(choice, values):
        with pytest.raises(ValueError, match=message):
            config.check(values)
    else:
        config.check(values)


def test_the_command_line_overrides_a_recipe(tmp_path) -> None:
    params = config.check(
        compose(tmp_path, "recipe=dcl/table1_imagenet100", "loss=infonce", "optim.batch_size=64")
    )
    assert (params.recipe, params.loss.kind, params.optim.batch_size) == (
        "dcl/table1_imagenet100",
        "infonce",
        64,
    )


def test_byol_brings_its_loss_and_the_command_line_overrides_it(tmp_path) -> None:
    assert config.check(compose(tmp_path, "method=byol")).loss.kind == "cosine"
    with pytest.raises(
        ValueError,
        match="method=byol gives pairs without negatives, but loss=dclw takes .*; choose loss=cosine",
    ):
        config.check(compose(tmp_path, "method=byol", "loss=dclw"))
    assert config.check(compose(tmp_path, "method=fast_moco")).patches.kind == "combine"
    assert config.check(compose(tmp_path, "method=fast_moco", "patches=whole")).patches.kind == "whole"


def test_the_error_for_an_old_key_on_the_command_line_gives_the_new_one(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, ["loss=dclw", "optim.chunks=2"])
    assert answer.exit_code == 1
    assert answer.stderr == "Error: optim.chunks is now optim.microbatches (see CHANGELOG.md)\n"
    assert not (tmp_path / "params.yaml").exists()


def test_the_error_for_an_unknown_recipe_lists_all_recipes(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, ["recipe=dcl/table9"])
    assert answer.exit_code == 1
    assert answer.stderr.startswith("Error: In 'config': Could not find 'recipe/dcl/table9'")
    assert "dcl/table1_imagenet100" in answer.stderr


def test_the_error_for_an_unknown_key_names_it(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, ["losss=dcl"])
    assert answer.exit_code == 1
    assert "losss" in answer.stderr
