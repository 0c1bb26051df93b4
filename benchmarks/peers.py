"""Other libraries' views, loaders and losses for a recipe on CIFAR-10."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from lightly.loss import DCLLoss, NTXentLoss
from lightly.transforms.multi_view_transform import MultiViewTransform
from lightly.transforms.simclr_transform import SimCLRViewTransform
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import CIFAR10

from benchmarks.authors.harness.source import Source, assign
from benchmarks.authors.harness.stand_ins import definitions, module_of_file
from cl.config import Params
from cl.methods import pairs
from pipeline.support import locations

SOLO_LEARN = Source("vturrisi/solo-learn", "9187ea3", "solo/data/pretrain_dataloader.py")
LOSSES = {"dcl": DCLLoss, "infonce": NTXentLoss}


class Parts(NamedTuple):
    """What a library brings to a training.

    views: turns a batch into its views, tensors (N, 3, S, S).
    loss: turns the embeddings of each view, (N, D), into their mean loss.
    """

    batches: DataLoader
    views: Callable[[Any], list[Tensor]]
    loss: Callable[[list[Tensor]], Tensor]


def lightly(
    params: Params, workers: int, source: Path | None, data: Callable[..., Dataset] | None = None
) -> Parts:
    """Every view against the first two, both ways: 12 ordered pairs of four views; our SimCLR has six.

    data: makes the images with a transform; by default those of CIFAR-10.
    """
    view, jitter = params.views["random"], params.views["random"].jitter
    transform = SimCLRViewTransform(
        input_size=view.size,
        cj_prob=jitter.p,
        cj_strength=1.0,
        cj_bright=jitter.brightness,
        cj_contrast=jitter.contrast,
        cj_sat=jitter.saturation,
        cj_hue=jitter.hue,
        min_scale=view.area[0],
        random_gray_scale=view.grayscale,
        gaussian_blur=view.blur.p,
        normalize={"mean": [*params.dataset.mean], "std": [*params.dataset.std]},
    )
    data = data or partial(CIFAR10, os.fspath(locations.raw()))
    images = data(transform=MultiViewTransform([transform] * view.count))
    criterion = LOSSES[params.loss.kind](temperature=params.temperature)
    return Parts(loader(images, params, workers), lambda batch: batch[0], partial(mean_of_pairs, criterion))


def mean_of_pairs(criterion: Callable[[Tensor, Tensor], Tensor], views: list[Tensor]) -> Tensor:
    """A symmetric loss of two views: the mean over every view against the first two."""
    chosen = pairs(len(views)) if len(views) > 2 else [(0, 1)]
    return torch.stack([criterion(views[a], views[b]) for a, b in chosen]).mean()


def stable_pretraining(params: Params, workers: int, source: Path | None) -> Parts:
    """InfoNCE of lightly's pairs of views, whatever the recipe's loss: it has no DCL.

    Raises:
        ValueError: the package is not installed.
    """
    try:
        from stable_pretraining import data, losses
    except ImportError:
        raise ValueError(
            "--by stable-pretraining needs its package: pip install stable-pretraining"
        ) from None
    view, made = params.views["random"], data.transforms
    jitter = view.jitter
    colours = {name: getattr(jitter, name) for name in ("brightness", "contrast", "saturation", "hue")}
    transform = made.Compose(
        made.RandomResizedCrop(view.size, scale=view.area),
        made.ColorJitter(**colours, p=jitter.p),
        made.RandomGrayscale(view.grayscale),
        made.RandomHorizontalFlip(view.flip),
        made.ToImage(mean=[*params.dataset.mean], std=[*params.dataset.std]),
    )
    images = data.FromTorchDataset(
        CIFAR10(os.fspath(locations.raw())),
        ["image", "label"],
        made.MultiViewTransform([transform] * view.count),
    )
    return Parts(
        loader(images, params, workers),
        lambda batch: [each["image"] for each in batch["views"]],
        partial(mean_of_pairs, losses.NTXEntLoss(params.temperature)),
    )


def solo_learn(params: Params, workers: int, source: Path | None) -> Parts:
    """InfoNCE of all pairs of views at once, whatever the recipe's loss: it has no DCL.

    Raises:
        ValueError: `source` is missing, is not a clone of solo-learn, or has another commit checked out.
    """
    if source is None:
        raise ValueError(f"--by solo-learn needs --source, a clone of {SOLO_LEARN}")
    source = assign([source], [SOLO_LEARN])[SOLO_LEARN]
    theirs = module_of_file(source / SOLO_LEARN.file)
    (criterion,) = definitions(
        source / "solo/losses/simclr.py",
        "simclr_loss_func",
        torch=torch,
        F=F,
        gather=lambda x: x,
        get_rank=lambda: 0,
    )
    view, jitter = params.views["random"], params.views["random"].jitter
    low, high = view.area
    settings = {
        "crop_size": view.size,
        "rrc": {"enabled": True, "crop_min_scale": low, "crop_max_scale": high},
        "color_jitter": {
            "prob": jitter.p,
            **{name: getattr(jitter, name) for name in ("brightness", "contrast", "saturation", "hue")},
        },
        "grayscale": {"prob": view.grayscale},
        "gaussian_blur": {"prob": view.blur.p},
        "solarization": {"prob": view.solarize},
        "equalization": {"prob": 0.0},
        "horizontal_flip": {"prob": view.flip},
    }
    transform = theirs.build_transform_pipeline("cifar10", OmegaConf.create(settings))
    images = theirs.prepare_datasets(
        "cifar10",
        theirs.prepare_n_crop_transform([transform], [view.count]),
        train_data_path=os.fspath(locations.raw()),
        download=False,
    )
    index = torch.arange(params.optim.batch_size).repeat(view.count)
    return Parts(
        loader(images, params, workers),
        lambda batch: batch[1],
        lambda each: criterion(torch.cat(each), index, params.temperature),
    )


def loader(images: Dataset, params: Params, workers: int) -> DataLoader:
    """As both libraries' examples make it, with workers that stay."""
    return DataLoader(
        images,
        params.optim.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


PARTS = {"lightly": lightly, "solo-learn": solo_learn, "stable-pretraining": stable_pretraining}
