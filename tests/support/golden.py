"""Golden values: what ten steps of a tiny encoder in float64 give for each method, and all shipped numbers.

`python -m tests.support.golden` adds the values of methods that have none yet, and changes no other. The
numbers of `pipeline/conf` are all replaced; the diff shows which changed.
"""

import json
from collections.abc import Iterator
from typing import Any

import torch

from cl.config import read
from cl.runtime.machine import Machine
from pipeline.compose import CONF
from tests.support.methods import (
    HERE,
    USUAL,
    Case,
    build,
    loss_config,
    on,
    task_of,
    training_batch,
    usual_loss,
    usual_name,
)
from tests.support.project import ROOT

FILE = ROOT / "tests/methods/golden.json"
NUMBERS = ROOT / "tests/pipeline/numbers.json"


def measure(case: Case, loss: str, here: Machine = HERE) -> list[float]:
    """The last loss and the length of all weights."""
    kind, option, cut = case
    usual = usual_loss(kind)
    config = usual if usual.kind == loss else loss_config(loss)
    task = task_of(build(kind, bn_groups=2, cut=cut, **option), config, here).to(here.device)
    optimizer = torch.optim.SGD([p for p in task.parameters() if p.requires_grad], 0.05, momentum=0.9)
    task.begin_epoch(0)
    for number in range(10):
        task.begin_step(number, number / 10)
        value = task(on(here.device, training_batch(kind, option, 8, number)))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        task.after_step((number + 1) / 10)
    length = torch.cat([p.detach().flatten() for p in task.parameters()]).norm()
    return [float(value.detach()), float(length)]


def shipped_numbers() -> dict[str, dict[str, float]]:
    """For each file of `pipeline/conf` its numbers by dotted key, without those of the files it builds on."""
    found = {path: dict(_numbers(read(path))) for path in sorted(CONF.rglob("*.yaml"))}
    return {
        str(path.relative_to(CONF).with_suffix("")): numbers for path, numbers in found.items() if numbers
    }


def _numbers(value: Any, *keys: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(inner, *keys, str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield ".".join(keys), value


def main() -> None:
    """Write what is missing, and all shipped numbers."""
    lines = [f" {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in shipped_numbers().items()]
    NUMBERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    missing = {usual_name(*cell): cell for cell in USUAL if usual_name(*cell) not in golden}
    golden |= {name: measure(*cell) for name, cell in missing.items()}
    FILE.write_text(json.dumps(dict(sorted(golden.items())), indent=1) + "\n")
    print(f"{len(missing)} golden values added to {FILE.relative_to(ROOT)}: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()
