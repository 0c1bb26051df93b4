"""Progressive resizing: pretraining begins with smaller views."""

from dataclasses import replace

import pytest
import torch
from torchvision.transforms import v2

from cl import config
from cl.data.reader import Reader
from cl.pretraining.resizing import Phase, resized
from cl.training.loop import train
from cl.training.start import Start
from pipeline.support import pretraining
from tests.support.methods import batch_of, views
from tests.support.project import compose

HALF_AT_FIRST = "optim.progressive_resizing=[{until: 0.5, scale: 0.5}, {until: 0.75, scale: 0.75}]"


def test_all_views_shrink_as_with_torchvision() -> None:
    batch = batch_of(views(3, sizes=(24, 9)))
    found = resized(batch, [Phase(until=0.5, scale=0.7)], 0.4)
    assert [view.shape for view in found.views] == [(3, 3, 17, 17), (3, 3, 6, 6)]
    for view, image in zip(found.views, batch.views, strict=True):
        torch.testing.assert_close(view, v2.functional.resize(image, [view.shape[-1]], antialias=True))
    assert replace(found, views=batch.views) == batch


def test_a_run_begins_with_smaller_views(shard_folder, here, quiet, tmp_path, monkeypatch) -> None:
    overrides = ["method=simclr", "backbone.name=resnet10", "backbone.width=0.125", "optim.batch_size=15"]
    params = config.check(compose(tmp_path, *overrides, "optim.epochs=1", HALF_AT_FIRST))
    task, optimizer, data = pretraining.prepare(params, here, Reader(shard_folder, "train"), Start())
    sides: list[int] = []
    task.method.backbone.register_forward_pre_hook(lambda _, inputs: sides.append(inputs[0].shape[-1]))
    rows = train(task, data, params.optim, optimizer, progress=quiet)
    assert rows[-1]["step"] == 8
    assert [sides[i * len(sides) // 8] for i in range(8)] == [16, 16, 16, 16, 24, 24, 32, 32]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("backbone=vit_tiny_patch4 optim.progressive_resizing=[{until:0.5,scale:0.7}]", "scale=0.7.* 22 px"),
        ("optim.progressive_resizing=[{until:0.5,scale:0.5},{until:0.5,scale:0.7}]", "ascending"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(overrides, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        config.check(compose(tmp_path, *overrides.split()))
