"""Rules about the start of a run, the computation of a batch, the backbone, and what is measured with it."""

from collections.abc import Iterator

from torch import nn

from cl.config.params import Params
from cl.detection import feature_maps
from cl.evaluations import EvaluationConfig
from cl.networks import patches
from cl.networks.backbones import Trait, check_size
from cl.networks.batch_norm import has_batch_norm

# Each trait in words, and a backbone that has it.
NEEDED: dict[Trait, tuple[str, str]] = {
    "one network": ("one network for RGB", "a backbone without streams"),
    "two networks": ("two networks with streams", "backbone=resnet18_lab or backbone=resnet50_lab"),
    "residual stages": ("the stages of one network of kind=resnet", "backbone=resnet50"),
    "in detectron2": ("kind=resnet other than resnet10, with stem=imagenet and width=1", "backbone=resnet50"),
}


def _start_and_batch_are_possible(params: Params) -> None:
    group, optim, stage = params.bn_group, params.optim, getattr(params.patches, "stage", None)
    if params.init and params.start_from:
        raise ValueError(f"init={params.init.name} and start_from={params.start_from.name}: choose one")
    if params.hand_over == "better" and not params.init:
        raise ValueError("hand_over=better needs a start: set init, for example to torchvision:resnet50")
    if group != "global" and (group < 2 or optim.batch_size % group):
        raise ValueError(
            f"bn_group={group} must divide optim.batch_size={optim.batch_size} into groups of two or more, "
            "or be global"
        )
    microbatches_hold_bn_groups(params)
    if optim.compile in (True, "graphs") and stage in patches.STITCHED:
        compiled = str(optim.compile).lower()
        raise ValueError(
            f"optim.compile={compiled} compiles an encoder as a whole, but patches.stage={stage} runs it in "
            "parts; choose optim.compile=false"
        )
    for name, view in params.views.items():
        if view.jigsaw and optim.cropping == "device":
            raise ValueError(f"optim.cropping=device cannot cut the jigsaw of views.{name}; choose workers")


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


def _baselines_name_what_exists(params: Params) -> None:
    for name, baseline in params.baselines.items():
        for group, chosen in zip(("evaluations", "transfers"), params.selected(baseline), strict=True):
            known = getattr(params, group)
            if unknown := [choice for choice in chosen if choice not in known]:
                choices = ", ".join(known) or "nothing"
                raise ValueError(f"baselines.{name}.{group} names {unknown[0]}; choose from {choices} or all")


def _backbone_has_what_others_need(params: Params) -> None:
    backbone = params.backbone
    for place, trait, instead in _needs(params):
        if trait not in backbone.gives:
            needed, example = NEEDED[trait]
            found = next(each for each in backbone.gives if each.endswith(("network", "networks")))
            raise ValueError(
                f"{place} needs {needed}, which backbone.kind={backbone.kind} ({backbone.title}, {found}) "
                f"lacks; choose {instead}, or {example}"
            )


def _needs(params: Params) -> Iterator[tuple[str, Trait, str]]:
    """Each parameter that needs a trait of the backbone, the trait, and an alternative to the parameter."""
    for trait in params.method.needs_backbone:
        yield f"method.kind={params.method.kind}", trait, "another method"
    if params.init:
        yield f"init={params.init.name}", "one network", "init=null"
    if (stage := getattr(params.patches, "stage", None)) in patches.STITCHED:
        yield f"patches.stage={stage}", "residual stages", "patches.stage=final"
    for name, evaluation in params.evaluations.items():
        if getattr(evaluation, "maps", False):
            yield f"evaluations.{name}.maps=true", "residual stages", "another evaluation"
    for name, transfer in params.transfers.items():
        yield f"transfers.{name}", "one network", "transfer=[]"
        if "c4" in transfer.detector:
            pyramid = "a transfer with a pyramid, such as transfer=[voc_fpn]"
            yield f"transfers.{name}.detector={transfer.detector}", "residual stages", pyramid
        if transfer.engine == "detectron2":
            torchvision = f"transfers.{name}.engine=torchvision"
            yield f"transfers.{name}.engine=detectron2", "in detectron2", torchvision


def _network_does_what_is_asked(params: Params) -> None:
    network = params.backbone.outline()
    for key, evaluation in params.evaluations.items():
        if isinstance(evaluation, EvaluationConfig):
            try:
                evaluation.check_backbone(network or nn.Module())
            except ValueError as reason:
                raise ValueError(f"evaluations.{key}.{reason}") from None
    if network is None:
        return
    name = f"backbone.kind={params.backbone.kind} ({params.backbone.title})"
    channels = params.backbone.channels
    check_size(name, network, params.dataset.crop, "dataset.crop", channels)
    grid = getattr(params.patches, "grid", 1)
    for key, view in params.views.items():
        side = params.method.encoded_size(view.size) // grid
        place = f"views.{key}{'' if side == view.size else ', cut into patches'}"
        check_size(name, network, side, place, channels)
    if getattr(params.backbone, "checkpointing", False) and has_batch_norm(network):
        raise ValueError(
            f"backbone.checkpointing=true would count each batch twice in the batch norm of {name}; choose "
            "false, and optim.microbatches to save memory"
        )
    _detectors_find_their_maps(params, network, name)


def _detectors_find_their_maps(params: Params, network: nn.Module, name: str) -> None:
    for key, transfer in params.transfers.items():
        try:
            feature_maps.check(network, transfer.test_side)
        except ValueError as reason:
            raise ValueError(
                f"transfers.{key} needs maps of stride 4, 8, 16 and 32, or a transformer with patches of 1, "
                f"2, 4, 8, 16 or 32 px, for images of any size; {name} does not fit ({reason}); choose for "
                "example backbone.name=convnext_tiny or swin_tiny_patch4_window7_224, or transfer=[]"
            ) from None


CHECKS = (
    _start_and_batch_are_possible,
    _baselines_name_what_exists,
    _backbone_has_what_others_need,
    _network_does_what_is_asked,
)
