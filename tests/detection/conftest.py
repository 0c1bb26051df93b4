"""What the tests of detection share: a copy of the scenes to break, and the default transfers."""

import shutil
from pathlib import Path

import pytest

from cl.config import Params
from cl.detection.config import Config


@pytest.fixture
def copied(scenes_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(scenes_folder, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def voc_config(params: Params) -> Config:
    return params.transfers["voc_c4"]


@pytest.fixture
def coco_config(params: Params) -> Config:
    return params.transfers["coco_c4"]
