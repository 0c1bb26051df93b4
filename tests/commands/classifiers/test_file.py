"""Files of classifiers: what is read is what was written; damage and other encoders are refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cl.commands.classifiers.file import Classifier, load, save
from cl.commands.classifiers.heads import Head
from cl.runtime.tensor_files import save_tensors

NOTES = {"sha256": "abc", "transform": "{}", "folder": "/photos"}


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
    with pytest.raises(ValueError, match=r'\{\}.*\{"resize": 64\}'):
        classifier.check({**NOTES, "transform": '{"resize": 64}'}, file)
    with pytest.raises(ValueError, match=r"8 features.*found 9"):
        classifier.check(NOTES, file, width=9)


def test_a_damaged_file_is_refused(saved, tmp_path) -> None:
    _, file = saved
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged.*cl classify --save"):
        load(file)
    file.write_bytes(content[:100])
    with pytest.raises(ValueError, match=r"incomplete.*cl classify --save"):
        load(file)
    save_tensors({"conv1.weight": torch.ones(1)}, tmp_path / "encoder.safetensors")
    with pytest.raises(ValueError, match=r"encoder\.safetensors is not a classifier"):
        load(tmp_path / "encoder.safetensors")
    with pytest.raises(ValueError, match=r"no file .*none\.safetensors"):
        load(tmp_path / "none.safetensors")
