"""The comparison with an earlier commit, at a tiny size: with this commit itself."""

import pytest
import torch

from benchmarks.version_cases import CASES


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (number > 2)) for number, case in enumerate(CASES)]
)
def test_every_case_gives_numbers(case: str) -> None:
    found = CASES[case](16)()
    assert found.ndim == 1
    assert torch.isfinite(found).all()
