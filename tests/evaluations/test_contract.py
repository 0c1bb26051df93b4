"""What every evaluation on disk keeps."""

import math

import numpy as np
import pytest

from cl.config import check, read
from cl.data.reader import Reader
from cl.runtime.registry import kinds, module_of
from cl.runtime.tensor_files import fingerprint
from tests.support.devices import on_all_devices
from tests.support.project import ROOT, TINY, compose
from tests.support.tiny import evaluated

# For each kind the first file that names it.
FILES = {
    read(path)["kind"]: path.stem
    for path in sorted((ROOT / "pipeline/conf/evaluation").glob("*.yaml"), reverse=True)
    if "kind" in read(path)
}


def settings(kind: str) -> list[str]:
    """At a tiny size; some need data with columns."""
    needs_values = module_of("evaluations", kind).Config.needs_values
    data = (
        ["recipe=own/small", "dataset=table", "dataset.name=any", "dataset.within=site"]
        if needs_values
        else TINY
    )
    return [*data, f"evaluation=[{FILES[kind]}]"]


@on_all_devices
@pytest.mark.parametrize("kind", kinds("evaluations"))
def test_an_evaluation_gives_numbers_and_leaves_the_backbone_as_it_is(
    kind, here, shard_folder, params, tiny_backbone, tmp_path
) -> None:
    (name, config), *_ = check(compose(tmp_path, *settings(kind))).evaluations.items()
    assert name == FILES[kind]
    if "k" in type(config).model_fields:
        config = config.model_copy(update={"k": 5})
    if "optim" in type(config).model_fields:
        optim = config.optim.model_copy(update={"epochs": 1, "batch_size": 24})
        config = config.model_copy(update={"optim": optim})
    readers = [Reader(shard_folder, split) for split in ("train", "val")]
    readers[1].values = {role: np.arange(len(readers[1])) % 5 for role in ("positive", "within")}
    context = evaluated(*readers, params, here.place(tiny_backbone), tmp_path, machine=here)
    before = fingerprint(tiny_backbone)
    metrics = module_of("evaluations", kind).evaluate(config, context)
    assert metrics["backbone"]
    explained = config.numbers().keys()
    for numbers in metrics.values():
        assert numbers.keys() <= explained, "a number without an explanation"
        assert all(math.isfinite(value) for value in numbers.values())
    assert module_of("evaluations", kind).__doc__
    assert fingerprint(tiny_backbone) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("knn grid_k=[0]", r"grid_k.0=0: .*greater than 0"),
        ("linear features=cached", "features=cached: augmented takes one, cached none"),
        ("linear +optim.clip=1.0", "clip=1.0 would clip 5 classifiers together"),
        ("linear weight_decays=[0.0,0.1] +optim.final_weight_decay=5.0", "final_weight_decay=5.0 .*set null"),
        ("linear base_lrs=[0.1]", r"base_lrs=\[0.1\] must include optim.base_lr=1.0"),
        ("linear weight_decays=[0.1]", r"weight_decays=\[0.1\] must include optim.weight_decay=0.0"),
        ("linear base_lrs=[1.0,0.0]", "base_lrs"),
        ("linear weight_decays=[-1.0]", "weight_decays"),
        ("semi_1_fastmoco fraction=0.1", "fraction=0.1, list=data/.*1percent.txt: set exactly one"),
        (
            "semi_1_fastmoco list=null list_md5=null list_url=null",
            "fraction=None, list=None: set exactly one",
        ),
        ("semi_1_fastmoco list_md5=b61c", "list_md5='b61c'"),
    ],
)
def test_wrong_settings_are_named(settings, message, tmp_path) -> None:
    name, *changes = settings.split()
    prefix = f"evaluations.{name}."
    overrides = [f"+{prefix}{each[1:]}" if each[0] == "+" else f"{prefix}{each}" for each in changes]
    with pytest.raises(ValueError, match=message):
        compose(tmp_path, f"evaluation=[{name}]", *overrides)
