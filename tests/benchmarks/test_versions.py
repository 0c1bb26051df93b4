"""The comparison with an earlier commit, at a tiny size: with this commit itself."""

import re

import pytest
import torch
from click.testing import CliRunner

from benchmarks import versions
from benchmarks.version_cases import CASES


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (number > 2)) for number, case in enumerate(CASES)]
)
def test_every_case_gives_numbers(case: str) -> None:
    found = CASES[case](16)()
    assert found.ndim == 1
    assert torch.isfinite(found).all()


def test_a_commit_that_the_clone_lacks_is_named() -> None:
    result = CliRunner().invoke(versions.main, ["c0ffee0"])
    assert result.exit_code == 1
    expected = r"Error: this clone does not give the code of c0ffee0 \(.+\); name another commit\n"
    assert re.search(expected, result.output)
