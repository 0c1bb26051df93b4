"""A tiny backbone to evaluate."""

from pathlib import Path

import pytest

from cl import config
from cl.data.reader import Reader
from cl.evaluations import EvaluationContext
from tests.support.tiny import TinyBackbone, evaluated


@pytest.fixture
def context(
    shard_folder: Path, params: config.Params, tiny_backbone: TinyBackbone, tmp_path: Path
) -> EvaluationContext:
    train, val = Reader(shard_folder, "train"), Reader(shard_folder, "val")
    return evaluated(train, val, params, tiny_backbone, tmp_path)
