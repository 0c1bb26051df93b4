"""kNN, linear and semi-supervised evaluation on features with known answers."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cl.evaluations import Context, knn, linear, semi
from cl.features import Pixels, extract, fingerprint
from cl.knn import vote
from cl.order import Plan
from cl.reader import TrainSet
from cl.shards import Reader
from cl.tasks import classifier
from cl.train import Inputs


def unit(*shape: int) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=1)


@pytest.mark.parametrize("memory", [1, 512])
def test_knn_equals_a_plain_loop(memory) -> None:
    torch.manual_seed(0)
    queries, bank, labels = unit(50, 8), unit(3000, 8), torch.randint(0, 5, (3000,))
    votes, nearest = vote(queries, bank, labels, 5, k=7, temperature=0.1, memory=memory)
    for row, query in enumerate(queries):
        similarities = sorted(((float(query @ b), i) for i, b in enumerate(bank)), reverse=True)[:7]
        expected = [0.0] * 5
        for similarity, i in similarities:
            expected[int(labels[i])] += math.exp((similarity - similarities[0][0]) / 0.1)
        assert nearest[row].tolist() == [i for _, i in similarities]
        torch.testing.assert_close(votes[row], torch.tensor(expected, dtype=torch.float64))


def test_knn_equals_scikit_learn() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    torch.manual_seed(0)
    queries, bank, labels = unit(100, 6), unit(400, 6), torch.randint(0, 4, (400,))
    classifier = KNeighborsClassifier(9, metric="cosine", algorithm="brute", weights=lambda d: np.exp((1 - d) / 0.07))
    expected = classifier.fit(bank.numpy(), labels.numpy()).predict(queries.numpy())
    votes, _ = vote(queries, bank, labels, 4, k=9, temperature=0.07, memory=8)
    assert votes.argmax(1).tolist() == expected.tolist()


def test_knn_on_perfect_features_is_right() -> None:
    centres = torch.eye(4, dtype=torch.float64)
    labels = torch.arange(4).repeat(10)
    votes, _ = vote(centres, centres[labels], labels, 4, k=10, temperature=0.07, memory=8)
    assert votes.argmax(1).tolist() == [0, 1, 2, 3]


def test_a_low_temperature_does_not_overflow() -> None:
    torch.manual_seed(0)
    queries, bank, labels = unit(20, 8).float(), unit(500, 8).float(), torch.randint(0, 5, (500,))
    votes, nearest = vote(queries, bank, labels, 5, k=9, temperature=0.001, memory=8)
    assert torch.isfinite(votes).all()
    assert torch.equal(votes.argmax(1), labels[nearest[:, 0]])


def test_k_larger_than_the_bank_is_refused() -> None:
    with pytest.raises(ValueError, match="k=20 needs as many labelled training images, there are 3"):
        vote(unit(2, 4), unit(3, 4), torch.zeros(3, dtype=torch.int64), 2, k=20, temperature=1, memory=8)


@pytest.fixture
def context(shard_folder, params, here, quiet, tiny_backbone, tmp_path) -> Context:
    return Context(
        backbone=tiny_backbone.eval(),
        representations={"pixels": Pixels()},
        train=Reader(shard_folder, "train"),
        val=Reader(shard_folder, "val"),
        source=params.dataset,
        seed=0,
        machine=here,
        progress=quiet,
        out=tmp_path,
    )


def test_knn_evaluates_every_representation(context) -> None:
    metrics = knn.evaluate(knn.Config(kind="knn", k=5, temperature=0.07, memory=8), context)
    assert set(metrics) == {"top1", "pixels_top1"}
    pixels = [F.normalize(extract(Pixels(), r, context.source, context.machine), dim=1) for r in (context.train, context.val)]
    nearest = (pixels[1] @ pixels[0].T).topk(5)
    votes = torch.zeros(60, 20).scatter_add_(
        1, torch.from_numpy(context.train.labels)[nearest.indices], (nearest.values / 0.07).exp()
    )
    expected = 100 * (votes.argmax(1).numpy() == context.val.labels).mean()
    assert metrics["pixels_top1"] == pytest.approx(expected)
    assert (context.out / "neighbours.png").exists()
    assert len((context.out / "classes.csv").read_text().splitlines()) == 21


NO_LIST = {"list": None, "list_md5": None, "list_url": None}


def tiny(config, **changes):  # type: ignore[no-untyped-def]
    return config.model_copy(update={"optim": config.optim.model_copy(update={"epochs": 3, "batch_size": 20, **changes})})


def test_linear_leaves_the_backbone_alone_and_trains_each_head_by_itself(context, params) -> None:
    """A grid of two learning rates gives each head what it gets when trained alone."""
    config = tiny(params.evaluations["linear"])
    backbone = context.backbone
    before = fingerprint(backbone)
    # heads differ in their random start, so every grid puts the head in question first
    alone = [linear.evaluate(config.model_copy(update={"base_lrs": [lr]}), context) for lr in (1.0,)]
    grid = linear.evaluate(config.model_copy(update={"base_lrs": [1.0, 1e-6]}), context)
    assert fingerprint(backbone) == before
    assert grid["top1"] == alone[0]["top1"]
    assert grid["lr"] == 1.0
    assert grid["top5"] >= grid["top1"]


def test_linear_notices_a_backbone_that_changes(context, params) -> None:
    class Leaky(nn.Module):
        fc_features = 4

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return x.mean((2, 3)).repeat(1, 2)[:, :4]

    leaky = Context(**{**context.__dict__, "backbone": Leaky()})
    with pytest.raises(AssertionError, match="linear evaluation has changed the backbone"):
        linear.evaluate(tiny(params.evaluations["linear"]), leaky)


@pytest.mark.parametrize(("fraction", "expected"), [(0.01, [1, 1, 1]), (0.1, [1, 5, 10]), (1.0, [5, 50, 100])])
def test_semi_chooses_a_stratified_part(fraction, expected) -> None:
    labels = np.repeat([0, 1, 2], [5, 50, 100])
    chosen = semi.choose(labels, fraction, seed=3)
    assert np.bincount(labels[chosen]).tolist() == expected
    assert np.array_equal(chosen, semi.choose(labels, fraction, seed=3))
    assert len(np.unique(chosen)) == len(chosen)
    if fraction < 1:
        assert not np.array_equal(chosen, semi.choose(labels, fraction, seed=4))


def test_semi_trains_a_copy_on_the_chosen_labels(context, params) -> None:
    before = fingerprint(context.backbone)
    metrics = semi.evaluate(tiny(params.evaluations["semi_1"]), context)
    assert metrics["labels"] == 20
    assert len((context.out / "labels.txt").read_text().splitlines()) == 20
    assert fingerprint(context.backbone) == before


def test_semi_on_a_frozen_backbone_is_a_linear_probe(context, params) -> None:
    """Nesterov's SGD written out, on the same batches, image by image through the frozen backbone."""
    config = tiny(params.evaluations["semi_10"], weight_decay=0.0).model_copy(update={"backbone_lr": 0.0})
    chosen = semi.choose(context.train.labels, 0.5, seed=0)
    before = fingerprint(context.backbone)
    backbone, head = semi.fine_tune(config, context, chosen)
    assert fingerprint(backbone) == fingerprint(context.backbone) == before

    torch.manual_seed(context.seed)
    initial = torch.cat([classifier(8, 20).weight.detach().T, torch.zeros(1, 20)])  # (D + 1, classes), the bias last
    velocity, expected = torch.zeros_like(initial), initial.clone()
    settings, plan = config.optim, Plan(len(chosen), config.optim.batch_size, context.seed)
    data = TrainSet(context.train, list(config.views.values()), plan, chosen)
    inputs, steps = Inputs(context.source, data, context.machine.device), 3 * plan.steps_per_epoch
    for step, batch in enumerate(data.batches(0, steps, 0)):
        with torch.no_grad():
            features = torch.cat([context.backbone(image[None]) for image in inputs(batch)[0][0]])
        features = F.pad(features, (0, 1), value=1.0)  # (N, D + 1)
        error = (features @ expected).softmax(1) - F.one_hot(batch.labels, 20)
        gradient = features.T @ error / len(error)
        velocity = 0.9 * velocity + gradient
        rate = settings.base_lr * settings.gamma ** sum(step >= m * steps for m in settings.milestones)
        expected -= rate * (gradient + 0.9 * velocity)
    torch.testing.assert_close(head.weight.detach(), expected[:-1].T)
    torch.testing.assert_close(head.bias.detach(), expected[-1])
    assert not torch.allclose(head.weight.detach(), initial[:-1].T, atol=1e-3)


def test_semi_on_all_labels_with_a_frozen_backbone_is_the_linear_evaluation(context, params) -> None:
    linear_config = tiny(params.evaluations["linear"]).model_copy(update={"base_lrs": [1.0]})
    config = semi.Config(
        **linear_config.model_dump(exclude={"kind", "base_lrs"}), kind="semi", fraction=1.0, backbone_lr=0.0, **NO_LIST
    )
    assert semi.evaluate(config, context)["top1"] == linear.evaluate(linear_config, context)["top1"]


def test_extract_follows_the_index_and_restores_the_mode(context) -> None:
    backbone = copy.deepcopy(context.backbone).train()
    features = extract(backbone, context.val, context.source, context.machine)
    assert features.shape == (60, 8)
    assert backbone.training
    some = extract(backbone, context.val, context.source, context.machine, np.array([41, 3]))
    torch.testing.assert_close(some, features[[41, 3]])
