"""baseline: an encoder trained with labels or untrained, with the same evaluations and transfers."""

import copy
import functools

import click
import torch
from torch import nn

from cl.config import Baseline, Params
from cl.data.order import plan_of
from cl.data.sets import TrainSet
from cl.evaluations import EvaluatedEncoder
from cl.features.extraction import Pixels
from cl.networks import backbones
from cl.networks.backbones import Backbone
from cl.runtime.distributed import ranks
from cl.training import loop, optim
from cl.training.checkpoints import Checkpoints
from cl.training.tasks import SupervisedTask, classifier
from pipeline.support import command, locations, outputs, runs
from pipeline.support.detection import data, transfer
from pipeline.support.evaluation import evaluate


@click.command()
@click.argument("name")
@command.entry_point
@command.on_all_devices
def main(name: str) -> None:
    """Train and evaluate the baseline NAME of params.yaml, on all GPUs or in CL_PROCESSES processes."""
    params = command.params()
    config = command.choose(name, params.baselines, "baselines")
    outputs.require_inputs("baseline", name)
    evaluations, transfers = params.selected(config)
    # Read first, so that missing data is reported before training.
    datasets = {entry: data(params.transfers[entry]) for entry in transfers}
    with runs.begin("baseline", name) as run, command.results("baseline", name) as results:
        results.notes |= run.notes
        backbone = train(config, name, params, run.checkpoints("training"))
        representations: dict[str, nn.Module] = {} if config.training else {"pixels": Pixels()}
        for entry in evaluations:
            encoder = EvaluatedEncoder(
                copy.deepcopy(backbone),
                representations=representations,
                untrained=config.training is None,
            )
            evaluate(entry, encoder, params, results, functools.partial(run.checkpoints, entry))
        for entry, dataset in datasets.items():
            checkpoints = functools.partial(run.checkpoints, entry, dataset.digest()[:16])
            transfer(entry, copy.deepcopy(backbone), dataset, params, results, checkpoints)


def train(config: Baseline, name: str, params: Params, checkpoints: Checkpoints) -> Backbone:
    """The baseline's encoder, initialised from the seed, in eval mode."""
    torch.manual_seed(params.seed)
    backbone = backbones.build(params.backbone).eval()
    if config.training is None:
        return backbone
    progress = command.progress(params.titles[name])
    here = command.find_machine(params)
    params, reader, _ = locations.data(params)
    training = params.baselines[name].training
    assert training
    transform = locations.transform(params.dataset, reader.manifest.levels)
    settings, labelled = training.optim, reader.labelled
    plan = plan_of(len(labelled), settings.batch_size, params.seed)
    head = classifier(backbone.fc_features, len(reader.manifest.classes))
    shared = plan.ranks == ranks()
    task = here.place(SupervisedTask(backbone, head, here, seed=params.seed, shared=shared))
    loop.train(
        task,
        TrainSet(reader, transform, list(training.views.values()), plan, labelled),
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
