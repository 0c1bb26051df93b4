"""As much of jax, optax, tree and absl as BYOL's loss, LARS and schedules use, on torch tensors."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.authors.harness.stand_ins import stub


class Flag(NamedTuple):
    """`jnp.array` of a truth value."""

    value: bool

    def astype(self, dtype: Any) -> float:
        return float(self.value)


class Transformation(NamedTuple):
    """optax.GradientTransformation."""

    init: Callable
    update: Callable


def install() -> None:
    """Put the stand-ins into `sys.modules`."""
    numpy = stub(
        "jax.numpy",
        ndarray=Tensor,
        float32=torch.float64,
        pi=torch.pi,
        cos=lambda x: torch.cos(_tensor(x)),
        minimum=lambda a, b: torch.minimum(_tensor(a), _tensor(b)),
        maximum=lambda a, b: torch.maximum(_tensor(a), _tensor(b)),
        where=lambda condition, a, b: torch.where(condition, _tensor(a), _tensor(b)),
        sum=lambda x, axis=None, keepdims=False: torch.sum(x, dim=axis, keepdim=keepdims),
        square=torch.square,
        linalg=SimpleNamespace(norm=torch.linalg.vector_norm),
        zeros_like=torch.zeros_like,
        array=Flag,
    )
    stub("jax", numpy=numpy, tree_map=tree_map, lax=SimpleNamespace(rsqrt=torch.rsqrt))
    scale = lambda factor: Transformation(  # noqa: E731
        lambda p: None, lambda u, s, p=None: (tree_map(lambda x: x * factor, u), s)
    )
    stub(
        "optax",
        Updates=dict,
        Params=dict,
        GradientTransformation=Transformation,
        scale=scale,
        chain=_chain,
    )
    stub("tree", map_structure_with_path=_map_with_path)
    stub("absl", logging=None)


def tree_map(function: Callable, first: Any, *rest: Any) -> Any:
    """A function of the leaves of nested dictionaries."""
    if not isinstance(first, dict):
        return function(first, *rest)
    return {key: tree_map(function, value, *(tree[key] for tree in rest)) for key, value in first.items()}


def _map_with_path(function: Callable, tree: Any, path: tuple = ()) -> Any:
    if not isinstance(tree, dict):
        return function(path, tree)
    return {key: _map_with_path(function, value, (*path, key)) for key, value in tree.items()}


def _chain(*parts: Transformation) -> Transformation:
    def update(updates: Any, states: list, params: Any) -> tuple[Any, list]:
        new = []
        for part, state in zip(parts, states, strict=True):
            updates, after = part.update(updates, state, params)
            new.append(after)
        return updates, new

    return Transformation(lambda params: [part.init(params) for part in parts], update)


def _tensor(x: Any) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float64)
