"""Fine-tuning of an encoder on a few labelled images, if cross-validation finds it better."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.transforms import v2

from cl.commands.classifiers import heads
from cl.commands.classifiers.heads import Head, Trained
from cl.commands.inputs.labels import Targets
from cl.console.progress import Progress
from cl.encoders.encoder import Encoder
from cl.runtime import machine
from cl.statistics import separated

FOLDS = 3  # each costs a training
BATCH, STEPS, EPOCHS = 16, 80, 3  # STEPS, or more for EPOCHS
RATE, WARMUP = 1e-4, 0.1  # largest learning rate of AdamW; fraction of the steps before it
SOFTER = 4  # divides the logits of the head at the start
AREA = (0.5, 1.0)  # of the image that a crop covers


@dataclass(frozen=True)
class FinetuningComparison:
    """The frozen encoder, and then the fine-tuned one, on the same held-out images."""

    log_loss: tuple[float, float]  # mean over images, in nats
    accuracy: tuple[float, float]  # in percent; mean average precision if images have several labels
    error: float  # the standard error of the difference of the log-losses, over images or groups
    multilabel: bool  # images have several labels

    @property
    def better(self) -> bool:
        """Whether fine-tuning lowers the log-loss by more than its standard error."""
        return self.log_loss[0] - self.log_loss[1] > self.error


def finetuned_if_better(
    encoder: Encoder,
    files: Sequence[Path],
    features: np.ndarray,
    labels: Targets,
    head: Head,
    shown: Progress,
) -> tuple[FinetuningComparison, tuple[Encoder, Trained] | None]:
    """The fine-tuned encoder with its classifier, or None if cross-validation does not find it better.

    Three folds compare both: each fine-tunes a copy of the encoder, starting from the head of the frozen one
    on the same images. The temperatures of both are fitted in the same way. On a CPU, the result depends only
    on the arguments. All images have labels; `head` is trained on their frozen features.
    """
    assert encoder.config
    targets, multilabel = labels.targets, labels.multilabel
    frozen = heads.train(
        features, targets, labels.classes, labels.groups, multilabel=multilabel, number=FOLDS
    )
    before, after = np.empty(targets.shape), np.empty(targets.shape)  # logits of held-out images
    tuned_folds = []
    with machine.settings_restored():
        machine.find("fp32", deterministic=True)
        squares = middles(encoder, files)
        parts = [np.setdiff1d(np.arange(len(targets)), held_out) for _, held_out in frozen.folds]
        with shown.count(sum(map(passes, parts)), "images of fine-tuning") as report:
            for (start, held_out), seen in zip(frozen.folds, parts, strict=True):
                tuned, fitted = finetune(encoder, start, squares[seen], targets[seen], report)
                before[held_out] = start.logits(features[held_out])
                after[held_out] = fitted.logits(tuned.embed([files[row] for row in held_out]).numpy())
                tuned_folds.append((fitted, held_out))
        calibrated = _calibrated(after, tuned_folds, labels)
        comparison = _compared(labels, _calibrated(before, tuned_folds, labels), calibrated)
        if not comparison.better:
            return comparison, None
        shown.say("fine-tuning on all labelled images")
        with shown.count(passes(squares), "images of fine-tuning") as report:
            tuned, fitted = finetune(encoder, head, squares, targets, report)
    temperature = heads.fit_temperature(after, targets, multilabel=multilabel)
    final = Head(fitted.weights, fitted.bias, temperature, multilabel)
    held_out_probabilities = heads.probabilities(calibrated, 1.0, multilabel=multilabel)
    return comparison, (tuned, Trained(final, frozen.regularisation, held_out_probabilities, tuned_folds))


def _calibrated(logits: np.ndarray, folds: list[tuple[Head, np.ndarray]], labels: Targets) -> np.ndarray:
    """Logits (N, C) of held-out images over the temperature of each fold, which is fitted on the others."""
    calibrated = np.empty(logits.shape)
    for _, fold in folds:
        others = np.setdiff1d(np.arange(len(logits)), fold)
        temperature = heads.fit_temperature(
            logits[others], labels.targets[others], multilabel=labels.multilabel
        )
        calibrated[fold] = logits[fold] / temperature
    return calibrated


def middles(encoder: Encoder, files: Sequence[Path]) -> Tensor:
    """The middle of the images, (N, C, S, S) with S the transform's `resize`: uint8, or float32 of bands."""
    transform = encoder.transform.model_copy(update={"crop": encoder.transform.resize})
    return torch.stack([torch.from_numpy(transform.pixels(file)).permute(2, 0, 1) for file in files])


