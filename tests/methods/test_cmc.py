"""CMC against a loop written from its authors' settings."""

import pytest
import torch
from torch import Tensor

from cl import config
from cl.methods import BaseMethod
from tests.support.loops import assert_same_gradients, cross_entropy, nce, normal
from tests.support.methods import IMAGES, TAU, Batch, batch_of, build, loss_config, task_of, views
from tests.support.project import compose


def embeddings(method: BaseMethod, view: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Of lightness and of colour: each by its own network and head."""
    encoders = zip(method.backbone.networks, method.projector, strict=True)
    channels = view[:, :1], view[:, 1:]
    first, second = (
        [normal(z) for z in head(network(x))] for (network, head), x in zip(encoders, channels, strict=True)
    )
    return first, second


def batch_at(step: int, sizes: tuple[int, ...], groups: Tensor | None = None) -> Batch:
    """Five images; the last of a step is the first of the next."""
    return batch_of(views(5, step, sizes), groups, first=4 * step)


@pytest.mark.parametrize("sizes", [(12,), (12, 8)], ids=len)
@pytest.mark.parametrize(
    ("name", "term"), [("nce", nce), ("infonce", lambda s, others, z: cross_entropy(s, others))]
)
@pytest.mark.parametrize("grouped", [False, True])
def test_cmc_equals_a_loop(name, term, sizes, grouped) -> None:
    """Total, gradients and both banks over three steps: each direction has its own bank and normalizer."""
    method = build("cmc", negatives=9)
    task = task_of(method, loss_config(name, **({"alpha": None} if name == "infonce" else {})))
    lightness, colour = ([*bank.rows.clone()] for bank in (method.lightness, method.colour))
    normalizers: list[Tensor] = []
    known: dict[int, int] = {}  # the group of each image that was seen
    for step in range(3):
        groups = torch.tensor([0, 1, 1, -1, 0]).roll(2 * step) if grouped else None
        batch = batch_at(step, sizes, groups)
        task.begin_step(step, 0.0)
        noise = method(batch)[0].negatives.selected.tolist()
        positions = batch.positions.tolist()
        own = [-1 - p if groups is None or groups[i] < 0 else int(groups[i]) for i, p in enumerate(positions)]
        kept = [
            [j for j in row if not (grouped and known.get(j) == g)] for row, g in zip(noise, own, strict=True)
        ]
        ours = 2 * task(batch)  # `scale`
        pairs = [embeddings(method, view) for view in batch.views]
        theirs = torch.zeros((), dtype=torch.float64)
        for direction, bank in enumerate((colour, lightness)):
            logits = [
                [pair[direction][i] @ bank[j] / TAU for j in [p, *kept[i]]]
                for pair in pairs
                for i, p in enumerate(positions)
            ]
            if step == 0:
                drawn = [s.detach().exp() for row in logits for s in row]
                normalizers.append(IMAGES * sum(drawn) / len(drawn))
            theirs += sum(term(row[0], row[1:], normalizers[direction]) for row in logits) / len(logits)
        assert_same_gradients(method, ours, theirs)
        task.after_step(0.5)
        known |= dict(zip(positions, own, strict=True))
        for rows, seen, ours_ in zip(
            (lightness, colour), pairs[0], (method.lightness, method.colour), strict=True
        ):
            for p, z in zip(positions, seen, strict=True):
                rows[p] = normal(0.5 * rows[p] + 0.5 * z.detach())
            torch.testing.assert_close(ours_.rows, torch.stack(rows), rtol=1e-12, atol=1e-12)


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


def test_a_single_network_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="method.kind=cmc needs two networks .*resnet18_lab"):
        compose(tmp_path, "method=cmc", "backbone=resnet18")
