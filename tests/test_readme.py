"""The Python lines of README.md do what they say."""

import re

import torch

from cl.exchange.encoder import Encoder
from tests.support.pictures import picture_file
from tests.support.project import ROOT
from tests.support.resnets import save_encoder


def test_the_lines_that_load_an_encoder_run(tmp_path, monkeypatch) -> None:
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) == 5
    save_encoder(tmp_path / "models/backbone.safetensors")
    for seed, name in enumerate(("robin", "wren")):
        picture_file(tmp_path / f"{name}.jpg", seed)
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(lines, found)
    assert isinstance(found["encoder"], Encoder)
    assert found["features"].shape == (2, found["encoder"].width)
    assert found["images"].shape == (1, 3, 16, 16)
    torch.testing.assert_close(found["again"], found["features"][:1])
