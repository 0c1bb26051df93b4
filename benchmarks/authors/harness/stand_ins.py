"""Stand-ins for what the authors' code needs and a CPU or this environment lacks."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import Tensor, nn


def without_cuda() -> None:
    """`.cuda()` returns the tensor or module itself."""
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    nn.Module.cuda = lambda self, *args, **kwargs: self


def module_from(folder: Path, name: str) -> Any:
    """Import a module of a clone as its own scripts do, with the clone's folder first on the path."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def module_of_file(path: Path, name: str = "") -> Any:
    """Import one file, without the packages around it; a package if it is an `__init__.py`."""
    name = name or f"author_{path.stem}"
    folders = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def definitions(source: Path | str, *names: str, **environment: Any) -> list[Any]:
    """Functions and classes of these names out of a file (or its text), run in an environment.

    For scripts that do something when they are imported, or that import missing packages.
    """
    tree = ast.parse(source.read_text() if isinstance(source, Path) else source)
    found = [node for node in tree.body if getattr(node, "name", None) in names]
    assert len(found) == len(names), f"{source}: not all of {names} are there"
    exec(compile(ast.Module(found, []), str(source)[:200], "exec"), environment)
    return [environment[name] for name in names]


def stub(name: str, **attributes: Any) -> ModuleType:
    """Put a module into `sys.modules` that has only these attributes."""
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(attributes)
    return module


@contextmanager
def permutations(*drawn: Tensor) -> Iterator[None]:
    """`torch.randperm` gives these, one after the other: what our side drew."""
    waiting, real = list(drawn), torch.randperm
    torch.randperm = lambda n, *args, **kwargs: waiting.pop(0)
    try:
        yield
    finally:
        torch.randperm = real
    assert not waiting, "they drew less often than we did"


class SyncBatchNorm(nn.Module):
    """Batch norm over all processes' rows, made of `all_reduce`; PyTorch's has no CPU form."""

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name).clone())

    def forward(self, x: Tensor) -> Tensor:
        dims, shape = [0, *range(2, x.ndim)], [1, -1] + [1] * (x.ndim - 2)
        n = x.numel() // x.shape[1] * dist.get_world_size()
        mean = _total(x.sum(dims)) / n
        centred = x - mean.view(shape)
        variance = _total(centred.square().sum(dims)) / n
        y = centred / (variance.view(shape) + self.eps).sqrt()
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(variance * n / (n - 1), 0.1)
            self.num_batches_tracked += 1
        return y if self.weight is None else y * self.weight.view(shape) + self.bias.view(shape)


def _total(x: Tensor) -> Tensor:
    """The sum over processes, with its gradient where there is one."""
    if torch.is_grad_enabled():
        return dnn.all_reduce(x)
    dist.all_reduce(x)
    return x


def synchronise(modules: Iterable[nn.Module]) -> None:
    """Replace every batch norm inside the modules."""
    for module in modules:
        for name, child in module.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(module, name, SyncBatchNorm(child))
            else:
                synchronise([child])
