"""lightly's own tests of NTXentLoss, DCLLoss and DCLWLoss, with our losses in their place.

For a single image, which has no negatives, NTXentLoss gives 0; our loss refuses it, so the stand-in gives 0.
Some tests draw numbers without a seed and compare in float32: here they get one.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.authors.harness.comparison import Agreement, Numbers
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import module_from, stub
from cl.losses import dcl, dclw, infonce
from cl.networks.queue import Queue
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast

SOURCE = Source("lightly-ai/lightly", "e8d317f", "tests/loss/test_ntx_ent_loss.py")
FILES = ("test_ntx_ent_loss.py", "test_dcl_loss.py")
INFONCE = infonce.Config(kind="infonce", alpha=None, positives="each")


@dataclass(frozen=True)
class Tests:
    """A comparison without numbers of ours: the tests need lightly's code."""

    name: str
    source: Source
    processes: int = 1
    tolerance: float = 0.0

    def compare(self, folder: Path) -> tuple[Agreement, Numbers]:
        """The fraction of tests that fail; pytest prints how many pass."""
        put_ours(folder)
        files = [str(folder / "tests" / "loss" / name) for name in FILES]
        options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder)]
        counter = Counter()
        np.random.seed(0)
        torch.manual_seed(0)
        assert pytest.main([*options, *files], plugins=[counter]) in (0, 1), "pytest could not run"
        return {"tests that fail": counter.failed / counter.run}, self.replay()

    def replay(self) -> Numbers:
        """Nothing."""
        return {}


class Counter:
    """A plugin of pytest that counts tests, and stands in for pytest-mock."""

    run = failed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test when it was called, unless it is skipped; failures in fixtures count too."""
        self.run += report.when == "call"
        self.failed += report.failed

    @pytest.fixture
    def mocker(self) -> Iterator[SimpleNamespace]:
        """Its `patch.object`."""
        with ExitStack() as stack:
            patch = lambda *args, **options: stack.enter_context(mock.patch.object(*args, **options))  # noqa: E731
            yield SimpleNamespace(patch=SimpleNamespace(object=patch))


def put_ours(folder: Path) -> None:
    """Replace the classes that the tests import."""
    stub("pytest_mock", MockerFixture=object)
    losses, decoupled = (module_from(folder, f"lightly.loss{name}") for name in ("", ".dcl_loss"))
    losses.NTXentLoss, decoupled.DCLLoss, decoupled.DCLWLoss = NTXent, DCL, DCLW


class Loss(nn.Module):
    """Our loss with the arguments of lightly's, in one process."""

    def __init__(
        self,
        temperature: float = 0.1,
        gather_distributed: bool = False,
        sigma: float = 0.5,
        weight_fn: Callable | None = None,
        memory_bank_size: int = 0,
    ) -> None:
        super().__init__()
        if gather_distributed and not torch.distributed.is_available():
            raise ValueError("no distributed")
        self.temperature, self.sigma, self.weight_fn = temperature, sigma, weight_fn
        self.size, self.queue = memory_bank_size, None

    def contrast(self, a: Tensor, b: Tensor) -> Contrast:
        """Each embedding against all others but its positive, as SimCLR makes it."""
        both = torch.stack([F.normalize(a, dim=1), F.normalize(b, dim=1)], 1).flatten(0, 1)
        itself = torch.arange(len(both))
        negatives = Negatives(both, excluded=torch.stack([itself, itself ^ 1], 1))
        return Contrast(both, both[itself ^ 1][:, None], negatives, self.temperature)


class NTXent(Loss):
    """InfoNCE, with a memory bank if it has a size."""

    def __init__(self, temperature: float = 0.5, **options) -> None:
        super().__init__(temperature, **options)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if self.size:
            return self.against_bank(F.normalize(a, dim=1), F.normalize(b, dim=1))
        if len(a) == 1:
            return (0 * a).sum()
        return infonce.loss(self.contrast(a, b), INFONCE, 0.0)

    def against_bank(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The loss against earlier keys; then these are enqueued."""
        self.queue = self.queue or Queue(self.size, keys.shape[1])
        contrast = Contrast(queries, keys[:, None], Negatives(self.queue.rows.clone()), self.temperature)
        self.queue.enqueue(keys.detach(), None, torch.Generator().manual_seed(0))
        return infonce.loss(contrast, INFONCE, 0.0)


class DCLW(Loss):
    """DCLW with detached weights, as lightly's."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        config = dclw.Config(kind="dclw", sigma=self.sigma, detach_weight=True)
        return dclw.loss(self.contrast(a, b), config, 0.0)


class DCL(DCLW):
    """DCL, or DCLW if it is given a function for the weights."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if self.weight_fn is not None:
            return super().forward(a, b)
        return dcl.loss(self.contrast(a, b), dcl.Config(kind="dcl"), 0.0)


COMPARISONS = [Tests("lightly_tests", SOURCE)]
