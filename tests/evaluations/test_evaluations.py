"""Linear and semi-supervised evaluation against the training written out."""

import copy
import csv
import itertools
import math
import os
import signal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cl import config
from cl.console.stop import StoppedError
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.evaluations import Context, linear, semi
from cl.features.extraction import extract, fingerprint
from cl.runtime.tensor_files import load_tensors
from cl.training.checkpoints import Checkpoints
from cl.training.tasks import classifier
from tests.support.project import compose
from tests.support.tiny import evaluated


@pytest.fixture
def context(shard_folder, params, here, quiet, tiny_backbone, tmp_path) -> Context:
    return evaluated(
        Reader(shard_folder, "train"), Reader(shard_folder, "val"), params, tiny_backbone, tmp_path
    )


NO_LIST = {"list": None, "list_md5": None, "list_url": None}


def tiny(config, **changes):  # type: ignore[no-untyped-def]
    return config.model_copy(
        update={"optim": config.optim.model_copy(update={"epochs": 3, "batch_size": 20, **changes})}
    )


def heads(context: Context, number: int = 0) -> dict[str, torch.Tensor]:
    """What the training with this number, in the order of their start, ended with."""
    (path,) = context.out.glob(f"checkpoints/{number}-*/*.safetensors")
    tensors, _ = load_tensors(path)
    return {name: value for name, value in tensors.items() if name.startswith("model.")}


def scores(context: Context) -> list[dict[str, float]]:
    """`heads.csv`."""
    with (context.out / "heads.csv").open(newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


@pytest.mark.parametrize("features", ["augmented", "cached"])
def test_a_grid_of_classifiers_is_what_each_is_exclusive(context, params, features) -> None:
    config = tiny(params.evaluations["linear"]).model_copy(update={"features": features})
    before = fingerprint(context.backbone)
    rates, decays = [1.0, 0.01], [0.0, 0.3]
    metrics = linear.evaluate(config.model_copy(update={"base_lrs": rates, "weight_decays": decays}), context)
    table = scores(context)
    grid = heads(context)
    assert [(row["base_lr"], row["weight_decay"]) for row in table] == list(itertools.product(rates, decays))
    alone = []
    for number, (lr, decay) in enumerate(itertools.product(rates, decays)):
        optim = config.optim.model_copy(update={"weight_decay": decay})
        single = config.model_copy(update={"base_lrs": [lr], "weight_decays": [], "optim": optim})
        linear.evaluate(single, context)
        alone += scores(context)
        for name, weight in heads(context, number + 1).items():
            torch.testing.assert_close(
                grid[name.replace("heads.0", f"heads.{number}")], weight, rtol=1e-6, atol=1e-6
            )
    assert alone == table
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
    config = tiny(params.evaluations["linear"], schedule="constant").model_copy(update={"base_lrs": [30.0]})
    ends = []
    for epochs in (1, 2, 3, 4):
        of = config.model_copy(update={"optim": config.optim.model_copy(update={"epochs": epochs})})
        metrics = linear.evaluate(of, context)
        ends.append((metrics["top1"], metrics["top5"]))
        best = max(ends, key=lambda pair: pair[0])
        assert (metrics["best_top1"], metrics["best_top5"]) == best
        assert scores(context)[0]["best_epoch"] == 1 + ends.index(best)
    assert len({top1 for top1, _ in ends}) > 1


def test_cached_features_are_trained_on_as_they_are(context, params) -> None:
    """SGD with momentum written out on the evaluation view's features; top-5 counted one by one."""
    config = tiny(params.evaluations["linear"], weight_decay=0.01)
    config = config.model_copy(update={"features": "cached", "views": {}, "base_lrs": []})
    metrics = linear.evaluate(config, context)

    features, queries = (
        extract(context.backbone, r, context.source, context.machine) for r in (context.train, context.val)
    )
    labels, truth = (torch.from_numpy(reader.labels) for reader in (context.train, context.val))
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
        weight = weight - config.optim.lr() * (1 + math.cos(math.pi * step / steps)) / 2 * velocity
    found = heads(context)
    torch.testing.assert_close(found["model.heads.0.weight"], weight[:-1].T)
    torch.testing.assert_close(found["model.heads.0.bias"], weight[-1])
    logits = F.pad(queries, (0, 1), value=1.0) @ weight
    among = [
        int(t) in sorted(range(20), key=lambda c: -row[c])[:5]
        for row, t in zip(logits.tolist(), truth, strict=True)
    ]
    assert metrics["cached_top5"] == pytest.approx(100 * sum(among) / len(among))
    assert metrics["cached_top1"] == pytest.approx(100 * float((logits.argmax(1) == truth).float().mean()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": "cached"}, "features=cached with 1 views: augmented takes one, cached none"),
        ({"views": {}}, "features=augmented with 0 views"),
        ({"optim.clip": 1.0}, "optim.clip=1.0 would tie 5 classifiers together; choose null"),
        (
            {"base_lrs": [0.1]},
            r"base_lrs=\[0.1\] leaves out optim.base_lr=1.0, which would have no effect; add it",
        ),
        ({"weight_decays": [0.1]}, r"weight_decays=\[0.1\] leaves out optim.weight_decay=0.0"),
        ({"base_lrs": [1.0, 0.0]}, "base_lrs"),
        ({"weight_decays": [-1.0]}, "weight_decays"),
    ],
)
def test_wrong_settings_of_linear_are_named(tmp_path, changes, message) -> None:
    values = compose(tmp_path)
    for key, value in changes.items():
        part = values["evaluations"]["linear"]
        *path, last = key.split(".")
        for name in path:
            part = part[name]
        part[last] = value
    with pytest.raises(ValueError, match=message):
        config.check(values)


def test_a_classifier_that_diverges_is_named(context, params) -> None:
    config = tiny(params.evaluations["linear"]).model_copy(update={"base_lrs": [1.0, 1e38]})
    with pytest.raises(
        FloatingPointError, match=r"at step \d.*One of the 2 classifiers did this: leave out base_lrs=1e\+38"
    ):
        linear.evaluate(config, context)


def test_a_stopped_evaluation_goes_on(context, params, monkeypatch) -> None:
    settings = tiny(params.evaluations["linear"])
    kept = Context(**{**context.__dict__, "checkpoints": lambda part: Checkpoints(context.out / "kept")})
    expected = linear.evaluate(settings, context)
    score = linear._score
    monkeypatch.setattr(
        linear, "_score", lambda *rest: [os.kill(os.getpid(), signal.SIGTERM), score(*rest)][1]
    )
    with pytest.raises(StoppedError, match="after step 7; run the same command again"):
        linear.evaluate(settings, kept)
    monkeypatch.setattr(linear, "_score", score)
    assert linear.evaluate(settings, kept) == expected
    tensors, _ = load_tensors(*(context.out / "kept").glob("*18.safetensors"))
    for name, weight in heads(context).items():
        assert torch.equal(tensors[name], weight)


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


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.01, [1, 1, 1]), (0.1, [1, 5, 10]), (1.0, [5, 50, 100])]
)
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
    assert set(metrics) == {"top1", "labels"}
    assert metrics["labels"] == 20
    assert len((context.out / "labels.txt").read_text().splitlines()) == 20
    assert fingerprint(context.backbone) == before


