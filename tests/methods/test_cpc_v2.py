"""CPC v2 against loops over patches, directions and offsets."""

import pytest
import torch
from torch import Tensor

from cl.objective.batch import Batch
from tests.support.loops import assert_equals_the_loop, assert_same_gradients, context_loop, cross_entropy
from tests.support.methods import TAU, build, mean_loss, views

G = 3
# The place from which `i` rows down and `j` columns on are counted, after quarter turns of the image.
PLACES = [
    lambda i, j: (i, j),  # predicts downwards
    lambda i, j: (j, G - 1 - i),  # to the left
    lambda i, j: (G - 1 - i, G - 1 - j),  # upwards
    lambda i, j: (G - 1 - j, i),  # to the right
]


def terms_of_view(method, view: Tensor, counted):  # type: ignore[no-untyped-def]
    """For each direction and offset, the mean cross-entropy of each prediction over all patches' targets.

    counted: (image a, image b), whether the patches of b are negatives for the predictions of a.
    """
    n, side = len(view), view.shape[-1]
    stride = side // (G + 1)
    places = [(i, r, c) for i in range(n) for r in range(G) for c in range(G)]
    patches = [view[i, :, r * stride : (r + 2) * stride, c * stride : (c + 2) * stride] for i, r, c in places]
    features = method.backbone(torch.stack(patches))
    latent = dict(zip(places, features, strict=True))
    target = dict(zip(places, method.projector(features), strict=True))
    for place, predictor in zip(PLACES, method.predictors, strict=True):
        turned = [
            torch.stack([torch.stack([latent[i, *place(r, c)] for c in range(G)]) for r in range(G)])
            for i in range(n)
        ]
        contexts = [context_loop(predictor.context, x.permute(2, 0, 1)) for x in turned]  # (F, G, G)
        for number, k in enumerate(method.offsets):
            out = len(target[0, 0, 0])
            weight = predictor.predict.weight[number * out : (number + 1) * out, :, 0, 0]
            bias = predictor.predict.bias[number * out : (number + 1) * out]
            losses = []
            for i in range(n):
                for r in range(G - k):
                    for c in range(G):
                        prediction = 0.1 * (weight @ contexts[i][:, r, c] + bias)
                        right = (i, *place(r + k, c))
                        others = [p for p in places if p != right and counted(i, p[0])]
                        logits = [prediction @ target[p] / TAU for p in others]
                        losses.append(cross_entropy(prediction @ target[right] / TAU, logits))
            yield torch.stack(losses).mean()


def loop(method, inputs):  # type: ignore[no-untyped-def]
    terms = [term for view in inputs for term in terms_of_view(method, view, lambda a, b: True)]
    return torch.stack(terms).mean()


@pytest.mark.parametrize("settings", [{}, {"offsets": [1, 2], "directions": 4}])
def test_it_equals_its_loop(settings) -> None:
    assert_equals_the_loop(build("cpc_v2", **settings), loop, (12,))


def test_views_of_different_sizes_are_grids_of_their_own() -> None:
    assert_equals_the_loop(build("cpc_v2"), loop, (12, 8))


def test_patches_of_companions_are_left_out() -> None:
    """With their own: images 0 and 2 are of one group. Those alone of their group keep theirs."""
    method = build("cpc_v2", offsets=[1])
    (view,) = views(4, sizes=(12,))
    groups = [7, 1, 7, -1]
    batch = Batch([view], torch.zeros(4, dtype=torch.int64), torch.arange(4) + 1, torch.tensor(groups))
    counted = lambda a, b: a in (1, 3) or b in (1, 3)  # noqa: E731
    theirs = torch.stack(list(terms_of_view(method, view, counted))).mean()
    assert_same_gradients(method, mean_loss(method, batch), theirs)
