"""The command that repeats a run, and the name of its method."""

import shlex
from pathlib import Path

import pytest

from pipeline.support.origin import origin
from tests.support.project import compose


def overrides(command: str) -> list[str]:
    """What follows each -S of a command for the shell."""
    program, words = shlex.split(command)[:3], shlex.split(command)[3:]
    assert program == ["dvc", "exp", "run"]
    assert set(words[::2]) <= {"-S"}
    return words[1::2]


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ([], "simclr"),
        (["method=moco_v2"], "moco_v2"),
        pytest.param(
            ["method=moco_v2_keys", "loss=jcl", "views.random.count=3"],
            "moco_v2_keys",
            marks=pytest.mark.slow,
        ),
        (["method=byol"], "byol"),
        (["method=fast_moco", "optim.epochs=7"], "fast_moco"),
        (["recipe=dcl/table3_cifar10", "loss=dclw", "seed=3"], "simclr"),
        (["evaluation=[knn]", "analysis=[]", "evaluations.knn.grid_k=[1,5]"], "simclr"),
        (["dataset=unlabelled", "dataset.name='my Käfer'"], "simclr"),
    ],
)
def test_the_command_composes_to_the_same_parameters(given, method, tmp_path) -> None:
    """And is no longer than the one that was given."""
    params = compose(tmp_path, *given)
    found = origin(params)
    assert (found.method, found.changed) == (method, [])
    repeated = overrides(found.command)
    assert compose(tmp_path, *repeated) == params
    assert len(repeated) <= len(given)


def test_a_changed_method_keeps_its_name_beside_the_change(tmp_path) -> None:
    found = origin(compose(tmp_path, "method=moco_v2", "method.ema.momentum=0.98"))
    assert (found.method, found.changed) == ("moco_v2", ["ema.momentum=0.98"])
    assert found.command == "dvc exp run -S method=moco_v2 -S method.ema.momentum=0.98"


def test_weights_to_start_from_are_named(tmp_path) -> None:
    params = compose(tmp_path) | {"init": {"name": "torchvision:resnet18", "hash": "sha256:ab"}}
    assert origin(params).command == "dvc exp run -S init=torchvision:resnet18"


def test_parameters_that_nothing_composes_to_have_no_command(tmp_path: Path) -> None:
    params = compose(tmp_path, "method=moco_v2")
    found = origin({**params, "recipe": "no/longer/there"})
    assert (found.method, found.command) == ("moco", None)
