"""The parameters of a run, for benchmarks that build networks and data as a run does."""

from cl.config import Params, check
from pipeline.composition.compose import compose


def parameters(*overrides: str) -> Params:
    """The checked parameters that `dvc exp run -S` composes with these overrides."""
    return check(compose(list(overrides)))
