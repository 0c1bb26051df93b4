"""The rules that parameters keep, among themselves and with the data; errors say what to choose.

The packages below declare what they are and need, and refuse what concerns them alone; the rules judge.
"""

from cl.config.params import Params
from cl.config.rules import backbones, methods, training
from cl.config.rules.data import check_data, check_labels, data_problems, needing_labels, warnings
from cl.config.rules.methods import losses_for

__all__ = ["check", "check_data", "data_problems", "losses_for", "needing_labels", "warnings"]

CHECKS = (*methods.CHECKS, check_labels, *training.CHECKS, *backbones.CHECKS)


def check(params: Params) -> None:
    """Check the parameters against each other.

    Raises:
        ValueError: some do not fit together.
    """
    for rule in CHECKS:
        rule(params)
