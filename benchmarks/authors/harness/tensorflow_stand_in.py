"""As much of TensorFlow as SimCLR's loss and LARS use, on torch tensors."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class Variable:
    """A parameter or its momentum."""

    def __init__(self, tensor: Tensor, name: str = "") -> None:
        self.tensor, self.op = tensor, SimpleNamespace(name=name)
        self.shape = SimpleNamespace(as_list=lambda: list(tensor.shape))

    def __rmul__(self, factor: float) -> Tensor:
        return factor * self.tensor

    def __sub__(self, change: Tensor) -> Tensor:
        return self.tensor - change

    def norm(self) -> Tensor:
        """For tf.norm."""
        return self.tensor.norm()

    def assign(self, value: Tensor) -> None:
        """Set the value."""
        self.tensor.data.copy_(value)


def for_loss() -> SimpleNamespace:
    """`tf` for add_contrastive_loss."""
    return SimpleNamespace(
        math=SimpleNamespace(l2_normalize=lambda x, axis: F.normalize(x, dim=axis)),
        split=lambda x, count, axis: x.chunk(count, axis),
        shape=lambda x: x.shape,
        range=torch.arange,
        one_hot=lambda index, count: F.one_hot(index, count).double(),
        matmul=lambda a, b, transpose_b: a @ b.T,
        concat=torch.cat,
        losses=SimpleNamespace(
            softmax_cross_entropy=lambda labels, logits, weights: F.cross_entropy(logits, labels) * weights
        ),
    )


def for_optimizer() -> SimpleNamespace:
    """`tf` for LARSOptimizer, with the variables that it creates."""
    created: dict[str, Variable] = {}
    return SimpleNamespace(
        train=SimpleNamespace(Optimizer=type("Optimizer", (), {"__init__": lambda self, *args: None})),
        float32=None,
        zeros_initializer=lambda: None,
        norm=lambda x, ord: x.norm(),
        where=lambda condition, a, b: torch.where(condition, _tensor(a), _tensor(b)),
        greater=lambda a, b: a > b,
        multiply=lambda a, b: _tensor(a) * _tensor(b),
        group=lambda *args, **kwargs: None,
        get_variable=lambda name, shape, **options: created.setdefault(
            name, Variable(torch.zeros(shape, dtype=torch.float64))
        ),
    )


def _tensor(x: Any) -> Tensor:
    return torch.as_tensor(getattr(x, "tensor", x), dtype=torch.float64)
