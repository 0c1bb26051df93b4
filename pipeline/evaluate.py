"""evaluate: the evaluations of the pretrained encoder, or of another's."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline import command, launch, locations

if TYPE_CHECKING:
    from torch import nn
    from torchvision.models.resnet import ResNet

    from cl.config import Params
    from cl.training.checkpoints import Checkpoints


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--backbone", "file", help="Another encoder: a checkpoint of torchvision, MoCo, MoCo v3, SimSiam, lightly or "
              "solo-learn, a file of pipeline.export, or torchvision:resnet50.")  # fmt: skip
@click.option(
    "--prefix", help="Where in that file the encoder is, if it holds several: module.encoder_q. for example."
)
@command.entry_point
@launch.on_all_devices
def main(names: tuple[str, ...], file: str | None, prefix: str | None) -> None:
    """Run the evaluations NAME of params.yaml, or all, on models/backbone.safetensors, or on the encoder of --backbone.

    All visible GPUs are used, or CL_PROCESSES processes. What was measured of another encoder goes to others/.
    """
    params = command.params()
    configs = {
        name: command.choose(name, params.evaluations, "evaluations") for name in names or params.evaluations
    }
    if prefix is not None and file is None:
        raise ValueError(
            f"--prefix {prefix} says where in another file the encoder is; give --backbone FILE too"
        )
    notes: dict[str, Any] = {}
    if file is None:
        backbone, heads = load(params)
    else:
        backbone, heads, notes = foreign(file, prefix)
    for name, config in configs.items():
        run(name, config, params, backbone, heads, notes)


def run(
    name: str,
    config: Any,
    params: "Params",
    backbone: "ResNet",
    heads: "dict[str, nn.Module]",
    notes: dict[str, Any],
) -> None:
    """One evaluation, to its results; `notes` are those of another encoder."""
    from cl.training.checkpoints import Checkpoints

    scratch = command.scratch("evaluate", name, instead=notes.get("sha256", ""))
    with command.results("evaluate", name, root=notes.get("folder")) as results:
        results.notes |= notes
        save = lambda part: Checkpoints(scratch / part, command.checkpoint_seconds())  # noqa: E731
        results.metrics |= evaluate(config, name, backbone, params, results.folder, save, heads=heads)
    if command.is_main_process():  # the others may be done sooner
        Checkpoints(scratch).discard()


def load(params: "Params") -> "tuple[ResNet, dict[str, nn.Module]]":
    """The pretrained backbone, and the projector that stands behind it."""
    from cl.networks import backbones, heads
    from cl.runtime.tensor_files import load_tensors

    backbone = backbones.load(params.backbone, locations.BACKBONE)
    projector = heads.build(params.method.projector, backbone.fc_features)
    tensors, _ = load_tensors(locations.METHOD)
    prefix = "projector."
    projector.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    return backbone, {"embedding": projector}


def foreign(file: str, prefix: str | None) -> "tuple[ResNet, dict[str, nn.Module], dict[str, Any]]":
    """Another encoder, without a head behind it, and what is noted of it: also the folder of its results."""
    from cl.exchange import foreign

    found = foreign.load(file, prefix)
    command.progress("backbone").say(f"{file}: {found.config.kind}, {found.origin}")
    folder = f"others/{Path(file.replace(':', '-')).stem}-{found.sha256[:8]}"
    notes = {
        "backbone": file,
        "sha256": found.sha256,
        "origin": found.origin,
        "config": found.config.model_dump(),
    }
    return found.network, {}, notes | {"folder": folder}


def evaluate(
    config: Any,
    name: str,
    backbone: "ResNet",
    params: "Params",
    out: "Path",
    checkpoints: "Callable[[str], Checkpoints]",
    *,
    heads: "dict[str, nn.Module] | None" = None,
    representations: "dict[str, nn.Module] | None" = None,
    untrained: bool = False,
) -> dict[str, float]:
    """The metrics of one evaluation, named `<name>_<metric>`, over its seeds; see `cl.evaluations.Context`."""
    from cl.config import module_of
    from cl.evaluations import Context
    from cl.runtime import machine

    heads, representations = heads or {}, representations or {}
    here = machine.find(params.precision, deterministic=params.deterministic)
    for module in (backbone, *heads.values(), *representations.values()):
        here.place(module).eval()
    progress = command.progress(name)

    def measure(seed: int, folder: "Path") -> dict[str, float]:
        context = Context(
            backbone=backbone,
            heads=heads,
            representations=representations,
            untrained=untrained,
            train=locations.reader("train"),
            val=locations.reader("val"),
            source=params.dataset,
            seed=seed,
            machine=here,
            progress=progress,
            out=folder,
            checkpoints=lambda part: checkpoints(f"{part}-{seed}"),
        )
        return module_of("evaluations", config.kind).evaluate(config, context)

    metrics = command.repeated(measure, getattr(config, "seeds", None), params.seed, out)
    progress.say(", ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
    return {f"{name}_{key}": value for key, value in metrics.items()}


if __name__ == "__main__":
    main()
