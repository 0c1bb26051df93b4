"""baseline: an encoder trained with labels, or untrained, with the same evaluations and transfers."""

from typing import TYPE_CHECKING, Any

import click

from pipeline.support import command, launch, locations, outputs, resuming

if TYPE_CHECKING:
    from pathlib import Path

    from torchvision.models.resnet import ResNet

    from cl.config import Baseline, Params
    from cl.training.checkpoints import Checkpoints


@click.command()
@click.argument("name")
@command.entry_point
@launch.on_all_devices
def main(name: str) -> None:
    """Train and evaluate the baseline NAME of params.yaml, on all GPUs or in CL_PROCESSES processes."""
    params = command.params()
    config = command.choose(name, params.baselines, "baselines")
    outputs.require_inputs("baseline", name)
    import copy
    import functools

    from torch import nn

    from cl.evaluations import Encoder
    from cl.features.extraction import Pixels
    from pipeline.evaluate import evaluate
    from pipeline.transfer import data, transfer

    evaluations, transfers = params.selected(config)
    # Read first, so that missing data is reported before training.
    datasets = {entry: data(params.transfers[entry]) for entry in transfers}
    with resuming.checkpoints("baseline", name) as save, command.results("baseline", name) as results:
        backbone = train(config, name, params, save("training"))
        representations: dict[str, nn.Module] = {} if config.training else {"pixels": Pixels()}
        metrics: dict[str, float] = {}
        explained: dict[str, Any] = {}
        for entry in evaluations:
            encoder = Encoder(
                copy.deepcopy(backbone),
                representations=representations,
                untrained=config.training is None,
            )
            out = _folder(results.folder, entry)
            checkpoints = functools.partial(save, entry)
            measured, explained[entry] = evaluate(entry, encoder, params, out=out, checkpoints=checkpoints)
            metrics |= measured
        for entry, dataset in datasets.items():
            out = _folder(results.folder, entry)
            checkpoints = functools.partial(save, entry, dataset.digest()[:16])
            metrics |= transfer(
                entry, copy.deepcopy(backbone), dataset, params, out=out, checkpoints=checkpoints
            )
            explained[entry] = params.transfers[entry].explanation()
        results.metrics |= {f"{name}_{key}": value for key, value in metrics.items()}
        results.notes["explained"] = explained


def _folder(parent: "Path", name: str) -> "Path":
    folder = parent / name
    folder.mkdir()
    return folder


def train(config: "Baseline", name: str, params: "Params", checkpoints: "Checkpoints") -> "ResNet":
    """The baseline's encoder, initialised from the seed, in eval mode."""
    import torch

    from cl.data.sets import TrainSet
    from cl.evaluations import plan_of
    from cl.networks import backbones
    from cl.runtime.distributed import ranks
    from cl.training import optim
    from cl.training.loop import train as run
    from cl.training.tasks import Classification, classifier

    torch.manual_seed(params.seed)
    backbone = backbones.build(params.backbone).eval()
    if config.training is None:
        return backbone
    progress = command.progress(name)
    here = command.machine(progress, params.precision, deterministic=params.deterministic)
    reader = locations.reader("train", params.dataset)
    transform = locations.transform(params.dataset, reader.manifest.levels)
    settings, labelled = config.training.optim, reader.labelled
    plan = plan_of(len(labelled), settings.batch_size, params.seed)
    head = classifier(backbone.fc_features, len(reader.manifest.classes))
    shared = plan.ranks == ranks()
    task = here.place(Classification(backbone, head, here, seed=params.seed, shared=shared))
    run(
        task,
        TrainSet(reader, transform, list(config.training.views.values()), plan, labelled),
        settings,
        optim.build(settings, [optim.Part(task)]),
        progress=progress,
        checkpoints=checkpoints,
    )
    plain = here.place(backbones.build(params.backbone)).eval()
    plain.load_state_dict(backbone.state_dict())  # without batch norm over processes
    return plain


if __name__ == "__main__":
    main()
