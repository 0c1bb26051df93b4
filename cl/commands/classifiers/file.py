"""The file of a trained classifier: a head with its classes and its encoder, without pickle."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import ValidationError

from cl.commands.classifiers.heads import Head
from cl.encoders._descriptions import first_of
from cl.encoders.encoder import transform_in
from cl.runtime.base_config import BaseConfig
from cl.runtime.tensor_files import DamagedError, load_tensors, save_tensors


class About(BaseConfig):
    """What a file says of its head."""

    kind: Literal["logistic regression"] = "logistic regression"
    classes: list[str]
    temperature: float
    several: bool
    encoder: dict[str, str]


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
    """Read a file that `save` has written; raises ValueError for any other or a damaged one."""
    if not path.is_file():
        raise ValueError(f"no file {path}; train a classifier with `cl classify --labels ... --save {path}`")
    try:
        tensors, metadata = load_tensors(path)
        about = About.model_validate_json(metadata["classifier"])
        transform_in(about.encoder, str(path))
    except ValidationError as error:
        fault = first_of(error)
    except KeyError as error:
        fault = f"it has no {error}"
    except ValueError as error:
        fault = str(error)
    else:
        weights, bias = (tensors[name].numpy() for name in ("weights", "bias"))
        return Classifier(Head(weights, bias, about.temperature, about.several), about.classes, about.encoder)
    raise DamagedError(f"{path} is not a classifier ({fault}); write one with `cl classify --save`")
