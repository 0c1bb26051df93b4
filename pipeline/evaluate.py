"""evaluate: one evaluation of the pretrained encoder."""

from typing import TYPE_CHECKING, Any

import click

from pipeline import command

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from torchvision.models.resnet import ResNet

    from cl.config import Params


@click.command()
@click.argument("name")
@command.entry_point
def main(name: str) -> None:
    """Run the evaluation NAME of params.yaml on models/backbone.safetensors."""
    params = command.params()
    config = command.choose(name, params.evaluations, "evaluations")
    with command.results("evaluate", name) as results:
        backbone, embedding = load(params)
        results.metrics |= evaluate(config, name, backbone, {"embedding": embedding}, params, results.folder)


def load(params: "Params") -> "tuple[ResNet, nn.Module]":
    """The pretrained backbone, and the backbone with the projector behind it."""
    from torch import nn

    from cl import backbones, heads
    from cl.checkpoint import load_tensors

    backbone = backbones.load(params.backbone, command.BACKBONE)
    projector = heads.build(params.method.projector, backbone.fc_features)
    tensors, _ = load_tensors(command.METHOD)
    prefix = "projector."
    projector.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    return backbone, nn.Sequential(backbone, projector)


def evaluate(
    config: Any, name: str, backbone: "ResNet", representations: "dict[str, nn.Module]", params: "Params", out: "Path"
) -> dict[str, float]:
    """The metrics of one evaluation, named `<name>_<metric>`."""
    from cl import machine
    from cl.config import module_of
    from cl.evaluations import Context

    here = machine.find(params.precision, deterministic=params.deterministic)
    for module in (backbone, *representations.values()):
        here.place(module).eval()
    context = Context(
        backbone=backbone,
        representations=representations,
        train=command.reader("train"),
        val=command.reader("val"),
        source=params.dataset,
        seed=params.seed,
        machine=here,
        progress=command.progress(name),
        out=out,
    )
    metrics = module_of("evaluations", config.kind).evaluate(config, context)
    context.progress.say(", ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
    return {f"{name}_{key}": value for key, value in metrics.items()}


if __name__ == "__main__":
    main()
