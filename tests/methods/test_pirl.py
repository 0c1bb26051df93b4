"""PIRL against a loop written from its authors' settings."""

import pytest
import torch
from torch import Tensor

from cl.methods import BaseMethod
from tests.support.loops import assert_same_gradients, cross_entropy, nce, normal
from tests.support.methods import IMAGES, TAU, Batch, batch_of, build, loss_config, task_of, views
from tests.support.project import compose

SIZES = (12, *[8] * 9)  # the image and its patches
WEIGHTS = 0.5, 0.5  # of the patches and of the image


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


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("name", "term"), [("nce", nce), ("infonce", lambda s, others, z: cross_entropy(s, others))]
)
def test_pirl_equals_a_loop(name, term, grouped) -> None:
    """Total, gradients and bank over three steps; both terms see the row before its update by the image."""
    method = pirl()
    loss = loss_config(name, **({"alpha": None} if name == "infonce" else {}))
    task = task_of(method, loss)
    bank, z = list(method.bank.rows.clone()), None
    known: dict[int, int] = {}  # the group of each image that was seen
    for step in range(3):
        groups = torch.tensor([0, 1, -1, 0]).roll(step) if grouped else None
        batch = batch_of(views(4, step, SIZES), groups, first=3 * step)  # the last image comes again
        task.begin_step(step, 0.0)
        noise = method(batch)[0].negatives.selected.tolist()
        ours = 2 * task(batch)  # `scale`
        queries = queries_of(method, batch)
        positions = batch.positions.tolist()
        own = [-1 - p if groups is None or groups[i] < 0 else int(groups[i]) for i, p in enumerate(positions)]
        kept = [
            [j for j in row if not (grouped and known.get(j) == group)]
            for row, group in zip(noise, own, strict=True)
        ]
        logits = [
            [
                [q @ bank[j] / TAU for j in [p, *kept[i]]]
                for i, (q, p) in enumerate(zip(qs, positions, strict=True))
            ]
            for qs in queries
        ]
        if z is None:
            drawn = [s.detach().exp() for rows in logits for row in rows for s in row]
            z = IMAGES * sum(drawn) / len(drawn)
        theirs = sum(
            weight * sum(term(row[0], row[1:], z) for row in rows) / len(rows)
            for weight, rows in zip(WEIGHTS, logits, strict=True)
        )
        assert_same_gradients(method, ours, theirs)
        task.after_step(0.5)
        known |= dict(zip(positions, own, strict=True))
        for p, q in zip(positions, queries[1], strict=True):
            bank[p] = normal(0.5 * bank[p] + 0.5 * q.detach())
        torch.testing.assert_close(method.bank.rows, torch.stack(bank), rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"views={name}"], "method.kind=pirl takes .*choose views=pirl")
        for name in ("small", "mocov2_ten", "swav_multicrop")
    ]
    + [(["views.image.count=2"], "found 2 x image, 9 x patches; choose views=pirl or")],
)
def test_other_views_are_refused(tmp_path, overrides, message) -> None:
    with pytest.raises(ValueError, match=message):
        compose(tmp_path, "method=pirl", *overrides)
