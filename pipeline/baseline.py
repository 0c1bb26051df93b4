"""baseline: an encoder trained with labels, or not at all, through the same evaluations and transfers."""

from typing import TYPE_CHECKING

import click

from pipeline import command

if TYPE_CHECKING:
    from pathlib import Path

    from torchvision.models.resnet import ResNet

    from cl.checkpoint import Checkpoints
    from cl.config import Baseline, Params


@click.command()
@click.argument("name")
@command.entry_point
def main(name: str) -> None:
    """Train and evaluate the baseline NAME of params.yaml."""
    params = command.params()
    config = command.choose(name, params.baselines, "baselines")
    import copy

    from torch import nn

    from cl.checkpoint import Checkpoints
    from cl.features import Pixels
    from pipeline.evaluate import evaluate
    from pipeline.transfer import transfer

    checkpoints = Checkpoints(command.scratch("baseline", name), command.checkpoint_seconds())
    with command.results("baseline", name) as results:
        backbone = train(config, name, params, checkpoints)
        representations: dict[str, nn.Module] = {} if config.training else {"pixels": Pixels()}
        evaluations, transfers = params.selected(config)
        metrics: dict[str, float] = {}
        for entry in evaluations:
            out = _folder(results.folder, entry)
            metrics |= evaluate(params.evaluations[entry], entry, copy.deepcopy(backbone), representations, params, out)
        for entry in transfers:
            metrics |= transfer(params.transfers[entry], entry, copy.deepcopy(backbone), params, _folder(results.folder, entry))
        results.metrics |= {f"{name}_{key}": value for key, value in metrics.items()}
    checkpoints.discard()


def _folder(parent: "Path", name: str) -> "Path":
    folder = parent / name
    folder.mkdir()
    return folder


def train(config: "Baseline", name: str, params: "Params", checkpoints: "Checkpoints") -> "ResNet":
    """The baseline's encoder, initialised from the seed, in eval mode."""
    import torch

    from cl import backbones, machine, optim
    from cl.order import Plan
    from cl.reader import TrainSet
    from cl.tasks import Classification, classifier
    from cl.train import train as run

    torch.manual_seed(params.seed)
    backbone = backbones.build(params.backbone).eval()
    if config.training is None:
        return backbone
    here = machine.find(params.precision, deterministic=params.deterministic)
    reader = command.reader("train")
    task = Classification(backbone, classifier(backbone.fc_features, len(reader.manifest.classes)), here)
    here.place(task)
    settings, labelled = config.training.optim, reader.labelled
    plan = Plan(len(labelled), settings.batch_size, params.seed)
    run(
        task,
        TrainSet(reader, list(config.training.views.values()), plan, labelled),
        settings,
        optim.build(settings, [(task, 1.0)]),
        source=params.dataset,
        progress=command.progress(name),
        checkpoints=checkpoints,
    )
    return backbone


if __name__ == "__main__":
    main()
