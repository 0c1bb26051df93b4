"""analyze: one analysis of the finished framework."""

import click

from pipeline import command, store


@click.command()
@click.argument("name")
@command.entry_point
def main(name: str) -> None:
    """Run the analysis NAME of params.yaml on models/method.safetensors."""
    params = command.params()
    config = command.choose(name, params.analyses, "analyses")
    from cl import backbones, machine
    from cl.analyses import Context
    from cl.checkpoint import load_tensors
    from cl.config import module_of
    from cl.methods import Setup

    here = machine.find(params.precision, deterministic=params.deterministic)
    setup = Setup(backbones.build(params.backbone), params.temperature, params.patches, 1, params.seed)
    method = module_of("methods", params.method.kind).Method(params.method, setup)
    method.load_state_dict(load_tensors(store.METHOD)[0])
    with command.results("analyze", name) as results:
        context = Context(
            method=here.place(method).eval(),
            views=list(params.views.values()),
            train=store.reader("train"),
            source=params.dataset,
            seed=params.seed,
            machine=here,
            progress=command.progress(name),
            out=results.folder,
        )
        metrics = module_of("analyses", config.kind).analyze(config, context)
        results.metrics |= {f"{name}_{key}": value for key, value in metrics.items()}


if __name__ == "__main__":
    main()
