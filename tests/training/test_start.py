"""The weights that a run starts from."""

import pytest
import torch

from cl.runtime.tensor_files import save_tensors
from cl.training import start


@pytest.mark.parametrize("damaged", ["method", "optimizer"])
def test_a_run_whose_training_diverged_is_not_continued(damaged, tmp_path) -> None:
    for name in ("method", "optimizer"):
        tensor = torch.tensor([1.0, float("nan") if name == damaged else 2.0])
        save_tensors({"momentum": tensor}, tmp_path / name, {"epochs": "1"})
    with pytest.raises(ValueError, match=f"{damaged} has nan in momentum, .*choose an earlier"):
        start.from_run(tmp_path / "method", tmp_path / "optimizer", [])
