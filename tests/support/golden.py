"""Golden values: what ten steps of a tiny encoder in float64 give for each method.

`python -m tests.support.golden` adds the values of methods that have none yet, and changes no other.
"""

import json

import torch

from cl.runtime.machine import Machine
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


def main() -> None:
    """Write what is missing."""
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    missing = {usual_name(*cell): cell for cell in USUAL if usual_name(*cell) not in golden}
    golden |= {name: measure(*cell) for name, cell in missing.items()}
    FILE.write_text(json.dumps(dict(sorted(golden.items())), indent=1) + "\n")
    print(f"{len(missing)} golden values added to {FILE.relative_to(ROOT)}: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()
