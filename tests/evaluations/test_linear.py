"""Linear evaluation against trainings written out."""

import itertools
import math
import os
import signal
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu
from cl.console.stop import StoppedError
from cl.data.order import Plan
from cl.data.sets import EvalSet
from cl.evaluations import EvaluatedEncoder, linear
from cl.features.extraction import extract
from cl.networks import backbones
from cl.runtime.tensor_files import fingerprint
from cl.training.checkpoints import Checkpoints
from cl.training.tasks import classifier
from tests.support.backbones import config as backbone
from tests.support.backbones import residual
from tests.support.evaluations import model_tensors, read_heads, short, trained


@pytest.mark.parametrize("features", ["augmented", "cached"])
def test_each_classifier_of_a_grid_equals_one_trained_alone(context, params, features) -> None:
    config = short(params.evaluations["linear"], epochs=2).model_copy(update={"features": features})
    before = fingerprint(context.backbone)
    rates, decays = [1.0, 0.01], [0.0, 0.3]
    metrics = linear.evaluate(
        config.model_copy(update={"base_lrs": rates, "weight_decays": decays}), context
    )["backbone"]
    table = read_heads(context)
    grid = trained(context)
    assert [(row["base_lr"], row["weight_decay"]) for row in table] == list(itertools.product(rates, decays))
    alone = []
    for number, (lr, decay) in enumerate(itertools.product(rates, decays)):
        optim = config.optim.model_copy(update={"weight_decay": decay})
        single = config.model_copy(update={"base_lrs": [lr], "weight_decays": [], "optim": optim})
        linear.evaluate(single, context)
        alone += read_heads(context)
        for name, weight in trained(context, number + 1).items():
            torch.testing.assert_close(
                grid[name.replace("heads.0", f"heads.{number}")], weight, rtol=1e-6, atol=1e-6
            )
    for one, row in zip(alone, table, strict=True):
        assert one == pytest.approx(row)
    assert len({row["loss"] for row in table}) == len(table)
    assert fingerprint(context.backbone) == before
    prefix = "cached_" if features == "cached" else ""
    chosen = max(table, key=lambda row: row["top1"])
    assert metrics == pytest.approx(
        {
            f"{prefix}top1": chosen["top1"],
            f"{prefix}top5": chosen["top5"],
            f"{prefix}best_top1": max(row["best_top1"] for row in table),
            f"{prefix}best_top5": max(table, key=lambda row: row["best_top1"])["best_top5"],
            "base_lr": chosen["base_lr"],
            "weight_decay": chosen["weight_decay"],
        }
    )
    assert table[0]["top1"] > 5  # chance


def test_the_best_epoch_is_the_best_of_all(context, params) -> None:
    """A run of e epochs at a constant rate is the beginning of a longer one."""
    config = short(params.evaluations["linear"], schedule="constant").model_copy(update={"base_lrs": [30.0]})
    ends = []
    for epochs in (1, 2, 3, 4):
        of = config.model_copy(update={"optim": config.optim.model_copy(update={"epochs": epochs})})
        metrics = linear.evaluate(of, context)["backbone"]
        ends.append((metrics["top1"], metrics["top5"]))
        best = max(ends, key=lambda pair: pair[0])
        assert (metrics["best_top1"], metrics["best_top5"]) == best
        assert read_heads(context)[0]["best_epoch"] == 1 + ends.index(best)
    assert len({top1 for top1, _ in ends}) > 1


def test_cached_features_are_trained_on_as_they_are(context, params) -> None:
    """SGD with momentum written out on features of the evaluation view; top-5 counted one by one."""
    config = short(params.evaluations["linear"], weight_decay=0.01)
    config = config.model_copy(update={"features": "cached", "views": {}, "base_lrs": []})
    metrics = linear.evaluate(config, context)["backbone"]

    features, queries = (
        extract(context.backbone, EvalSet(r, context.transform), context.machine)
        for r in (context.train, context.val)
    )
    labels, truth = (torch.from_numpy(reader.labels()) for reader in (context.train, context.val))
    torch.manual_seed(context.seed)
    weight = torch.cat([classifier(8, 20).weight.detach().T, torch.zeros(1, 20)])
    velocity = torch.zeros_like(weight)
    plan = Plan(len(labels), config.optim.batch_size, context.seed)
    steps = 3 * plan.steps_per_epoch
    for step in range(steps):
        rows = plan.step(step)[1]
        x = F.pad(features[rows], (0, 1), value=1.0)
        error = (x @ weight).softmax(1) - F.one_hot(labels[rows], 20)
        velocity = 0.9 * velocity + x.T @ error / len(error) + 0.01 * weight
        weight = weight - config.optim.peak_lr * (1 + math.cos(math.pi * step / steps)) / 2 * velocity
    found = trained(context)
    torch.testing.assert_close(found["model.heads.0.weight"], weight[:-1].T)
    torch.testing.assert_close(found["model.heads.0.bias"], weight[-1])
    logits = F.pad(queries, (0, 1), value=1.0) @ weight
    among = [
        int(t) in sorted(range(20), key=lambda c: -row[c])[:5]
        for row, t in zip(logits.tolist(), truth, strict=True)
    ]
    assert metrics["cached_top5"] == pytest.approx(100 * sum(among) / len(among))
    assert metrics["cached_top1"] == pytest.approx(100 * float((logits.argmax(1) == truth).float().mean()))


