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


@pytest.mark.slow
def test_a_commit_is_measured_beside_the_working_tree() -> None:
    result = CliRunner().invoke(versions.main, ["HEAD", "--tiny", "--only", "running statistics"])
    assert result.exit_code == 0, result.output
    title, row = result.output.splitlines()
    assert title.endswith("one thread, float32; HEAD's time / today's, more is better")
    assert re.fullmatch(r"running statistics of 53 batch norms +[\d.]+ ms +[\d.]+", row)


def test_a_commit_that_the_clone_lacks_is_named() -> None:
    result = CliRunner().invoke(versions.main, ["c0ffee0"])
    assert result.exit_code == 1
    expected = r"Error: this clone does not give the code of c0ffee0 \(.+\); name another commit\n"
    assert re.search(expected, result.output)
