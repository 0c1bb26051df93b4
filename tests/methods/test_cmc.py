"""CMC against a loop written from its authors' settings."""

import pytest
import torch
from torch import Tensor

from cl import config
from cl.methods import BaseMethod
from tests.support.loops import LOSSES, assert_bank_steps, normal
from tests.support.methods import Batch, build, views
from tests.support.project import compose


def embeddings(method: BaseMethod, view: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Of lightness and of colour: each by its own network and head."""
    encoders = zip(method.backbone.networks, method.projector, strict=True)
    channels = view[:, :1], view[:, 1:]
    first, second = (
        [normal(z) for z in head(network(x))] for (network, head), x in zip(encoders, channels, strict=True)
    )
    return first, second


def terms_of(method: BaseMethod, batch: Batch):  # type: ignore[no-untyped-def]
    """Lightness with the bank of colour, and colour with that of lightness; the first view is remembered."""
    pairs = [embeddings(method, view) for view in batch.views]
    return [(1 - side, pair[side], 1.0) for side in range(2) for pair in pairs], pairs[0]


@pytest.mark.parametrize("sizes", [(12,), (12, 8)], ids=len)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("grouped", [False, True])
def test_cmc_equals_a_loop(loss, sizes, grouped) -> None:
    """Each direction has its own bank and normalizer."""
    method = build("cmc", negatives=9)
    assert_bank_steps(method, [method.lightness, method.colour], loss, terms_of, sizes, grouped=grouped)


def test_evaluations_build_the_same_projector(tmp_path) -> None:
    """Both embeddings, side by side, with the tensors that the method has."""
    params = config.check(compose(tmp_path, "method=cmc"))
    projector = params.method.build_projector(1024)
    assert projector(torch.randn(3, 1024)).shape == (3, params.method.embedding_width) == (3, 256)
    method = build("cmc")
    (view,) = views(3, sizes=(12,))
    found = method.projector(method.backbone(view)).unflatten(1, (2, -1))
    for index, expected in enumerate(embeddings(method, view)):
        torch.testing.assert_close(normal(found[:, index]), torch.stack(expected))
    assert projector.state_dict().keys() >= {f"{i}.0.weight" for i in range(2)}
