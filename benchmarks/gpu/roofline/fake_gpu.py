"""A GPU that is not there.

Tensors on `GPU` have PyTorch's shapes, strides, types and choice of operations for CUDA, but no values
(FakeTensorMode); tensors on the CPU are real. So a step on it shows which operations start, on which device
and in which type, what memory is in use, and where the CPU waits. It shows neither values nor times, and not
whether kernels work.
"""

import os
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from benchmarks.gpu.roofline.operations import Gpu, Operation, operation, tensors_in
from cl.runtime.machine import Precision

GPU = torch.device("cuda", 0)
FREE = {  # these run nothing on the device
    *("alias", "as_strided", "chunk", "detach", "diagonal", "empty", "empty_like", "empty_strided", "expand"),
    *("lift_fresh", "narrow", "new_empty", "new_empty_strided", "permute", "_reshape_alias", "reshape"),
    *("select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold"),
    *("_unsafe_view", "unsqueeze", "view", "record_stream", "set_"),
}
CONVOLUTIONS = {"convolution", "convolution_backward"}  # in cuDNN's layout, which PyTorch asks on GPUs alone
COPIES = {"_to_copy", "copy_"}
ANSWERS = {"_local_scalar_dense": 1, "equal": True, "is_nonzero": True}  # to what the CPU asks
FAMILIES = {
    "threshold": "relu",
    "addmm": "matrix products",
    "mm": "matrix products",
    "bmm": "matrix products",
}
SYNC_BATCH_NORM = {  # kernels that PyTorch knows for CUDA alone: number of results (C,), or rows
    "batch_norm_stats": 2,
    "batch_norm_gather_stats_with_counts": 2,
    "batch_norm_elemt": None,
    "batch_norm_backward_reduce": 4,
    "batch_norm_backward_elemt": None,
}


