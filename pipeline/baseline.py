"""baseline: an encoder trained with labels, published or untrained, with the same evaluations."""

import copy
import functools

import click
import torch
from torch import nn

from cl.config import Params
from cl.config.params import SupervisedTraining
from cl.console.command import is_main_process
from cl.data.order import plan_of
from cl.data.sets import TrainSet
from cl.encoders import foreign, published
from cl.evaluations import EvaluatedEncoder
from cl.features.extraction import Pixels
from cl.networks import backbones
from cl.networks.backbones import Backbone
from cl.runtime.distributed import max_over_ranks, ranks
from cl.training import loop, optim
from cl.training.checkpoints import Checkpoints
from cl.training.tasks import SupervisedTask, classifier
from pipeline.composition import weight_hashes
from pipeline.support import command, locations, provenance, runs, teacher
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
    provenance.require_inputs("baseline", name)
    evaluations, transfers = params.selected(config)
    # Read first, so that missing data is reported before training.
    datasets = {entry: data(params.transfers[entry]) for entry in transfers}
    with runs.begin("baseline", name) as run, command.results("baseline", name) as results:
        results.notes |= run.notes
        if config.training == "teacher":
            backbone, params = of_teacher(params)
        elif config.weights:
            found = on_all_ranks(config.weights, config.hash, params)
            if isinstance(found, str):
                found += f"; then `dvc repro -f -s baseline@{name}` measures it"  # DVC keeps this result
                results.notes["missing"] = found
                command.progress(params.titles[name]).say(f"left out: {found}")
                return
            backbone, params = found
        else:
            backbone = train(name, params, run.checkpoints("training"))
        untrained = not (config.training or config.weights)
        representations: dict[str, nn.Module] = {"pixels": Pixels()} if untrained else {}
        for entry in evaluations:
            encoder = EvaluatedEncoder(
                copy.deepcopy(backbone), representations=representations, untrained=untrained
            )
            evaluate(entry, encoder, params, results, functools.partial(run.checkpoints, entry))
        for entry, dataset in datasets.items():
            checkpoints = functools.partial(run.checkpoints, entry, dataset.digest()[:16])
            transfer(entry, copy.deepcopy(backbone), dataset, params, results, checkpoints)


def on_all_ranks(weights: str, digest: str | None, params: Params) -> tuple[Backbone, Params] | str:
    """What `load_published` gives, the same for all processes: published weights, or why one lacks them.

    The first process downloads them, while the others wait.
    """
    found, reason = None, ""
    for is_first in (True, False):
        if is_main_process() is is_first:
            try:
                found = load_published(weights, digest, params)
            except ValueError as error:
                if not published.is_name(weights):
                    raise
                reason = str(error)
        if any(max_over_ranks(bool(reason))):
            return reason or f"{weights} cannot be loaded in another process"
    assert found
    return found


def load_published(name: str, digest: str | None, params: Params) -> tuple[Backbone, Params]:
    """The encoder with these weights, and the parameters with the normalisation that it records."""
    if (found := weight_hashes.of_file(name)) and digest not in (None, found):
        raise ValueError(f"{name} has changed since params.yaml was written: run `dvc exp run` again")
    encoder, size = foreign.load(name), params.dataset.crop
    backbones.check_size(f"{name}, a {encoder.config.title},", encoder.network, size, "dataset.crop")
    if encoder.normalisation is None:
        return encoder.network, params
    mean, std = map(tuple, encoder.normalisation.tolist())
    dataset = params.dataset.model_copy(update={"mean": mean, "std": std})
    return encoder.network, params.model_copy(update={"dataset": dataset})


def of_teacher(params: Params) -> tuple[Backbone, Params]:
    """The teacher, and the parameters with its size of images and its normalisation."""
    found = teacher.load(params)
    assert found, "the rules ask for one"
    own = found.transform.model_dump(include={"resize", "crop", "mean", "std"})
    return found.network, params.model_copy(update={"dataset": params.dataset.model_copy(update=own)})


def train(name: str, params: Params, checkpoints: Checkpoints) -> Backbone:
    """The baseline's encoder, initialised from the seed, in eval mode."""
    params, reader, _ = locations.data(params)
    torch.manual_seed(params.seed)
    backbone, training = backbones.build(params.backbone).eval(), params.baselines[name].training
    if not isinstance(training, SupervisedTraining):
        return backbone
    here, transform = command.find_machine(params), locations.transform(params.dataset, reader)
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
        progress=command.progress(params.titles[name]),
        checkpoints=checkpoints,
    )
    plain = here.place(backbones.build(params.backbone)).eval()
    plain.load_state_dict(backbone.state_dict())  # without batch norm over processes
    return plain


if __name__ == "__main__":
    main()
