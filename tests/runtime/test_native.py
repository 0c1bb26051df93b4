"""When a native path is used, and what is said when it is not."""

import io
import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rich.console import Console

from cl.console.progress import Progress
from cl.runtime import machine, native
from pipeline.support import command
from tests.support.counting import GPU

CPU = torch.device("cpu")
NAN = float("nan")
INSTEAD = "on meta: its plain form is used instead"


def no_kernel(device: torch.device) -> float:
    raise NotImplementedError("no kernel for this device\nmany more lines")


@pytest.fixture
def declared(monkeypatch) -> list[native.NativePath]:
    """Only the paths of the test itself."""
    monkeypatch.setattr(native, "_declared", [])
    return native._declared


def test_a_path_is_used_once_it_has_matched_on_the_device(declared) -> None:
    path = native.declare("sum", lambda device: 1e-6, 1e-6)
    assert declared == [path] == native.declared()
    assert not path.usable(GPU)
    assert native.verify(GPU) == []
    assert path.usable(GPU)
    assert path.usable(torch.empty(3, device=GPU).device)
    assert not path.usable(CPU)
    assert not path.usable(torch.device("cuda", 0))


def test_a_path_that_differs_or_raises_is_not_used_and_a_sentence_says_so(declared) -> None:
    different = native.declare("sum", lambda device: 0.25, 1e-6)
    fine = native.declare("mean", lambda device: 0.0, 1e-6)
    undefined = native.declare("product", lambda device: NAN, 1e-6)
    missing = native.declare("batch norm", no_kernel, 1e-6)
    assert native.verify(GPU) == [
        f"native sum differs from its plain form by 2.5e-01, more than 1e-06 {INSTEAD}",
        f"native product differs from its plain form by nan, more than 1e-06 {INSTEAD}",
        f"native batch norm raised NotImplementedError (no kernel for this device) {INSTEAD}",
    ]
    assert [path.usable(GPU) for path in (different, fine, undefined, missing)] == [False, True, False, False]


def test_a_path_that_no_longer_matches_is_not_used_again(declared) -> None:
    differences = [0.0, 1.0]
    path = native.declare("sum", lambda device: differences.pop(0), 1e-6)
    native.verify(GPU)
    assert path.usable(GPU)
    native.verify(GPU)
    assert not path.usable(GPU)


def test_a_cpu_always_uses_plain_forms(declared) -> None:
    path = native.declare("sum", lambda device: 0.0, 1e-6)
    assert native.verify(CPU) == []
    assert not path.usable(CPU)


def test_an_example_may_have_gradients_wherever_it_is_compared(declared) -> None:
    def difference(device: torch.device) -> float:
        return float(not torch.is_grad_enabled())

    native.declare("sum", difference, 1e-6)
    with torch.no_grad():
        assert native.verify(GPU) == []


def test_compiled_code_can_ask(declared) -> None:
    path = native.declare("sum", lambda device: 0.0, 1e-6)
    ask = torch.compile(lambda x: x + 1 if path.usable(x.device) else x - 1, backend="eager", fullgraph=True)
    assert ask(torch.zeros(1)) == -1
    path.devices.add(CPU)
    assert ask(torch.zeros(1)) == 1


def _verify(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    native._declared[:] = []
    fails_on_1 = native.declare("sum", lambda device: float(rank), 1e-6)
    native.declare("mean", lambda device: 0.0, 1e-6)
    sentences = native.verify(GPU)
    (folder / str(rank)).write_text("\n".join([*sentences, str(fails_on_1.usable(GPU))]))
    dist.destroy_process_group()


def test_all_ranks_use_a_path_or_none_does(tmp_path) -> None:
    """Otherwise they would exchange different things."""
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_verify, args=(rank, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert (tmp_path / "0").read_text().splitlines() == [
        f"native sum failed in another process {INSTEAD}",
        "False",
    ]
    assert (tmp_path / "1").read_text().splitlines() == [
        f"native sum differs from its plain form by 1.0e+00, more than 1e-06 {INSTEAD}",
        "False",
    ]


def test_a_stage_says_which_paths_it_does_not_use(declared, monkeypatch) -> None:
    native.declare("sum", no_kernel, 1e-6)
    monkeypatch.setattr(machine, "find", lambda precision, **settings: machine.Machine(GPU, 0, precision))
    progress = Progress("pretrain", Console(file=io.StringIO(), width=200))
    assert command.machine(progress, "fp32", deterministic=False).device == GPU
    assert f"native sum raised NotImplementedError (no kernel for this device) {INSTEAD}" in (
        progress.console.file.getvalue()
    )


def test_the_difference_is_the_largest_relative_to_the_largest_value_of_each_tensor() -> None:
    expected = [torch.tensor([4.0, -8.0]), torch.tensor([[1.0]])]
    found = [torch.tensor([4.0, -7.0]), torch.tensor([[0.75]])]
    assert native.relative_difference(found, expected) == 0.25
    assert native.relative_difference(found[:1], expected[:1]) == 0.125
    half = [x.bfloat16() for x in found]
    assert native.relative_difference(half, expected) == 0.25
    found[0][0] = NAN
    difference = native.relative_difference(found, expected)
    assert difference != difference
    with pytest.raises(ValueError, match="longer"):
        native.relative_difference(found[:1], expected)
