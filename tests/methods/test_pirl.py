"""PIRL against a loop written from its authors' settings."""

import pytest
import torch
from torch import Tensor

from cl.methods import BaseMethod
from tests.support.loops import LOSSES, assert_bank_steps, normal
from tests.support.methods import Batch, batch_of, build, views

SIZES = (12, *[8] * 9)  # the image and its patches


def pirl() -> BaseMethod:
    return build("pirl", negatives=7)


def queries_of(method: BaseMethod, batch: Batch) -> list[list[Tensor]]:
    """Each image's two embeddings: nine patches through backbone and head, side by side, a linear layer."""
    image, *patches = batch.views
    n = len(image)
    rows = torch.stack([view[i] for i in range(n) for view in patches])  # batch norm sees all of them
    encoded = method.patch_projector(method.backbone(rows))
    layer = method.jigsaw
    jigsaws = [torch.cat(list(encoded[9 * i : 9 * i + 9])) @ layer.weight.T + layer.bias for i in range(n)]
    images = method.projector(method.backbone(image))
    return [[normal(x) for x in jigsaws], [normal(x) for x in images]]


def terms_of(method: BaseMethod, batch: Batch):  # type: ignore[no-untyped-def]
    """Both terms see the row before its update by the image."""
    jigsaws, images = queries_of(method, batch)
    return [(0, jigsaws, 0.5), (0, images, 0.5)], [images]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_pirl_equals_a_loop(loss, grouped) -> None:
    method = pirl()
    assert_bank_steps(method, [method.bank], loss, terms_of, SIZES, grouped=grouped)


def test_the_patches_of_an_image_stay_together() -> None:
    """Another image's patches change a jigsaw only through batch norm: in eval mode, not at all."""
    method = pirl().eval()
    inputs = views(4, sizes=SIZES)
    before = method(batch_of(inputs))[0].queries
    for view in inputs[1:]:
        view[1] += 1
    after = method(batch_of(inputs))[0].queries
    assert torch.equal(before[[0, 2, 3]], after[[0, 2, 3]])
    assert not torch.equal(before[1], after[1])
