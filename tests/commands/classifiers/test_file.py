"""Files of classifiers: what is read is what was written; damage and other encoders are refused."""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cl.commands.classifiers.file import Classifier, load, save
from cl.commands.classifiers.heads import Head
from cl.runtime.tensor_files import load_tensors, save_tensors
from tests.support.resnets import TRANSFORM

NOTES = {"sha256": "abc", "transform": TRANSFORM.model_dump_json(), "folder": "/photos"}


@pytest.fixture
def saved(tmp_path) -> tuple[Classifier, Path]:
    rng = np.random.default_rng(0)
    head = Head(rng.normal(size=(3, 8)).astype("f4"), rng.normal(size=3).astype("f4"), 1.7, multilabel=True)
    classifier = Classifier(head, ["wren", "é;", "robin"], NOTES)
    save(classifier, tmp_path / "classifier.safetensors")
    return classifier, tmp_path / "classifier.safetensors"


def test_a_classifier_comes_back(saved) -> None:
    classifier, file = saved
    found = load(file)
    assert (found.classes, found.encoder) == (classifier.classes, NOTES)
    features = np.random.default_rng(1).normal(size=(5, 8)).astype("f4")
    np.testing.assert_array_equal(found.head.probabilities(features), classifier.head.probabilities(features))


def test_other_features_are_refused(saved) -> None:
    classifier, file = saved
    classifier.check(NOTES, file, width=8)
    classifier.check({}, file)
    with pytest.raises(ValueError, match=r"abc.*def.*encoder and size that trained it"):
        classifier.check({**NOTES, "sha256": "def"}, file)
    with pytest.raises(ValueError, match=r'crop.*\{"resize": 64\}'):
        classifier.check({**NOTES, "transform": '{"resize": 64}'}, file)
    with pytest.raises(ValueError, match=r"8 features.*found 9"):
        classifier.check(NOTES, file, width=9)


VALUES: list[Any] = [None, 0, -1, 1e308, math.nan, "", "x", [], {}, ["a"] * 3, ["a", "b"], ["\x1b", "b", "c"]]
TENSORS = [
    math.nan,
    math.inf,
    1e38,
    torch.ones(3, 7),
    torch.ones(2, 8),
    torch.ones(0),
    torch.ones(3, 8).int(),
]


def mutated(rng: np.random.Generator, file: Path) -> None:
    """One byte, one entry of the metadata or one tensor is another, or is missing."""
    what = rng.integers(3)
    if what == 0:
        content = bytearray(file.read_bytes())
        content[rng.integers(len(content))] ^= rng.integers(1, 256)
        file.write_bytes(content[: rng.choice([len(content), rng.integers(len(content))])])
        return
    tensors, metadata = load_tensors(file)
    about = json.loads(metadata["classifier"])
    changed = about if what == 1 else tensors
    name, values = rng.choice(list(changed)), VALUES if what == 1 else TENSORS
    value = values[rng.integers(len(values))]
    if what == 2 and not torch.is_tensor(value):
        tensors[name].view(-1)[1] = value
    else:
        changed[name] = value
    if rng.random() < 0.1:
        del changed[name]
    save_tensors(tensors, file, {"classifier": json.dumps(about)})


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_damaged_file_gives_a_sentence_or_finite_numbers(saved) -> None:
    """300 of many mutations."""
    classifier, file = saved
    rng, features = np.random.default_rng(0), np.ones((2, 8), np.float32)
    refused = Counter[str]()
    for _ in range(300):
        save(classifier, file)
        mutated(rng, file)
        try:
            found = load(file)
            found.check({}, file, width=8)
        except ValueError as error:
            assert str(error).startswith(str(file)) and "\n" not in str(error)
            refused.update(
                re.findall("nan|inf|temperature|non-empty names|expected torch.float32", str(error))
            )
        else:
            assert np.isfinite(found.head.probabilities(features)).all()
            assert len(set(found.classes)) == len(found.classes)
    assert len(refused) == 5


@pytest.mark.parametrize("temperature", [0, -1, 1e-300, 1e308, math.nan])
def test_a_temperature_that_was_not_fitted_is_refused(saved, temperature) -> None:
    tensors, metadata = load_tensors(saved[1])
    about = json.loads(metadata["classifier"]) | {"temperature": temperature}
    save_tensors(tensors, saved[1], {"classifier": json.dumps(about)})
    with pytest.raises(ValueError, match=r"safetensors .*temperature.* found"):
        load(saved[1])


def test_another_file_is_refused(tmp_path) -> None:
    save_tensors({"conv1.weight": torch.ones(1)}, tmp_path / "encoder.safetensors")
    with pytest.raises(ValueError, match=r"encoder\.safetensors is not a classifier.*cl classify --save"):
        load(tmp_path / "encoder.safetensors")
    with pytest.raises(ValueError, match=r"no file .*none\.safetensors"):
        load(tmp_path / "none.safetensors")