class FakeGpu(TorchDispatchMode):
    """In this context, `GPU` exists; a value that the CPU asks for is 1, or True.

    Args:
        float32: how the GPU multiplies matrices of float32.

    Attributes:
        may_wait: whether the CPU may ask for values, or copy memory that is not pinned or without
            `non_blocking`; otherwise, doing so raises an AssertionError.
        waits: how often it did, since the last `clear`.
        operations: those since the last `clear`, without those that only return views or reserve memory.
        used, peak: bytes in use now, and the most since the last `clear`.
    """

    def __init__(self, float32: Precision = "fp32") -> None:
        super().__init__()
        self.float32, self.may_wait, self.waits = float32, True, 0
        self.operations: list[Operation] = []
        self.used = self.peak = 0
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._storages: set[int] = set()
        self._pinned: list[Tensor] = []
        self._contexts = ExitStack()

    def __enter__(self) -> "FakeGpu":
        foreach = [*_foreach_utils._foreach_supported_types, FakeTensor]
        for place, name, value in (
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
            (_foreach_utils, "_foreach_supported_types", foreach),
            (F, "scaled_dot_product_attention", _attention),
        ):
            self._contexts.enter_context(patch.object(place, name, value))
        hidden = patch.dict(os.environ, CUDA_VISIBLE_DEVICES="")  # PyTorch would start a GPU that is there
        self._contexts.enter_context(hidden)
        self._contexts.enter_context(self._fake)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._contexts.close()

    def clear(self) -> None:
        """Count from here."""
        self.operations.clear()
        self.waits = 0
        self.peak = self.used

    def collectives(self) -> Counter[str]:
        """The exchanges between GPUs, by name."""
        return Counter({name: n for name, n in self.counts().items() if name.startswith("c10d.")})

    def counts(self) -> Counter[str]:
        """How often each operation ran."""
        return Counter(each.name for each in self.operations)

    def floor(self, gpu: Gpu) -> float:
        """Seconds that the operations take at least, one after the other."""
        return sum(each.seconds(gpu) for each in self.operations)

    def costs(self, gpu: Gpu) -> Counter[str]:
        """The same by family of operations, forward and backward together."""
        found: Counter[str] = Counter()
        for each in self.operations:
            name = each.name.removesuffix("_backward").removesuffix("_").removeprefix("_")
            found[FAMILIES.get(name, name)] += each.seconds(gpu)  # type: ignore[assignment]
        return found

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if function is torch.ops.prim.device.default:  # PyTorch asks it more often than all else
            return args[0].device
        space, name = function._schema.name.split("::")
        tensors = [*tensors_in(args), *tensors_in([*kwargs.values()])]
        target = torch.device(kwargs.get("device") or (args[0].device if name == "copy_" else GPU))
        on_gpu = any(isinstance(x, FakeTensor) for x in tensors)
        if space == "prim":
            return function(*args, **kwargs)
        if "pin" in name or (not on_gpu and (target.type == "cpu" or "device" not in kwargs)):
            with unset_fake_temporarily():
                return self._on_host(name, function, args, kwargs)
        blocking = name in COPIES and True not in (kwargs.get("non_blocking"), *args[2:])
        if reason := self._waits(name, tensors, target, blocking):
            assert self.may_wait, f"the CPU waits for the GPU: {name} {reason}"
            self.waits += 1
        if name in ANSWERS:
            result = ANSWERS[name]
        elif name in COPIES and target.type == "cpu":
            with unset_fake_temporarily():
                result = _copied(name, args, kwargs)
        elif name in SYNC_BATCH_NORM:
            result = _batch_norm_results(name, args)
        else:
            result = function(*args, **kwargs) if function._schema.returns else None  # None: writes arguments
        if name in CONVOLUTIONS and any(map(_is_channels_last, tensors)):
            result = tree_map_only(Tensor, _channels_last, result)
        for x in tensors_in(result):
            if isinstance(x, FakeTensor):
                self._hold(x)
        if name not in FREE:
            title = f"{space}.{name}" if space == "c10d" else name
            self.operations.append(operation(title, function, args, kwargs, result, self.float32))
        return result

    def _on_host(self, name: str, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an operation on the CPU; pinning needs a driver, so pinned tensors are remembered."""
        if name == "is_pinned":
            return self._is_pinned(args[0])
        pins = "pin_memory" in name or kwargs.pop("pin_memory", False)
        result = args[0].clone() if "pin_memory" in name else function(*args, **kwargs)
        if pins:
            self._pinned.append(result)
        return result

    def _waits(self, name: str, tensors: list[Tensor], target: torch.device, blocking: bool) -> str | None:
        """Why the CPU waits for an operation; None if it does not."""
        arrives_later = name == "copy_" and not blocking and self._is_pinned(tensors[0])
        if name in ANSWERS or (name in COPIES and target.type == "cpu" and not arrives_later):
            return "asks for values"
        for x in tensors:
            if not isinstance(x, FakeTensor) and (x.ndim or name in COPIES):
                if not self._is_pinned(x):
                    return "of memory that is not pinned"
                if blocking:
                    return "without non_blocking"
        return None

    def _is_pinned(self, x: Tensor) -> bool:
        return any(x.data_ptr() == pinned.data_ptr() for pinned in self._pinned)

    def _hold(self, x: Tensor) -> None:
        """Count a tensor's memory until it is freed."""
        storage = x.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return
        self._storages.add(key)
        self.used += size
        self.peak = max(self.peak, self.used)
        weakref.finalize(storage, self._free, key, size).atexit = False

    def _free(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.used -= size


def _copied(name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """What the CPU gets if it copies from the GPU."""
    if name == "copy_":
        return args[0].fill_(1)
    return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)


def _is_channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _batch_norm_results(name: str, args: tuple[Any, ...]) -> Tensor | list[Tensor]:
    rows, count = args[0], SYNC_BATCH_NORM[name]
    if count is None:
        return torch.empty_like(rows)
    results = [rows.new_empty(rows.shape[1], dtype=torch.float32) for _ in range(count)]
    if name == "batch_norm_backward_reduce" and args[4] is None and args[1].stride(1) == 1:
        results[2:] = [rows.new_empty(0, dtype=torch.float32) for _ in range(2)]  # as the kernels do
    return results


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: None = None, dropout_p: float = 0.0, **options: Any
) -> Tensor:
    """The kernels that PyTorch chooses on a GPU; without one, it would choose several plain operations."""
    assert attn_mask is None
    scale = options.get("scale")
    if torch.is_autocast_enabled("cuda"):
        q, k, v = (x.to(torch.get_autocast_dtype("cuda")) for x in (q, k, v))
    if q.dtype == torch.bfloat16:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, scale=scale)[0]
    arguments = q, k, v, None, True, dropout_p
    return torch.ops.aten._scaled_dot_product_efficient_attention(*arguments, scale=scale)[0]


@contextmanager
def pretended_ranks(number: int) -> Iterator[None]:
    """In the block, this process is rank 0 of several; what it exchanges with the others goes nowhere."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=number)
    try:
        yield
    finally:
        dist.destroy_process_group()
