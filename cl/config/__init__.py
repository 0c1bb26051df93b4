"""The parameters of an experiment, the rules between them, and how they are read."""

from cl.config.fitting import for_few_images
from cl.config.params import Baseline, Init, Params
from cl.config.reading import check, load, parse, read, validated, with_arm

__all__ = [
    "Baseline",
    "Init",
    "Params",
    "check",
    "for_few_images",
    "load",
    "parse",
    "read",
    "validated",
    "with_arm",
]
