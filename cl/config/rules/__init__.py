"""Rules between parameters, and between parameters and data; errors say what to choose."""

from cl.config.params import Params
from cl.config.rules import methods, training
from cl.config.rules.data import check_bands, check_data, check_labels, data_problems, warnings
from cl.config.rules.methods import losses_for

__all__ = ["check", "check_data", "data_problems", "losses_for", "warnings"]

CHECKS = (check_bands, *methods.CHECKS, check_labels, *training.CHECKS)


def check(params: Params) -> None:
    """Raises ValueError if parameters do not fit together; the message says what to choose."""
    for rule in CHECKS:
        rule(params)
