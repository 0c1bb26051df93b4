"""Steps of shipped methods, backbones and recipes in bfloat16 on a GPU that is not there.

`trace` asserts that gradients are float32 and that the second step does not make the CPU wait. Operations on
tensors of two devices, or of types that do not fit, raise; so do kernels' forms that PyTorch refuses on CUDA.
Values, the kernels themselves and DistributedDataParallel are not tested.
"""

import pytest

from benchmarks.parameters import parameters
from cl.config import read
from pipeline._floor import trace
from tests.support.project import ROOT

IMAGES = 4096  # in the training split
CONF = ROOT / "pipeline/conf"
BOUNDED = {"moco", "swav"}  # kinds of methods whose steps tests/benchmarks/test_bounds.py traces
FAST = {
    "resnet18",
    "timm",
    "vit_tiny_patch4",
}  # backbones; others differ in size, or are traced with a method


def methods() -> list:
    """All files; those after the first of a kind are slow."""
    seen, found = {"", *BOUNDED}, []
    for path in sorted((CONF / "method").glob("*.yaml")):
        kind = read(path).get("method", {}).get("kind", "")  # none: it changes another file
        found.append(pytest.param(path.stem, marks=[pytest.mark.slow] if kind in seen else []))
        seen.add(kind)
    return found


def backbones() -> list:
    names = sorted(path.stem for path in (CONF / "backbone").glob("*.yaml"))
    return [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in names]


@pytest.mark.parametrize("name", methods())
def test_a_step_of_every_method(name) -> None:
    assert trace(parameters(f"method={name}", "precision=bf16"), images=IMAGES).operations


@pytest.mark.parametrize("name", backbones())
def test_a_step_of_every_backbone(name) -> None:
    method = "cmc" if "lab" in name else "simclr"
    size = "views.random.size=32" if "patch4" in name or "small" in name else "views.random.size=224"
    overrides = (f"method={method}", f"backbone={name}", size, "precision=bf16", "optim.batch_size=32")
    assert trace(parameters(*overrides)).operations


RECIPES = CONF / "recipe"


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", sorted(str(path.relative_to(RECIPES).with_suffix("")) for path in RECIPES.rglob("*.yaml"))
)
def test_a_step_of_every_recipe(recipe) -> None:
    start = ["init=torchvision:resnet50"] if recipe == "own/adapt" else []
    params = parameters(f"recipe={recipe}", *start, "precision=bf16")
    assert trace(params, images=20_000).operations
