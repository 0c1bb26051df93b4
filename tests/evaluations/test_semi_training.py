"""Semi-supervised evaluation: the choice of labels, and its training against one written out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cl.data.order import Plan
from cl.data.sets import TrainSet
from cl.evaluations import linear, semi
from cl.runtime.tensor_files import fingerprint
from cl.training.tasks import classifier
from tests.support.evaluations import short, trained


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.01, [1, 1, 1]), (0.36, [2, 18, 36]), (1.0, [5, 50, 100])]
)
def test_a_stratified_sample_has_labels_of_every_class(fraction, expected) -> None:
    labels = np.repeat([0, 1, 2], [5, 50, 100])
    chosen = semi.stratified(labels, fraction, seed=3)
    assert np.bincount(labels[chosen]).tolist() == expected
    assert np.array_equal(chosen, semi.stratified(labels, fraction, seed=3))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    if fraction < 1:
        assert not np.array_equal(chosen, semi.stratified(labels, fraction, seed=4))


def test_a_copy_is_trained_on_the_chosen_labels(context, params) -> None:
    before = fingerprint(context.backbone)
    metrics = semi.evaluate(short(params.evaluations["semi_1"]), context)["backbone"]
    assert set(metrics) == {"top1", "labels", "labels_percent"}
    assert metrics["labels_percent"] == pytest.approx(100 * metrics["labels"] / len(context.train))
    assert metrics["labels"] == 20
    assert len((context.out / "labels.txt").read_text().splitlines()) == 20
    assert fingerprint(context.backbone) == before


def test_an_untrained_encoder_is_also_trained_from_scratch(context, params) -> None:
    """As fine-tuning with these settings and the backbone at the full rate."""
    settings = short(params.evaluations["semi_10"], base_lr=0.01)
    scratch = settings.optim.model_copy(update={"base_lr": 0.3, "epochs": 8})
    settings = settings.model_copy(update={"from_scratch": scratch})
    untrained = replace(context, encoder=replace(context.encoder, untrained=True))
    metrics = semi.evaluate(settings, untrained)["backbone"]
    assert metrics["top1"] == semi.evaluate(settings, context)["backbone"]["top1"]
    alone = settings.model_copy(update={"optim": scratch, "backbone_lr": 1.0})
    assert metrics["scratch_top1"] == semi.evaluate(alone, context)["backbone"]["top1"] != metrics["top1"]
    first, second = trained(context, 1), trained(context, 3)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_on_a_frozen_backbone_it_is_a_linear_probe(context, params) -> None:
    """Nesterov's SGD written out, with the same batches, image by image through the frozen backbone."""
    config = short(params.evaluations["semi_10"], weight_decay=0.0).model_copy(update={"backbone_lr": 0.0})
    chosen = semi.stratified(context.train.labels(), 0.5, seed=0)
    before = fingerprint(context.backbone)
    backbone, head = semi.fine_tune(config, context, chosen)
    assert fingerprint(backbone) == fingerprint(context.backbone) == before

    torch.manual_seed(context.seed)
    initial = torch.cat(
        [classifier(8, 20).weight.detach().T, torch.zeros(1, 20)]
    )  # (D + 1, classes), the bias last
    velocity, expected = torch.zeros_like(initial), initial.clone()
    settings, plan = config.optim, Plan(len(chosen), config.optim.batch_size, context.seed)
    data = TrainSet(context.train, context.transform, list(config.views.values()), plan, chosen)
    to_device, steps = data.inputs(context.machine), 3 * plan.steps_per_epoch
    for step, batch in enumerate(data.batches(0, steps, 0)):
        with torch.no_grad():
            features = torch.cat([context.backbone(image[None]) for image in to_device(batch).views[0]])
        features = F.pad(features, (0, 1), value=1.0)  # (N, D + 1)
        error = (features @ expected).softmax(1) - F.one_hot(batch.labels, 20)
        gradient = features.T @ error / len(error)
        velocity = 0.9 * velocity + gradient
        rate = settings.base_lr * settings.gamma ** sum(step >= m * steps for m in settings.milestones)
        expected -= rate * (gradient + 0.9 * velocity)
    torch.testing.assert_close(head.weight.detach(), expected[:-1].T)
    torch.testing.assert_close(head.bias.detach(), expected[-1])
    assert not torch.allclose(head.weight.detach(), initial[:-1].T, atol=1e-3)


def test_with_all_labels_and_a_frozen_backbone_it_is_the_linear_evaluation(context, params) -> None:
    linear_config = short(params.evaluations["linear"]).model_copy(update={"base_lrs": [1.0]})
    same = linear_config.model_dump(include={"optim", "views", "seeds"})
    no_list = {"list": None, "list_md5": None, "list_url": None}
    config = semi.Config(
        **same, kind="semi", fraction=1.0, backbone_lr=0.0, from_scratch=linear_config.optim, **no_list
    )
    assert (
        semi.evaluate(config, context)["backbone"]["top1"]
        == linear.evaluate(linear_config, context)["backbone"]["top1"]
    )
