"""Which encoder a run from `init` hands over."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cl.data.reader import Reader
from cl.networks import backbones
from cl.pretraining.adaptation import Adaptation, SplitFeatures, check_start, same_neighbours
from pipeline.support.locations import transform


class Colours(nn.Module):
    """The colours of 16 places; the weights can hide some of them."""

    fc_features = 48

    def __init__(self, seen: int) -> None:
        super().__init__()
        self.weights = nn.Parameter((torch.arange(48) < seen).float())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.adaptive_avg_pool2d(images, 4).flatten(1) * self.weights


def adaptation(encoder: nn.Module, params, here, shard_folder, *, labelled: bool) -> Adaptation:  # type: ignore[no-untyped-def]
    train, val = (Reader(shard_folder, split) for split in ("train", "val"))
    if not labelled:
        for reader in (train, val):
            reader.manifest = reader.manifest.model_copy(update={"classes": []})
            reader.index = reader.index.copy()
            reader.index["label"] = -1
    (view,) = params.views.values()
    return Adaptation(encoder, train, val, transform(params.dataset), view, here)


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [(2, 48, "better"), (48, 2, "worse"), (48, 0, "worse"), (48, 47, "cannot tell")],
)
def test_only_a_better_encoder_replaces_its_start(
    params, here, shard_folder, labelled, before, after, verdict
) -> None:
    encoder = Colours(before)
    run = adaptation(encoder, params, here, shard_folder, labelled=labelled)
    images = len(Reader(shard_folder, "val"))
    assert run.expectation.startswith(f"held out: {images} {'labelled ' if labelled else ''}images, which")
    assert f"below {3 * (300 / images) ** 0.5:.1f} points; hold out 100" in run.expectation
    encoder.load_state_dict(Colours(after).state_dict())
    outcome = run.keep_better(seed=0)
    assert outcome.comparison.verdict == verdict
    assert torch.equal(encoder.weights, Colours(after if verdict == "better" else before).weights)
    handed_over = "adapted" if verdict == "better" else "start"
    assert outcome.sentence.endswith(f"hands over the {handed_over} encoder")
    assert ("without labels" in outcome.sentence) == (not labelled)


def test_the_neighbours_of_an_image_and_its_part_are_compared_as_in_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    train, val = (F.normalize(torch.randn(n, 4, generator=generator), dim=1) for n in (40, 15))
    positions = torch.randperm(15, generator=generator)[:12]
    views = F.normalize(val[positions] + 0.5 * torch.randn(12, 4, generator=generator), dim=1)
    expected = []
    for view, position in zip(views.numpy(), positions.tolist(), strict=True):
        nearest = [set(np.argsort(-(train.numpy() @ x))[:10]) for x in (view, val[position].numpy())]
        expected.append(10.0 * len(nearest[0] & nearest[1]))
    assert len(set(expected)) > 1
    assert same_neighbours(SplitFeatures(train, val, views, positions)) == pytest.approx(expected)


def test_a_start_that_cannot_be_adapted_is_named(params) -> None:
    untrained, features = backbones.build(params.backbone), torch.randn(8, 4)
    with pytest.raises(ValueError, match="untrained weights"):
        check_start(untrained, features)
    nn.init.normal_(untrained.bn1.bias)  # type: ignore[union-attr, arg-type]
    check_start(untrained, features)
    with pytest.raises(ValueError, match="same features"):
        check_start(untrained, torch.ones(8, 4))
