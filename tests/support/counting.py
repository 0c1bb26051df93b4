"""Counts what code asks of a GPU, without one: operations, and moments when the CPU waits for it.

PyTorch's device `meta` stands in for the GPU: its tensors have shapes but no values. Code that distinguishes
a CPU from other devices takes it for a GPU.
"""

import contextlib
import functools
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.support.project import ROOT

GPU = torch.device("meta")
FREE = {  # these run nothing on the device
    *("alias", "as_strided", "chunk", "detach", "diagonal", "empty", "empty_like", "empty_strided", "expand"),
    *("lift_fresh", "narrow", "new_empty", "new_empty_strided", "permute", "_reshape_alias", "reshape"),
    *("select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold"),
    *("_unsafe_view", "unsqueeze", "view", "record_stream", "set_"),
}
VALUES = {"equal", "is_nonzero"}
RESULTS: dict[tuple, Any] = {}  # forms by function and forms of arguments
SHAPES_FROM_VALUES = {"nonzero", "masked_select", "_unique2", "unique_dim"}


class Counting(TorchDispatchMode):
    """Count in a block what happens on the device `GPU`; tensors on the CPU are real.

    A value that the CPU asks for is 1, or True.

    Attributes:
        operations: by name, without those that only return views or reserve memory.
        waits: by line of cl or pipeline: the CPU needs a value, or copies memory that is not pinned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self._pinned: list[Tensor] = []
        self._literals = _Literals(self)

    def __enter__(self) -> "Counting":
        self._literals.__enter__()
        self._autocast = torch.autocast, torch.is_autocast_enabled
        torch.autocast = lambda *args, **kwargs: contextlib.nullcontext()  # PyTorch knows none for `GPU`
        torch.is_autocast_enabled = lambda *args: False
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.autocast, torch.is_autocast_enabled = self._autocast
        self._literals.__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs, name = kwargs or {}, function._schema.name.split("::")[1]
        if name == "is_pinned":
            return self._is_pinned(args[0])
        if name in ("pin_memory", "_pin_memory"):
            self.operations["pin_memory"] += 1  # a copy by the CPU
            self._pinned.append(args[0].clone())
            return self._pinned[-1]
        if name == "empty" and kwargs.pop("pin_memory", False):
            self._pinned.append(function(*args, **kwargs))
            return self._pinned[-1]
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_gpu = any(x.device == GPU for x in tensors)
        target = torch.device(kwargs.get("device") or (GPU if on_gpu else "cpu"))
        if target != GPU and not on_gpu:
            return function(*args, **kwargs)
        if name not in FREE:
            self.operations[name] += 1
        if name == "_local_scalar_dense":
            return self.wait(1.0 if args[0].is_floating_point() else 1)
        if name in VALUES:
            return self.wait(True)
        if name == "_to_copy" and target.type == "cpu":
            return self.wait(torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype))
        if name == "copy_" and args[0].device.type == "cpu":
            return self.wait(args[0].fill_(1))
        assert name not in SHAPES_FROM_VALUES, f"{_line()}: the CPU waits for the size that {name} gives"
        if any(x.device.type == "cpu" and x.ndim and not self._is_pinned(x) for x in tensors):
            self.wait(None)
        return _result(function, args, kwargs)

    def _is_pinned(self, x: Tensor) -> bool:
        return x.data_ptr() in {pinned.data_ptr() for pinned in self._pinned}

    def wait(self, value: Any) -> Any:
        """Count a wait for `value`."""
        self.waits[_line()] += 1
        return value


@dataclass(frozen=True)
class _Form:
    """What tensors on the device `meta` consist of."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


def _form(x: Any) -> Any:
    """The form of tensors in nested arguments; numbers with their types, since 1 and 1.0 are equal."""
    if isinstance(x, Tensor):
        return _Form(tuple(x.shape), x.stride(), x.dtype, x.device)
    if isinstance(x, list | tuple):
        return (type(x), *map(_form, x))
    return (type(x), x)


@functools.cache
def _shares_memory(function: Any) -> bool:
    schema = function._schema
    return any(each.alias_info for each in (*schema.arguments, *schema.returns))


def _result(function: Any, args: Any, kwargs: Any) -> Any:
    """Its result in the form that arguments of the same forms gave before: finding it takes PyTorch long."""
    if _shares_memory(function):
        return function(*args, **kwargs)
    key = (function, _form(args), *((name, _form(x)) for name, x in kwargs.items()))
    if key not in RESULTS:
        RESULTS[key] = tree_map_only(Tensor, _form, function(*args, **kwargs))
    return tree_map_only(_Form, lambda form: form.empty(), RESULTS[key])


class _Literals(TorchFunctionMode):
    """Counts tensors made from Python numbers, which PyTorch copies to the device without dispatching."""

    def __init__(self, counting: Counting) -> None:
        super().__init__()
        self.counting = counting

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if function in (torch.tensor, torch.as_tensor, Tensor.new_tensor) and result.device == GPU:
            self.counting.wait(None)
        return result


def _line() -> str:
    """The innermost line of cl or pipeline."""
    frame = sys._getframe(1)
    while not _ours(Path(frame.f_code.co_filename)):
        if frame.f_back is None:
            return "elsewhere"
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _ours(path: Path) -> bool:
    return path.is_relative_to(ROOT / "cl") or path.is_relative_to(ROOT / "pipeline")
