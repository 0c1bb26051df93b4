"""The memory bank: updates against a loop, sampling, the normalizer."""

import copy
import math
from typing import Any

import pytest
import torch

from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu
from cl.networks import bank as bank_module
from cl.networks.bank import Bank, Draw
from cl.networks.queue import NO_GROUP


def bank_of(images: int, momentum: float = 0.5) -> Bank:
    torch.manual_seed(0)
    return Bank(images, 5, momentum).double()


def new_rows(n: int, seed: int = 0) -> torch.Tensor:
    rows = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_rows_of_a_batch_are_averaged_with_their_embeddings(momentum) -> None:
    """Two updates against a loop; the other rows and groups stay as they were."""
    bank = bank_of(8, momentum)
    expected = bank.rows.clone()
    torch.testing.assert_close(expected.norm(dim=1), torch.ones(8, dtype=torch.float64))
    for step, images in enumerate([[5, 0, 3], [3, 7]]):
        new = new_rows(len(images), step)
        bank.update(torch.tensor(images), new, torch.tensor(images) * 10)
        for image, z in zip(images, new, strict=True):
            mixed = momentum * expected[image] + (1 - momentum) * z
            expected[image] = mixed / mixed.square().sum().sqrt()
    torch.testing.assert_close(bank.rows, expected, rtol=1e-14, atol=1e-14)
    assert bank.groups.tolist() == [0, NO_GROUP, NO_GROUP, 30, NO_GROUP, 50, NO_GROUP, 70]


def test_an_image_that_occurs_twice_is_updated_once() -> None:
    """By its first embedding, whatever the order in which the device writes."""
    twice, once = bank_of(8), bank_of(8)
    new = new_rows(5)
    twice.update(torch.tensor([2, 6, 2, 1, 6]), new, None)
    once.update(torch.tensor([2, 6, 1]), new[[0, 1, 3]], None)
    assert torch.equal(twice.rows, once.rows)


@pytest.mark.parametrize("own", [True, False])
def test_rows_are_drawn_with_replacement(own) -> None:
    """Uniformly over all rows, or over all but the image's own; each row of the batch by itself."""
    bank = bank_of(4)
    positions = torch.tensor([0, 3, 1])
    drawn = bank.sample(positions, 8000, torch.Generator().manual_seed(0), own=own)
    assert drawn.shape == (3, 8000)
    assert drawn.dtype == torch.int64
    for image, columns in zip(positions.tolist(), drawn, strict=True):
        shares = torch.bincount(columns, minlength=4) / len(columns)
        for other, share in enumerate(shares.tolist()):
            expected = 0.25 if own else (other != image) / 3
            assert share == pytest.approx(expected, abs=0.03 if expected else 0)
    again = bank.sample(positions, 8000, torch.Generator().manual_seed(0), own=own)
    other = bank.sample(positions, 8000, torch.Generator().manual_seed(1), own=own)
    assert torch.equal(drawn, again)
    assert not torch.equal(drawn, other)
    assert (drawn[0] == drawn[2]).double().mean() < 0.5  # not one sample for all


def test_threads_draw_what_one_would(monkeypatch) -> None:
    """The rows of each are drawn in parts."""
    samples = []
    for number in (1, 3):
        monkeypatch.setattr(bank_module, "share_of_cores", lambda number=number: number)
        samples.append(bank_of(20).sample(torch.arange(7), 11, torch.Generator().manual_seed(0), own=False))
    assert torch.equal(*samples)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_samples_of_the_next_step_are_drawn_meanwhile(monkeypatch) -> None:
    """They are dropped if another batch size is asked for; a copy of the bank draws for itself."""
    bank, positions, started = bank_of(20), torch.arange(7), []
    plain = [bank.sample(positions, 11, seeded(seed), own=False) for seed in range(3)]
    assert torch.equal(bank.sample(positions, 11, seeded(0), seeded(1), own=False), plain[0])
    copied, real = copy.deepcopy(bank), bank_module.start_drawing

    def start_drawing(generator: torch.Generator, *rest: Any) -> Draw:
        started.append(generator.initial_seed())
        return real(generator, *rest)

    monkeypatch.setattr(bank_module, "start_drawing", start_drawing)
    assert torch.equal(bank.sample(positions, 11, seeded(1), seeded(2), own=False), plain[1])
    assert started == [2]
    assert torch.equal(bank.sample(positions[:3], 11, seeded(2), own=False), plain[2][:3])
    assert torch.equal(copied.sample(positions, 11, seeded(1), own=False), plain[1])
    assert started == [2, 2, 1]


def already_pinned(x: torch.Tensor) -> torch.Tensor:
    assert x.is_pinned()
    return x


def test_samples_are_drawn_where_the_gpu_reads_them(monkeypatch) -> None:
    """In pinned memory: copying the rows there would take longer than drawing them."""
    with FakeGpu() as gpu:
        bank, positions = Bank(20, 5, 0.5).to(GPU), torch.arange(7, device=GPU)
        monkeypatch.setattr(torch.Tensor, "pin_memory", already_pinned)
        gpu.may_wait = False
        samples = bank.sample(positions, 11, torch.Generator(), own=False)
    assert (samples.shape, samples.dtype) == ((7, 11), torch.int64)


def test_the_normalizer_is_the_log_of_the_mean_exponential_and_is_saved() -> None:
    """Sums of different numbers of logits; a bank that gets the state knows that it has the estimate."""
    bank, other = bank_of(8), bank_of(8)
    logits = [torch.tensor([1.0, -3.0, 14.0]).double(), torch.tensor([2.0, 700.0]).double()]
    assert not bank.has_normalizer()
    sums = torch.stack([row.logsumexp(0) for row in logits])
    bank.estimate_normalizer(sums, torch.tensor([3.0, 2.0]).double())
    assert float(bank.log_normalizer) == pytest.approx(700 - math.log(5), abs=1e-12)
    assert bank.has_normalizer()
    other.load_state_dict(bank.state_dict())
    assert other.has_normalizer()
