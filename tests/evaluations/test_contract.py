"""What every evaluation on disk keeps."""

import math

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


@on_all_devices
@pytest.mark.parametrize("kind", kinds("evaluations"))
def test_an_evaluation_gives_numbers_and_leaves_the_backbone_as_it_is(
    kind, here, shard_folder, params, tiny_backbone, tmp_path
) -> None:
    (name, config), *_ = check(compose(tmp_path, *TINY, f"evaluation=[{FILES[kind]}]")).evaluations.items()
    assert name == FILES[kind]
    if "k" in type(config).model_fields:
        config = config.model_copy(update={"k": 5})
    if "optim" in type(config).model_fields:
        optim = config.optim.model_copy(update={"epochs": 1, "batch_size": 24})
        config = config.model_copy(update={"optim": optim})
    readers = [Reader(shard_folder, split) for split in ("train", "val")]
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
