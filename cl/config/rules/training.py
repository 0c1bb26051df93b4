"""Rules about the computation of a batch, the start of a run and its baselines."""

from cl.config.params import Params
from cl.networks import patches
from cl.networks.batch_norm import has_batch_norm


def _start_is_given_once(params: Params) -> None:
    if params.init and params.start_from:
        raise ValueError(f"init={params.init.name} and start_from={params.start_from.name}: choose one")
    if params.hand_over == "better" and not params.init:
        raise ValueError("hand_over=better needs a start: set init, for example to torchvision:resnet50")


def _bn_groups_fit_batch(params: Params) -> None:
    group, batch = params.bn_group, params.optim.batch_size
    if group != "global" and (group < 2 or batch % group):
        raise ValueError(
            f"bn_group={group} must divide optim.batch_size={batch} into groups of two or more, or be global"
        )


def microbatches_hold_bn_groups(params: Params, ranks: int = 1) -> None:
    """Raises ValueError if parts of a batch, which `ranks` processes share, cut batch-norm groups."""
    microbatches, group = params.optim.microbatches, params.bn_group
    size = params.optim.batch_size / ranks / microbatches
    if microbatches == 1 or (group != "global" and size % group == 0):
        return
    network = params.backbone.outline()
    if network is None or has_batch_norm(network):
        raise ValueError(
            f"optim.microbatches={microbatches} gives each process parts of size {size:g}, expected a "
            f"multiple of bn_group={group}; choose fewer, or a smaller bn_group"
        )


def _compiled_encoders_run_as_a_whole(params: Params) -> None:
    stage = getattr(params.patches, "stage", None)
    compiled = str(params.optim.compile).lower()
    if compiled in ("true", "graphs") and stage in patches.STITCHED:
        raise ValueError(
            f"optim.compile={compiled} compiles an encoder as a whole, but patches.stage={stage} runs it in "
            "parts; choose optim.compile=false"
        )


def _device_crops_the_views(params: Params) -> None:
    for name, view in params.views.items():
        if view.jigsaw and params.optim.cropping == "device":
            raise ValueError(f"optim.cropping=device cannot cut the jigsaw of views.{name}; choose workers")


def _baselines_name_what_exists(params: Params) -> None:
    for name, baseline in params.baselines.items():
        evaluations, transfers = params.selected(baseline)
        for group, chosen, known in (
            ("evaluations", evaluations, params.evaluations),
            ("transfers", transfers, params.transfers),
        ):
            if unknown := [choice for choice in chosen if choice not in known]:
                choices = ", ".join(known) or "nothing"
                raise ValueError(f"baselines.{name}.{group} names {unknown[0]}; choose from {choices} or all")


CHECKS = (
    _start_is_given_once,
    _bn_groups_fit_batch,
    microbatches_hold_bn_groups,
    _compiled_encoders_run_as_a_whole,
    _device_crops_the_views,
    _baselines_name_what_exists,
)