def test_of_five_classes_there_is_no_top5(context, params) -> None:
    for reader in (context.train, context.val):
        reader.index = reader.index.copy()
        reader.index["label"] %= 5
        reader.manifest = reader.manifest.model_copy(update={"classes": list("abcde")})
    found = linear.evaluate(short(params.evaluations["linear"]), context)["backbone"]
    assert {name for name in found if "top" in name} == {"top1", "best_top1"}


def test_a_classifier_that_diverges_is_named(context, params) -> None:
    config = short(params.evaluations["linear"]).model_copy(update={"base_lrs": [1.0, 1e38]})
    with pytest.raises(FloatingPointError, match=r"at step \d.* remove 1e\+38 from base_lrs"):
        linear.evaluate(config, context)


def test_a_stopped_evaluation_is_resumed(context, params, monkeypatch) -> None:
    settings = short(params.evaluations["linear"])
    kept = replace(context, checkpoints=lambda part: Checkpoints(context.out / "kept"))
    expected = linear.evaluate(settings, context)
    scores = linear._scores
    monkeypatch.setattr(
        linear, "_scores", lambda *rest: [os.kill(os.getpid(), signal.SIGTERM), scores(*rest)][1]
    )
    with pytest.raises(StoppedError, match="after step 7; run the same command again"):
        linear.evaluate(settings, kept)
    monkeypatch.setattr(linear, "_scores", scores)
    assert linear.evaluate(settings, kept) == expected
    tensors = model_tensors(*(context.out / "kept").glob("*18.safetensors"))
    for name, weight in trained(context).items():
        assert torch.equal(tensors[name], weight)


def test_the_features_of_the_last_blocks_are_those_that_are_classified(context, params) -> None:
    settings = short(params.evaluations["linear"], epochs=1).model_copy(
        update={"features": "cached", "blocks": 2}
    )
    encoder = EvaluatedEncoder(backbones.build(backbone("test_vit")).eval())
    linear.evaluate(settings, replace(context, encoder=encoder))
    (weight,) = (x for name, x in trained(context).items() if name.endswith("heads.0.weight"))
    assert weight.shape[1] == 2 * encoder.backbone.fc_features


def test_the_best_of_the_maps_counts(context, params) -> None:
    settings = short(params.evaluations["linear"], epochs=2, base_lr=0.01)
    settings = settings.model_copy(update={"maps": True, "base_lrs": [0.01, 0.1]})
    encoder = EvaluatedEncoder(backbones.build(residual(width=0.125)).eval())
    metrics = linear.evaluate(settings, replace(context, encoder=encoder))["backbone"]
    table = read_heads(context)
    settings_of = list(itertools.product(range(1, 6), [0.01, 0.1]))
    assert [(row["map"], row["base_lr"]) for row in table] == settings_of
    best = max(table, key=lambda row: row["top1"])
    for name in ("top1", "map", "base_lr"):
        assert metrics[name] == pytest.approx(best[name])
    assert len({row["top1"] for row in table}) > 2


def test_the_weight_decay_can_follow_a_schedule(context, params) -> None:
    settings = short(params.evaluations["linear"], epochs=2)
    settings = settings.model_copy(update={"features": "cached", "base_lrs": [], "views": {}})
    optimizer = settings.optim.model_copy(update={"weight_decay": 0.0, "final_weight_decay": 5.0})
    lengths = []
    for part in (settings, settings.model_copy(update={"optim": optimizer})):
        linear.evaluate(part, context)
        lengths.append(sum(float(x.norm()) for x in trained(context, len(lengths)).values()))
    assert lengths[1] < lengths[0]


def test_batches_of_stored_features_make_no_step_wait_for_the_gpu() -> None:
    with FakeGpu() as gpu:
        features, labels = torch.empty(8, 5, device=GPU), torch.empty(8, dtype=torch.int64, device=GPU)
        gpu.may_wait = False
        batches = list(linear.Stored(features, labels, Plan(8, 4, 0)).batches(0, 2, 0))
    assert [tuple(batch.views[0].shape) for batch in batches] == [(4, 5), (4, 5)]
