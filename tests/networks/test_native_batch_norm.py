"""Batch norm by PyTorch's CUDA kernels, which `tests.support.batch_norm_kernels` emulates on a CPU."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cl.networks import _native_batch_norm, _plain_batch_norm
from tests.support import batch_norm_ranks
from tests.support.batch_norm_kernels import use_kernels
from tests.support.batch_norm_ranks import CASES, computed, expected, images_of, norm_of
from tests.support.counting import FREE, GPU, pretended_ranks

CPU = torch.device("cpu")
KERNELS = [
    "batch_norm_stats.default",
    "batch_norm_gather_stats_with_counts.default",
    "batch_norm_elemt.out",
    "batch_norm_backward_reduce.default",
    "batch_norm_backward_elemt.default",
    "native_batch_norm.out",
    "native_batch_norm_backward.default",
]
FIRST_IS_NOT_READ = ("copy_.default", "batch_norm_gather_stats_with_counts.default")
EQUAL = [name for name, case in CASES.items() if not case.shares]


@pytest.fixture
def native(monkeypatch) -> None:
    """Use the kernels on a CPU, after the check that a run on a GPU makes."""
    for path in _native_batch_norm.PATHS.values():
        assert path.fault(CPU) == ""
        monkeypatch.setattr(path, "devices", set())
    use_kernels(CPU)


def assert_equal(found: dict[str, Any], other: dict[str, Any]) -> None:
    for key in ("rows", "parameters", "state"):
        for a, b in zip(found[key], other[key], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("name", EQUAL)
def test_groups_in_one_process(native, name) -> None:
    found = computed(CASES[name])
    assert_equal(found, expected(CASES[name]))
    assert found["collectives"] == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What processes have computed."""
    folder = tmp_path_factory.mktemp("ranks")
    batch_norm_ranks.run(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, case in CASES.items() for number in (2, 4) if len(case.shares) in (0, number)],
)
def test_groups_over_ranks(folder, name, number) -> None:
    """They equal the definition and the plain form, with one exchange forward and one backward."""
    found, plain = (batch_norm_ranks.of_ranks(number, native, folder)[name] for native in (True, False))
    assert_equal(found, expected(CASES[name]))
    assert_equal(found, plain)
    spans = CASES[name].groups % number > 0
    assert found["collectives"] == (2 if spans else 0)
    assert plain["collectives"] == (3 if spans else 0)


class _Perturbed(TorchDispatchMode):
    """Results of a kernel 5 % too large, except those of the plain form."""

    def __init__(self, kernel: str) -> None:
        super().__init__()
        self.kernel, self.calls = kernel, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if str(function) == f"aten.{self.kernel}" and not self._is_plain(args):
            self.calls += 1
            for tensor in result if isinstance(result, tuple) else (result,):
                tensor.mul_(1.05)
        return result

    def _is_plain(self, args: tuple[Any, ...]) -> bool:
        """Only the plain form hands running statistics to the backward pass."""
        return self.kernel == "native_batch_norm_backward.default" and args[3] is not None


