"""The file of a trained classifier: a head with its classes and its encoder, without pickle."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field, ValidationError, field_validator
from torch import Tensor

from cl.commands.classifiers.heads import TEMPERATURES, Head
from cl.encoders._descriptions import first_of
from cl.encoders.encoder import transform_in
from cl.images.folders import check_printable
from cl.runtime.base_config import BaseConfig
from cl.runtime.tensor_files import DamagedError, load_tensors, save_tensors

LARGEST = 1e30  # absolute value of a weight


class About(BaseConfig):
    """What a file says of its head."""

    kind: Literal["logistic regression"] = "logistic regression"
    classes: list[str] = Field(min_length=2)
    temperature: float = Field(ge=TEMPERATURES[0], le=TEMPERATURES[1])
    several: bool
    encoder: dict[str, str]

    @field_validator("classes")
    @classmethod
    def _distinct(cls, classes: list[str]) -> list[str]:
        for name, times in Counter(classes).items():
            check_printable(name, "classes")
            if times > 1 or not name:
                raise ValueError(f"class {name!r} occurs {times} times; expected distinct, non-empty names")
        return classes


@dataclass(frozen=True)
class Classifier:
    """A head, the names of its C classes, and the encoder of its features."""

    head: Head
    classes: list[str]
    encoder: dict[str, str]  # `sha256` and `transform`, where features recorded them, and where it was found


def save(classifier: Classifier, path: Path) -> None:
    """Write the file, whole or not at all."""
    head = classifier.head
    tensors = {"weights": torch.from_numpy(head.weights), "bias": torch.from_numpy(head.bias)}
    about = About(
        classes=classifier.classes,
        temperature=head.temperature,
        several=head.multilabel,
        encoder=classifier.encoder,
    )
    save_tensors(tensors, path, {"classifier": about.model_dump_json()})


def load(path: Path) -> Classifier:
    """Read a file that `save` has written; raises ValueError for any other."""
    if not path.is_file():
        raise ValueError(f"no file {path}; train a classifier with `cl classify --labels ... --save {path}`")
    try:
        tensors, metadata = load_tensors(path)
        about = About.model_validate_json(metadata["classifier"])
        transform_in(about.encoder, str(path))
        count, width = len(about.classes), max(1, tensors["weights"].numel() // len(about.classes))
        weights, bias = _array(tensors, "weights", (count, width)), _array(tensors, "bias", (count,))
    except ValidationError as error:
        fault = first_of(error)
    except KeyError as error:
        fault = f"it has no {error}"
    except (TypeError, ValueError) as error:
        fault = str(error)
    else:
        return Classifier(Head(weights, bias, about.temperature, about.several), about.classes, about.encoder)
    raise DamagedError(f"{path} is not a classifier ({fault}); write one with `cl classify --save`")


def _array(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The values of a tensor of a head; raises ValueError for others, or if their logits would overflow."""
    found = tensors[name]
    if found.dtype != torch.float32 or tuple(found.shape) != shape:
        raise ValueError(f"{name} are {found.dtype} {tuple(found.shape)}, expected torch.float32 {shape}")
    if len(wrong := found[~(found.abs() <= LARGEST)]):
        raise ValueError(f"{wrong[0]} in {name}, expected finite numbers of at most {LARGEST:g}")
    return found.numpy()