def test_an_untrained_encoder_is_also_trained_from_scratch(context, params) -> None:
    """As fine-tuning with its settings, the backbone at the full rate, would do."""
    settings = tiny(params.evaluations["semi_10"], base_lr=0.01)
    scratch = settings.optim.model_copy(update={"base_lr": 0.3, "epochs": 8})
    settings = settings.model_copy(update={"from_scratch": scratch})
    untrained = Context(**{**context.__dict__, "untrained": True})
    metrics = semi.evaluate(settings, untrained)
    assert metrics["top1"] == semi.evaluate(settings, context)["top1"]
    alone = settings.model_copy(update={"optim": scratch, "backbone_lr": 1.0})
    assert metrics["scratch_top1"] == semi.evaluate(alone, context)["top1"] != metrics["top1"]
    first, second = heads(context, 1), heads(context, 3)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_semi_on_a_frozen_backbone_is_a_linear_probe(context, params) -> None:
    """Nesterov's SGD written out, on the same batches, image by image through the frozen backbone."""
    config = tiny(params.evaluations["semi_10"], weight_decay=0.0).model_copy(update={"backbone_lr": 0.0})
    chosen = semi.choose(context.train.labels, 0.5, seed=0)
    before = fingerprint(context.backbone)
    backbone, head = semi.fine_tune(config, context, chosen)
    assert fingerprint(backbone) == fingerprint(context.backbone) == before

    torch.manual_seed(context.seed)
    initial = torch.cat(
        [classifier(8, 20).weight.detach().T, torch.zeros(1, 20)]
    )  # (D + 1, classes), the bias last
    velocity, expected = torch.zeros_like(initial), initial.clone()
    settings, plan = config.optim, Plan(len(chosen), config.optim.batch_size, context.seed)
    data = TrainSet(context.train, list(config.views.values()), plan, chosen)
    inputs, steps = data.inputs(context.source, context.machine.device), 3 * plan.steps_per_epoch
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
    same = linear_config.model_dump(include={"optim", "views", "seeds"})
    config = semi.Config(
        **same, kind="semi", fraction=1.0, backbone_lr=0.0, from_scratch=linear_config.optim, **NO_LIST
    )
    assert semi.evaluate(config, context)["top1"] == linear.evaluate(linear_config, context)["top1"]


def test_extract_follows_the_index_and_restores_the_mode(context) -> None:
    backbone = copy.deepcopy(context.backbone).train()
    features = extract(backbone, context.val, context.source, context.machine)
    assert features.shape == (60, 8)
    assert backbone.training
    some = extract(backbone, context.val, context.source, context.machine, np.array([41, 3]))
    torch.testing.assert_close(some, features[[41, 3]])