@pytest.mark.parametrize("dtype", _native_batch_norm.PATHS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_wrong_kernel_is_noticed_before_it_is_used(kernel, dtype) -> None:
    path = _native_batch_norm.PATHS[dtype]
    assert path.fault(CPU) == ""
    with _Perturbed(kernel) as perturbed:
        assert path.fault(CPU).startswith("differs from its plain form by ")
    assert perturbed.calls


def test_nothing_is_used_that_was_not_verified_for_type_and_device() -> None:
    x = torch.zeros(4, 2)
    assert not _native_batch_norm.usable(x)
    assert not _native_batch_norm.usable(x.half())


class _Operations(TorchDispatchMode):
    """The operations of a block, and the bytes of large tensors that they read and write."""

    def __init__(self, large: int = 0) -> None:
        super().__init__()
        self.large, self.bytes = large, 0
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs, name = kwargs or {}, str(function).removeprefix("aten.")
        result = function(*args, **kwargs)
        self.names.append(name)
        if function.overloadpacket.__name__ not in FREE:
            read = args[1:] if name in FIRST_IS_NOT_READ else args
            self.bytes += sum(map(self._bytes, tree_leaves((read, result))))
        return result

    def _bytes(self, x: Any) -> int:
        return x.nbytes if isinstance(x, Tensor) and x.numel() >= self.large else 0


def test_one_group_in_one_process_stays_pytorchs_batch_norm(native) -> None:
    """On a GPU, it is cuDNN's."""
    with _Operations() as operations:
        computed(CASES["one group"])
    assert operations.names.count("native_batch_norm.default") == 1
    assert "native_batch_norm.out" not in operations.names


def test_several_groups_in_one_process_are_written_in_place(native) -> None:
    norm, (x, _) = norm_of(CASES["three groups"]), images_of(CASES["three groups"])
    with _Operations() as operations:
        norm(x)
    assert operations.names.count("native_batch_norm.out") == 3
    assert "cat.default" not in operations.names


def test_compiled_code_has_the_plain_form(native) -> None:
    norm, (x, _) = norm_of(CASES["three groups"]), images_of(CASES["three groups"])
    called: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        called.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.testing.assert_close(torch.compile(norm, backend=backend, fullgraph=True)(x), norm(x))
    assert sum("batch_norm" in name for name in called) == 3
    assert not any("native_batch_norm" in name for name in called)


@pytest.mark.parametrize(
    ("form", "forward", "backward"),
    [(_native_batch_norm, 6, 10), (_plain_batch_norm, 28, 44)],
    ids=["native", "plain"],
)
def test_bytes_per_element_over_ranks(form, forward, backward) -> None:
    """In bfloat16: the rows twice and what they become; gradient and rows twice and the rows' gradient."""
    x = torch.empty(8, 16, 32, 32, dtype=torch.bfloat16, device=GPU, requires_grad=True)
    affine = torch.empty(2, 16, device=GPU)
    with pretended_ranks(2):
        with _Operations(x.numel()) as there:
            y, _ = form.normalise(x, *affine, 1e-5, 1, spans=True)
        with _Operations(x.numel()) as back:
            torch.autograd.grad(y, x, torch.empty_like(y))
    assert (there.bytes / x.numel(), back.bytes / x.numel()) == (forward, backward)


class _OneLayout(TorchDispatchMode):
    """Checks that what is handed to a kernel is dense, and in the same order in memory."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if str(function).removeprefix("aten.") in KERNELS:
            rows = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.ndim == 4]
            assert len({x.stride() for x in rows}) == 1
            assert rows[0].is_contiguous() or rows[0].is_contiguous(memory_format=torch.channels_last)
        return function(*args, **(kwargs or {}))


@pytest.fixture
def process_group(tmp_path) -> Iterator[None]:
    """Of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("spans", [False, True])
def test_rows_and_gradients_in_any_layout(process_group, spans) -> None:
    """Rows with gaps, and gradients that are expanded or in another layout than the rows."""
    rng = torch.Generator().manual_seed(0)
    wide = torch.randn(8, 6, 4, 4, generator=rng, dtype=torch.float64)
    affine = torch.rand(2, 3, generator=rng, dtype=torch.float64)
    dense = wide[:, :3].contiguous()
    channels_last = dense.contiguous(memory_format=torch.channels_last)
    for rows in (wide[:, ::2], dense, channels_last):
        for g in (dense, channels_last, wide[:, :3, :1, :1].expand(8, 3, 4, 4)):
            x = rows.detach().requires_grad_()
            with _OneLayout():
                y, _ = _native_batch_norm.normalise(x, *affine, 0.01, 2, spans=spans)
                (to_x,) = torch.autograd.grad(y, x, g)
            plain, _ = _plain_batch_norm.normalise(x, *affine, 0.01, 2, spans=False)
            torch.testing.assert_close(y, plain, rtol=1e-11, atol=1e-11)
            torch.testing.assert_close(to_x, torch.autograd.grad(plain, x, g)[0], rtol=1e-11, atol=1e-11)
