"""Each reduction in blocks as on a CPU, and in blocks as on a GPU, which a CPU can compute too."""

from collections.abc import Callable

import pytest
import torch

from cl.objective import blocks


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", "gpu"])
def blocks_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the side of the blocks, or the square root of their area."""

    def set_side(side: int) -> None:
        monkeypatch.setattr(blocks, "BLOCK", side)
        monkeypatch.setattr(blocks, "AREA", side**2)
        monkeypatch.setattr(blocks, "for_gpu", lambda queries: request.param == "gpu")

    return set_side
