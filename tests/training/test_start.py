"""The weights that a run starts from."""

import json

import pytest
import torch

from cl.runtime.tensor_files import save_tensors
from cl.training import start


def test_a_band_of_init_must_have_its_place_in_the_images() -> None:
    weights = start.Start(origin={"bands": ["red", "green", "blue"]})
    for names in (("blue", "green", "red"), ("green", "blue", "infrared")):
        with pytest.raises(
            ValueError, match="red, green, blue, the images have .*; list their bands in dataset"
        ):
            weights.check_bands(names)
    for names in (("red", "green", "blue"), ("red", "green", "infrared"), ("1", "2", "3")):
        weights.check_bands(names)
    start.Start(origin={"bands": ["1", "2", "3"]}).check_bands(["2", "3", "4"])
    start.Start().check_bands(["red"])
    start.Start().check_bands(())
    with pytest.raises(ValueError, match="red, green, blue, the images are RGB"):
        weights.check_bands(())


def test_the_teacher_of_a_run_that_did_not_list_it_is_known(tmp_path) -> None:
    teacher = json.dumps({"name": "a", "hash": "sha256:1", "licence": "mit"})
    about = {"epochs": "1", "parameters": '{"seed": 0}', "data_manifest_sha256": "", "teacher": teacher}
    for name in ("method", "optimizer"):
        save_tensors({"weight": torch.ones(1)}, tmp_path / name, about)
    found = start.from_run(tmp_path / "method", tmp_path / "optimizer", []).origin["parameters"]
    assert found == {"seed": 0, "teacher": {"name": "a", "hash": "sha256:1"}}


@pytest.mark.parametrize("damaged", ["method", "optimizer"])
def test_a_run_whose_training_diverged_is_not_continued(damaged, tmp_path) -> None:
    for name in ("method", "optimizer"):
        tensor = torch.tensor([1.0, float("nan") if name == damaged else 2.0])
        save_tensors({"momentum": tensor}, tmp_path / name, {"epochs": "1"})
    with pytest.raises(ValueError, match=f"{damaged} has nan in momentum, .*choose an earlier"):
        start.from_run(tmp_path / "method", tmp_path / "optimizer", [])
