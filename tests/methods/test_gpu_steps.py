"""Steps of shipped methods, backbones and recipes in bfloat16 on a GPU that is not there.

`trace` asserts that gradients are float32 and that the second step does not make the CPU wait. Operations on
tensors of two devices, or of types that do not fit, raise; so do kernels' forms that PyTorch refuses on CUDA.
Values, the kernels themselves and DistributedDataParallel are not tested.
"""

import pytest

from benchmarks.parameters import parameters
from pipeline._floor import trace
from tests.pipeline.test_recipes import RECIPES
from tests.support.project import ROOT

IMAGES = 4096  # in the training split
LARGE = ("_imagenet", "_2x", "_4x", "_init", "101", "152", "34", "base")  # these differ in size alone


def names(group: str) -> list:
    """The files of a group; the large ones are slow."""
    found = sorted(path.stem for path in (ROOT / "pipeline/conf" / group).glob("*.yaml"))
    return [
        pytest.param(name, marks=[pytest.mark.slow] if any(part in name for part in LARGE) else [])
        for name in found
    ]


@pytest.mark.parametrize("name", names("method"))
def test_a_step_of_every_method(name) -> None:
    assert trace(parameters(f"method={name}", "precision=bf16"), images=IMAGES).operations


@pytest.mark.parametrize("name", names("backbone"))
def test_a_step_of_every_backbone(name) -> None:
    method = "cmc" if "lab" in name else "simclr"
    size = "views.random.size=32" if "patch4" in name or "small" in name else "views.random.size=224"
    overrides = (f"method={method}", f"backbone={name}", size, "precision=bf16", "optim.batch_size=32")
    assert trace(parameters(*overrides)).operations


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_of_every_recipe(recipe) -> None:
    start = ["init=torchvision:resnet50"] if recipe == "own/adapt" else []
    params = parameters(f"recipe={recipe}", *start, "precision=bf16")
    assert trace(params, images=20_000).operations
