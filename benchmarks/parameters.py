"""The parameters of a run, for benchmarks that build networks and data as a run does."""

import tempfile
from pathlib import Path

from cl.config import Params, load
from pipeline.compose import compose


def parameters(*overrides: str) -> Params:
    """The checked parameters that `dvc exp run -S` composes with these overrides."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "params.yaml"
        compose(file, list(overrides))
        return load(file)
