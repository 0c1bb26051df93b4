"""Running stages in a copy of the project."""

import pytest

from pipeline.support import workplace
from tests.support.project import ROOT


def test_a_run_ends_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the next look at its memory is due: after a pause of the machine, that can be hours."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(workplace, "EVERY", 300)
    with workplace.copy_of_project() as place:
        assert place.run("scratch", "--help").seconds < workplace.EVERY
