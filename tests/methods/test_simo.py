"""SiMo against a loop written from EqCo."""

import copy

import pytest
import torch

from tests.support.loops import assert_equals_the_loop, cross_entropy, normal, with_another_target
from tests.support.methods import TAU, batch_of, build, views


def simo_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Each query against the other images' keys, or against the columns that were sampled for it."""
    (contrast,) = copy.deepcopy(method)(batch_of(inputs))
    queries = normal(method.projector(method.backbone(inputs[0])))
    keys = normal(method.target(inputs[1])).detach()
    losses = []
    for i, query in enumerate(queries):
        selected = contrast.negatives.selected
        columns = [j for j in range(len(keys)) if j != i] if selected is None else selected[i]
        losses.append(cross_entropy(query @ keys[i] / TAU, [query @ keys[c] / TAU for c in columns]))
    return torch.stack(losses).mean()


def test_simos_shared_sample_is_one_permutation_of_the_others() -> None:
    """Place c of query i is image c if c < i, else c + 1; all queries share places, new ones each step."""
    method = build("simo", negatives=3, sampling="shared")
    samples = []
    for step in range(4):
        method.step = step
        selected = method(batch_of(views(6)))[0].negatives.selected
        places = torch.randperm(5, generator=method.generator("negatives"))[:3].tolist()
        assert selected.tolist() == [[c if c < i else c + 1 for c in places] for i in range(6)]
        samples.append(tuple(places))
    assert len(set(samples)) > 1


@pytest.mark.parametrize(
    "settings", [{}, {"negatives": 3, "sampling": "per_query"}, {"negatives": 2, "sampling": "shared"}]
)
def test_simo_equals_the_loop_of_its_paper(settings) -> None:
    assert_equals_the_loop(with_another_target("simo", **settings), simo_loop)
