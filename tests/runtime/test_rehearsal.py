"""Rehearsals leave out what they can estimate: counted work stands in for time."""

import pytest

from cl.runtime import rehearsal
from cl.runtime.rehearsal import Loop, rehearsing, rounds


class Work:
    """A counter that is exact, unlike a clock."""

    def __init__(self) -> None:
        self.done = 0.0

    def __call__(self) -> dict[str, float]:
        return {"work": self.done}


def training(work: Work, steps: int, steps_per_epoch: int, images: int) -> None:
    """Steps of 2 units, the first of 50; after each epoch, `images` batches of 3 units and 7 for the rest.

    After the last step, 90 units are saved.
    """
    loop = Loop(range(1, steps + 1), steps)
    for step in loop:
        work.done += 50 if step == 1 else 2
        last = loop.enough() or step == steps
        if last or step % steps_per_epoch == 0:
            with loop.aside(-(-steps // steps_per_epoch)):
                for _ in rounds(range(images), images):
                    work.done += 3
                work.done += 7
        if last:
            work.done += 90


@pytest.mark.parametrize(
    ("steps", "steps_per_epoch", "images"),
    [(1000, 90, 400), (1000, 10, 4), (21, 7, 400), (4, 2, 1), (1, 1, 9)],
)
def test_the_estimate_equals_the_whole(steps, steps_per_epoch, images) -> None:
    """With one epoch or many, loops within loops, and loops too short to be cut."""
    whole, part = Work(), Work()
    training(whole, steps, steps_per_epoch, images)
    with rehearsing(part) as rehearsed:
        training(part, steps, steps_per_epoch, images)
        assert rehearsed.now()["work"] == pytest.approx(whole.done)
    if steps > rehearsal.WARM_UP + rehearsal.MOST:
        assert part.done < whole.done / 2
        assert rehearsed.loops[0].per_round["work"] == pytest.approx(2)


def test_outside_of_a_rehearsal_loops_run_in_full() -> None:
    with rehearsing():
        assert len(list(rounds(range(100), 100))) == rehearsal.WARM_UP + rehearsal.MOST
    assert len(list(rounds(range(100), 100))) == 100


def test_a_counter_that_is_lost_is_left_out() -> None:
    counts = [{"work": 1.0}, {"work": 2.0}]
    with rehearsing(lambda: counts.pop(0) if counts else {}) as rehearsed:
        assert list(rounds(range(40), 40))
    assert "work" not in rehearsed.left_out
    assert rehearsed.left_out["seconds"] >= 0
