"""Each reduction in blocks as on a CPU, and as on a GPU, which a CPU computes too."""

from collections.abc import Callable

import pytest
import torch

from cl.objective import blocks


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["plain", "native"])
def blocks_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the side of the blocks, or the square root of their area."""

    def set_side(side: int) -> None:
        monkeypatch.setattr(blocks, "BLOCK", side)
        monkeypatch.setattr(blocks, "AREA", side**2)
        devices = {torch.device("cpu")} if request.param == "native" else set()
        monkeypatch.setattr(blocks.NATIVE, "devices", devices)

    return set_side
