"""Files of classifiers: what is read is what was written; damage and other encoders are refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from cl.commands.classifiers.file import Classifier, load, save
from cl.commands.classifiers.heads import Head
from cl.commands.inputs import matching
from cl.images.bands import Bands
from cl.runtime.tensor_files import load_tensors, save_tensors
from tests.support.resnets import TRANSFORM

BANDS = Bands(names=("1",), dtype="uint16", mean=(1,), deviation=(1,), levels=((0, 2),))
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


def test_other_features_are_refused() -> None:
    def check(notes: dict[str, str], width: int) -> list[str]:
        said: list[str] = []
        matching.check_same_encoder(("new", "old"), (notes, NOTES), (width, 8), "stop", said.append)
        return said

    assert check(NOTES, 8) == []
    assert check({}, 8) == ["new and old do not both record their encoder; make sure that it is the same"]
    with pytest.raises(ValueError, match=r"new came from .*def, not abc.* than old; stop"):
        check({**NOTES, "sha256": "def"}, 8)
    larger = TRANSFORM.model_copy(update={"resize": 64}).model_dump_json()
    with pytest.raises(ValueError, match=rf"another transform \(resize 64, not {TRANSFORM.resize}\)"):
        check({**NOTES, "transform": larger}, 8)
    changes = {"show": [1, 1, 1]}, {"bands": BANDS}
    shown, of_bands = (
        {**NOTES, "transform": TRANSFORM.model_copy(update=change).model_dump_json()} for change in changes
    )
    same = (8, 8)
    assert matching.difference(NOTES, shown, same) == matching.difference(shown, NOTES, same) == ""
    for first, other in ((NOTES, of_bands), (of_bands, NOTES)):
        assert matching.difference(first, other, same).startswith("another transform (bands ")
    with pytest.raises(ValueError, match=r"9 features per image, not 8"):
        check(NOTES, 9)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        *(("temperature", value, "temperature.* found") for value in (0, -1, 1e-300, 1e308, math.nan)),
        ("classes", ["a"] * 3, "occurs 3 times; expected distinct, non-empty names"),
        ("classes", ["", "b", "c"], "non-empty names"),
        ("classes", ["\x1b", "b", "c"], "control character"),
        ("classes", ["a", "b"], r"torch.float32 \(3, 8\), expected torch.float32 \(2, 12\)"),
        ("weights", torch.full((3, 8), math.nan), "nan in weights, expected finite"),
        ("weights", torch.full((3, 8), -1e38), r"e.3\d in weights, expected finite"),
        ("weights", torch.ones(3, 8).int(), "torch.int32"),
        ("bias", torch.ones(2), r"bias are torch.float32 \(2,\), expected torch.float32 \(3,\)"),
        ("bias", None, "it has no 'bias'"),
    ],
)
def test_a_wrong_entry_is_refused(entry, value, message, saved) -> None:
    tensors, metadata = load_tensors(saved[1])
    about = json.loads(metadata["classifier"])
    changed = tensors if entry in tensors else about
    changed[entry] = value
    if value is None:
        del changed[entry]
    save_tensors(tensors, saved[1], {"classifier": json.dumps(about)})
    with pytest.raises(ValueError, match=f"safetensors .*{message}") as error:
        load(saved[1])
    assert "\n" not in str(error.value)


def test_another_file_is_refused(tmp_path) -> None:
    save_tensors({"conv1.weight": torch.ones(1)}, tmp_path / "encoder.safetensors")
    with pytest.raises(ValueError, match=r"encoder\.safetensors is not a classifier.*cl classify --save"):
        load(tmp_path / "encoder.safetensors")
    with pytest.raises(ValueError, match=r"no file .*none\.safetensors"):
        load(tmp_path / "none.safetensors")
