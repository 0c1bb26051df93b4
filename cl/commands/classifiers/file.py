"""The file of a trained classifier: a head with its classes and its encoder, without pickle."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from cl.commands.classifiers.heads import Head
from cl.runtime.tensor_files import DamagedError, load_tensors, save_tensors

KIND = "logistic regression"


@dataclass(frozen=True)
class Classifier:
    """A head, the names of its C classes, and the encoder of its features.

    encoder: `sha256` and `transform`, where the features recorded them, and where the encoder was found.
    """

    head: Head
    classes: list[str]
    encoder: dict[str, str]

    def check(self, encoder: dict[str, str], file: Path, width: int | None = None) -> None:
        """Raises ValueError if the encoder gives other features than the one that trained the classifier."""
        expected = self.head.weights.shape[1]
        if width not in (None, expected):
            raise ValueError(
                f"{file} takes {expected} features per image, found {width}; give the encoder that trained it"
            )
        for name in ("sha256", "transform"):
            trained, given = self.encoder.get(name), encoder.get(name)
            if trained and given and trained != given:
                raise ValueError(
                    f"{file} was trained with the {name} {trained}, but the features came from {given}; give "
                    "the encoder and size that trained it, or train it again"
                )


def save(classifier: Classifier, path: Path) -> None:
    """Write the file, whole or not at all."""
    head = classifier.head
    tensors = {"weights": torch.from_numpy(head.weights), "bias": torch.from_numpy(head.bias)}
    about = {
        "kind": KIND,
        "classes": classifier.classes,
        "temperature": head.temperature,
        "several": head.multilabel,
        "encoder": classifier.encoder,
    }
    save_tensors(tensors, path, {"classifier": json.dumps(about)})


def load(path: Path) -> Classifier:
    """Read a file that `save` has written.

    Raises:
        ValueError: it is missing, damaged, or not a classifier.
    """
    if not path.is_file():
        raise ValueError(f"no file {path}; train a classifier with `cl classify --labels ... --save {path}`")
    try:
        tensors, metadata = load_tensors(path)
        about = json.loads(metadata["classifier"])
        weights, bias = tensors["weights"].numpy(), tensors["bias"].numpy()
        head = Head(weights, bias, float(about["temperature"]), bool(about["several"]))
        classifier = Classifier(head, list(about["classes"]), dict(about["encoder"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{path} is not a classifier ({error}); write one with `cl classify --save`"
        ) from error
    shapes = (len(classifier.classes), len(bias), len(weights))
    if about["kind"] != KIND or len(set(shapes)) > 1:
        raise DamagedError(
            f"{path} is a {about['kind']} of {shapes} classes, expected a {KIND}; train it again with this "
            "version of cl"
        )
    return classifier