def passes(rows: Tensor | np.ndarray) -> int:
    """How many images a training on these takes, each counted as often as it is seen."""
    return BATCH * max(STEPS, EPOCHS * len(rows) // BATCH)


def finetune(
    encoder: Encoder,
    head: Head,
    squares: Tensor,
    targets: np.ndarray,
    report: Callable[[int], object] = lambda images: None,
) -> tuple[Encoder, Head]:
    """A copy of the encoder trained with the head, which gets temperature 1.

    The head starts with smaller logits: one that is right on all its images would not change the encoder.
    AdamW on random crops and flips, in one cycle of the learning rate. The network stays in eval mode: a few
    images would spoil the statistics of its batch norm.

    Args:
        squares: (N, C, S, S), of `middles`.
        targets: (N, C) bool.
        report: called with the number of images of each step; `passes` tells their sum.
    """
    network = copy.deepcopy(encoder.network).float().requires_grad_(True).eval()
    device, steps = next(network.parameters()).device, passes(squares) // BATCH
    weights, bias = (
        nn.Parameter(torch.from_numpy(values / np.float32(SOFTER * head.temperature)).to(device))
        for values in (head.weights, head.bias)
    )
    optimizer = torch.optim.AdamW([weights, bias, *network.parameters()], RATE, weight_decay=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, steps, pct_start=WARMUP, cycle_momentum=False
    )
    augment = v2.Compose([v2.RandomResizedCrop(encoder.transform.crop, AREA), v2.RandomHorizontalFlip()])
    truth, order = torch.from_numpy(targets).float(), torch.empty(0, dtype=torch.long)
    # As `heads.log_losses`, summed over labels.
    loss_of = F.binary_cross_entropy_with_logits if head.multilabel else F.cross_entropy
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        for _ in range(steps):
            while len(order) < BATCH:
                order = torch.cat([order, torch.randperm(len(squares))])
            rows, order = order[:BATCH], order[BATCH:]
            views = torch.stack([augment(squares[row]) for row in rows]).to(device)
            views = encoder.transform.normalise(views).contiguous(memory_format=torch.channels_last)
            logits = F.linear(F.normalize(network(views)), weights, bias)
            optimizer.zero_grad()
            (loss_of(logits, truth[rows].to(device), reduction="sum") / BATCH).backward()
            optimizer.step()
            schedule.step()
            report(BATCH)
    assert encoder.config
    tuned = Encoder(network, encoder.transform, encoder.architecture, config=encoder.config)
    tuned.licence = encoder.licence
    trained, offset = (parameter.detach().cpu().numpy() for parameter in (weights, bias))
    return tuned, Head(trained, offset, 1.0, head.multilabel)


def _compared(labels: Targets, frozen: np.ndarray, tuned: np.ndarray) -> FinetuningComparison:
    """Both from logits (N, C) of held-out images."""
    targets, multilabel = labels.targets, labels.multilabel
    before, after = (heads.log_losses(each, targets, multilabel=multilabel) for each in (frozen, tuned))
    groups = np.unique(separated(labels.groups, len(frozen)), return_inverse=True)[1]
    difference = before - after
    sums = np.bincount(groups, difference - difference.mean())
    count = len(sums)
    error = float(np.sqrt((sums**2).sum() * count / (count - 1))) / len(frozen)
    measure = heads.average_precisions if multilabel else heads.percent_right
    accuracy = float(measure(frozen, targets).mean()), float(measure(tuned, targets).mean())
    return FinetuningComparison((float(before.mean()), float(after.mean())), accuracy, error, multilabel)
