"""Weighted k-nearest-neighbour classification on the labelled training images' features (InstDisc, section 3.4)."""

import csv
import re
from functools import partial
from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import nn

from cl.evaluations import Context, labels_of, write_per_class
from cl.features.extraction import Unit, extract_all
from cl.features.knn import classify, top1
from cl.runtime.base_config import BaseConfig

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Config(BaseConfig):
    """`k` neighbours vote with weight exp(cosine / temperature).

    grid_k, grid_temperature: tried as well, in the same pass, for `grid.csv`.
    memory: held at a time beside the features themselves, such as 512MiB.
    half: the bank is kept in float16.
    leave_one_out: also the training images, each by all the others.
    """

    kind: Literal["knn"]
    k: int = Field(gt=0)
    temperature: float = Field(gt=0)
    grid_k: list[int]
    grid_temperature: list[float]
    memory: str
    half: bool
    leave_one_out: bool

    @field_validator("memory")
    @classmethod
    def _has_unit(cls, value: str) -> str:
        if not re.fullmatch(rf"\d*\.?\d+({'|'.join(UNITS)})", value):
            raise ValueError(f"memory={value}: give a number with KiB, MiB or GiB, such as 512MiB")
        return value

    @field_validator("grid_k", "grid_temperature")
    @classmethod
    def _positive(cls, values: list[float]) -> list[float]:
        if wrong := [value for value in values if value <= 0]:
            raise ValueError(f"{wrong[0]} is not above 0")
        return values

    @property
    def bytes(self) -> int:
        """The bound on memory."""
        return int(float(self.memory[:-3]) * UNITS[self.memory[-3:]])


def evaluate(config: Config, context: Context) -> dict[str, float]:
    """top1 of the backbone's features, and `<name>_top1` of everything else there is."""
    labels, truth = (labels_of(reader, context.machine.device) for reader in (context.train, context.val))
    k, temperatures = [config.k, *config.grid_k], [config.temperature, *config.grid_temperature]
    metrics, grid = {}, []
    for names, encoder in _encoders(context):
        banks, queries = (
            extract_all(encoder, reader, context.source, context.machine, reader.labelled, dtype)
            for reader, dtype in (
                (context.train, torch.float16 if config.half else torch.float32),
                (context.val, torch.float32),
            )
        )
        for name, bank, query in zip(names, banks, queries, strict=True):
            run = partial(classify, k=k, temperature=temperatures, memory=config.bytes)
            predicted, _ = run(query, bank, labels, len(context.classes))
            prefix = "" if name == "backbone" else f"{name}_"
            metrics[f"{prefix}top1"] = top1(predicted[0, 0], truth)
            grid += [
                (name, count, temperature, round(top1(predicted[i, j], truth), 2))
                for i, count in enumerate(k)
                for j, temperature in enumerate(temperatures)
            ]
            if config.leave_one_out:
                itself = torch.arange(len(bank), device=bank.device)
                guessed, _ = run(bank, bank, labels, len(context.classes), itself=itself)
                metrics[f"{prefix}leave_one_out_top1"] = top1(guessed[0, 0], labels)
            if name == "backbone":
                write_per_class(predicted[0, 0], truth, context)
    with (context.out / "grid.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("representation", "k", "temperature", "top1"), *dict.fromkeys(grid)])
    return metrics


def _encoders(context: Context) -> list[tuple[list[str], nn.Module]]:
    """Names and modules of what is compared: the backbone with its heads in one pass, the rest in one each."""
    first = ["backbone", *context.heads], Unit(context.backbone, list(context.heads.values()))
    return [first, *(([name], Unit(encoder, [])) for name, encoder in context.representations.items())]
