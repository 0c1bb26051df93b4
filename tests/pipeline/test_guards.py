"""Endings are told in one sentence each, and nothing half-written is left."""

import errno
import io
import mmap

import click
import numpy as np
import pytest
import torch
from rich.console import Console

from cl.console.command import entry_point as cl_entry_point
from cl.console.progress import Progress
from cl.runtime import machine
from cl.runtime.metric_info import Measurement
from pipeline.support import command, locations


def test_no_result_has_a_number_that_is_not_finite(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    infinite = Measurement(
        "transfer", "voc", "backbone", "ap", float("nan"), None, 1, "AP", "", "higher", None
    )
    wrong = pytest.raises(FloatingPointError, match="voc_ap is nan, so no result is written")
    with wrong, command.results("transfer", "voc", root="out") as results:
        results.measurements = [infinite]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_gpus_that_cannot_start_are_told_before_the_work(tmp_path, monkeypatch) -> None:
    """Not when the results record the hardware."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "gpus", lambda: raise_(ValueError("the driver is too old")))
    with pytest.raises(ValueError, match="too old"), command.results("prepare", root="out"):
        pytest.fail("the work began")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EMFILE, "Too many open files", "a.tar"), "Too many open files .a.tar"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a.csv"), "File name too long .a.csv"),
        (OSError(errno.EPERM, "Operation not permitted", "a.csv"), "Operation not permitted .a.csv"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device .*TMPDIR"),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
            "worker was killed.*memory",
        ),
    ],
)
def test_endings_are_told_in_one_sentence(error, message) -> None:
    @command.entry_point
    def main() -> None:
        raise error

    with pytest.raises(click.ClickException, match=message):
        main()


CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
CUDA_FULL, FULL = "a GPU's memory is full: .*nvidia-smi.*", "^memory is full: "
LESS = "or train with a smaller batch_size, .*optim.microbatches=4.*`python -m pipeline.plan`"


@pytest.mark.parametrize(
    ("entry_point", "allocate", "message"),
    [
        (command.entry_point, lambda: raise_(torch.OutOfMemoryError(CUDA)), CUDA_FULL + LESS),
        (command.entry_point, lambda: raise_(RuntimeError("CUDA error: out of memory")), CUDA_FULL + LESS),
        (
            command.entry_point,
            lambda: raise_(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")),
            CUDA_FULL + LESS,
        ),
        (command.entry_point, lambda: torch.empty(10**17), FULL + ".*" + LESS),
        (command.entry_point, lambda: np.empty(10**17), FULL + ".*" + LESS),
        (command.entry_point, lambda: mmap.mmap(-1, 2**47), FULL + ".*" + LESS),
        (cl_entry_point, lambda: raise_(torch.OutOfMemoryError(CUDA)), CUDA_FULL + "CUDA_VISIBLE_DEVICES= "),
        (cl_entry_point, lambda: torch.empty(10**17), FULL + "end other programs, or start fewer processes"),
    ],
)
def test_full_memory_is_told_with_what_to_change(entry_point, allocate, message) -> None:
    with pytest.raises(click.ClickException, match=message) as told:
        entry_point(allocate)()
    assert told.value.exit_code == 1


def test_a_failing_gpu_is_told_in_one_sentence() -> None:
    """An assertion on the GPU is a bug."""
    rest = "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    broken, bug = (
        torch.AcceleratorError(f"CUDA error: {reason}{rest}")
        for reason in ("uncorrectable ECC error encountered", "device-side assert triggered")
    )
    with pytest.raises(click.ClickException, match=r"GPU failed \(.*encountered\): .*nvidia-smi") as told:
        command.entry_point(lambda: raise_(broken))()
    assert told.value.exit_code == 1
    with pytest.raises(torch.AcceleratorError):
        command.entry_point(lambda: raise_(bug))()


def raise_(error: Exception) -> None:
    raise error


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="sizes differ"):
        command.entry_point(lambda: raise_(RuntimeError("sizes differ")))()


@pytest.mark.parametrize("text", ["nan", "-1", "soon", "1e9"])
def test_the_time_between_checkpoints_is_a_number(text, monkeypatch) -> None:
    monkeypatch.setenv("CL_CHECKPOINT_SECONDS", text)
    with pytest.raises(ValueError, match=f"CL_CHECKPOINT_SECONDS={text}: give a number"):
        locations.number_from_environment("CL_CHECKPOINT_SECONDS", 60, "seconds")


def test_names_cannot_control_the_terminal() -> None:
    output = io.StringIO()
    Progress("prepare", Console(file=output)).say("left out a\x1b]0;owned\x07\u202e\x9b Vögel 照片")
    assert output.getvalue() == "prepare: left out a\\x1b]0;owned\\x07\\u202e\\x9b Vögel 照片\n"
