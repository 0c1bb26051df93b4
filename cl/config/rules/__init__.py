"""Rules between parameters, and between parameters and data; errors say what to choose.

Each package below `cl.config` declares its traits and needs, and checks its own parameters.
"""

from cl.config.params import Params
from cl.config.rules import backbones, methods, training
from cl.config.rules.data import check_data, check_labels, data_problems, needing_labels, warnings
from cl.config.rules.methods import losses_for
from cl.pretraining.resizing import Phase

__all__ = ["check", "check_data", "data_problems", "losses_for", "needing_labels", "warnings"]

CHECKS = (*methods.CHECKS, check_labels, *training.CHECKS, *backbones.CHECKS)


def check(params: Params) -> None:
    """Check the parameters against each other.

    Raises:
        ValueError: some do not fit together; the message says what to choose.
    """
    for rule in CHECKS:
        rule(params)
    for phase in params.optim.progressive_resizing:
        try:
            check(_with_smaller_views(params, phase))
        except ValueError as reason:
            raise ValueError(
                f"optim.progressive_resizing with scale={phase.scale}: {reason}; or choose another scale"
            ) from None


def _with_smaller_views(params: Params, phase: Phase) -> Params:
    views = {
        name: view.model_copy(update={"size": phase.side(view.size)}) for name, view in params.views.items()
    }
    optim = params.optim.model_copy(update={"progressive_resizing": []})
    return params.model_copy(update={"views": views, "optim": optim})
