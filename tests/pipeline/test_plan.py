"""What an experiment will cost: figures from real steps of a tiny project, which stays as it was."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from cl import config
from cl.data.order import Plan
from cl.data.ring import batches_ahead
from cl.runtime.machine import Machine
from pipeline import plan
from pipeline.composition.compose import write
from pipeline.support.pretraining import build
from tests.support.pictures import digest
from tests.support.project import compose
from tests.support.stages import Answer, Stage, answers

SETTINGS = ["optim.batch_size=64", "optim.epochs=40", "views.random.size=16"]
SETTINGS += ["optim.monitor.k=5", "optim.monitor.bank=40", "optim.monitor.queries=20"]
SETTINGS += ["analysis=[]", "baseline=[]", "evaluation=[knn]", "transfer=[voc_c4_24k]", "evaluations.knn.k=5"]


@pytest.fixture(scope="module")
def prepared(project_with_shards) -> Path:
    write(project_with_shards / "params.yaml", SETTINGS)
    return project_with_shards


@pytest.fixture(autouse=True)
def few_steps(monkeypatch) -> None:
    monkeypatch.setattr(plan, "SECONDS", 0.2)


def planned(folder: Path) -> Answer:
    (answer,) = answers(folder, [Stage(("plan",))])
    return answer


def test_a_plan_names_the_figures_and_changes_nothing(prepared) -> None:
    """40 epochs of one step each, with kNN after every epoch."""
    before = digest(prepared)
    answer = planned(prepared)
    assert answer.code == 0, answer.stderr
    assert digest(prepared) == before
    found = dict(line.split(": ", 1) for line in answer.stdout.splitlines())
    numbers = {
        name: [float(x) for x in re.findall(r"\d+\.?\d*(?:e-\d+)?", text)] for name, text in found.items()
    }
    hours, steps, epochs = numbers["pretraining"]
    seconds, images, rate = numbers["step"][:3]
    first, later = numbers["kNN"]
    assert (steps, epochs, images) == (40, 40, 64)
    assert hours == pytest.approx((40 * seconds + first + 39 * later) / 3600, rel=0.02)
    assert rate == pytest.approx(64 / seconds, rel=0.02)
    assert "fits" in found["memory"]
    assert "pretraining sees views of 16 px" in answer.stderr


def test_a_step_for_which_there_is_no_memory_is_told_as_such(prepared, monkeypatch) -> None:
    monkeypatch.setattr(plan, "_trial", lambda *args, **kwargs: torch.empty(10**17))
    answer = planned(prepared)
    assert answer.code == 1
    assert re.search(
        r"optim.batch_size=64 does not fit into .*; try half, or .*optim.microbatches", answer.stderr
    )


def test_without_shards_a_plan_asks_for_them(project) -> None:
    answer = planned(project)
    assert answer.code == 1
    assert "`dvc repro prepare`" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


class Clock:
    """A clock that moves where the test says, and a little at every look."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now


class Batches:
    """Training data: the first few batches come at once, as if filled ahead, and the others at this pace."""

    plan = Plan(samples=6400, batch_size=64, seed=0)

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds, self.clock = seconds, clock

    def inputs(self, here: Machine) -> Callable[[int], int]:
        return lambda batch: batch

    def batches(self, start: int, stop: int, workers: int) -> Iterator[int]:
        for step in range(start, stop):
            if step >= plan.WARM_UP + batches_ahead(self.plan.share, workers):
                self.clock.now += self.seconds
            yield step


@pytest.mark.parametrize(("data", "training"), [(0.03, 0.0), (0.0, 0.03), (0.02, 0.01)])
def test_a_step_takes_as_long_as_its_data_and_its_training(data, training, here, monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(plan, "time", clock)
    trial = plan.Trial(Batches(data, clock), here, lambda: 0.0)
    for _ in trial.batches(0, 1000, workers=2):
        clock.now += training
    assert trial.seconds == pytest.approx(data + training, rel=1e-2)
    assert trial.waiting == pytest.approx(data, rel=1e-2, abs=1e-4)


def test_microbatches_hold_no_groups_without_batch_norm(tmp_path, here) -> None:
    """With batch norm in the head alone, which gets the whole batch."""
    recipe = ("recipe=encoders/dino_vit_small", "backbone.name=vit_tiny_patch16_224", "method.prototypes=9")
    values = compose(
        tmp_path, *recipe, "method.projector.norm=true", "bn_group=global", "optim.microbatches=3"
    )
    params = config.check(values)
    assert build(params, here, 512)
