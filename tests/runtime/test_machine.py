"""What a run sets up on the machine."""

from collections.abc import Iterator

import pytest
import torch

from cl.runtime import machine


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """The settings are those of the whole process."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    yield
    cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


@pytest.mark.parametrize(
    ("precision", "products", "convolutions"),
    [("fp32", False, False), ("tf32", True, True), ("bf16", True, False)],
)
def test_beside_an_encoder_in_bfloat16_logits_may_use_tf32(precision, products, convolutions) -> None:
    machine._configure_backends(precision, deterministic=False)
    assert torch.backends.cuda.matmul.allow_tf32 == products
    assert torch.backends.cudnn.allow_tf32 == convolutions
