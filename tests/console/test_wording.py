"""Numbers of things in messages."""

import pytest

from cl.console.wording import counted


@pytest.mark.parametrize(
    ("things", "one"),
    [
        ("images", "1 image"),
        ("test images", "1 test image"),
        ("classes", "1 class"),
        ("processes", "1 process"),
        ("boxes", "1 box"),
        ("images of this process", "1 image of this process"),
    ],
)
def test_one_thing_is_singular(things, one) -> None:
    assert counted(1, things) == one
    assert counted(0, things) == f"0 {things}"
    assert counted(12, things) == f"12 {things}"
