"""docker/nodes.sh: one command on two nodes, here two processes of this machine."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import run, start, wait_for
from tests.support.project import ROOT

NODE = """
import signal, time
from pathlib import Path
import click, torch, torch.distributed as dist
from cl.runtime.distributed import max_over_ranks, rank
from cl.console.stop import StoppedError, signals
from pipeline.support import command

@click.command()
@click.argument("name")
@click.argument("seconds", type=float)
@command.entry_point
@command.on_all_devices
def main(name, seconds):
    total = torch.tensor([2.0 ** rank()])
    dist.all_reduce(total)
    with open(f"seen-{rank()}", "a") as file:
        file.write(f"{name} {total.item():.0f}\\n")
    end = time.monotonic() + seconds
    with signals() as stop:
        while not all(max_over_ranks(time.monotonic() > end)):
            time.sleep(0.1)
            if max_over_ranks(bool(stop))[0]:
                time.sleep(2)
                Path(f"saved-{rank()}").touch()
                max_over_ranks()
                raise StoppedError(signal.SIGTERM, 1, saved=True)
main()
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_node(tmp_path: Path) -> Start:
    """Starts node 0 or 1 of two in a folder with a stage that runs in all processes."""
    (tmp_path / "node.py").write_text(NODE)
    (tmp_path / "dvc.yaml").touch()
    shutil.copy(ROOT / "params.yaml", tmp_path)
    variables = {
        "CL_RUN": "a run",
        "CL_NODES": "2",
        "CL_FIRST_NODE": "127.0.0.1",
        "CL_PORT": "29611",
        "CL_PROCESSES": "1",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
    }
    return lambda node, *command: start(tmp_path, "nodes", *command, CL_NODE=str(node), **variables)


def test_a_missing_run_name_is_reported(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").touch()
    assert "CL_RUN: a name for this run, the same on all nodes" in run(tmp_path, "nodes", "true", code=1)


@pytest.mark.slow
def test_two_nodes_share_the_stages_of_one_command(start_node: Start, tmp_path: Path) -> None:
    """Two stages, one after the other; the second node starts later than the first."""
    stages = ("bash", "-c", "python -m node one 0 && python -m node 'two words' 0")
    first = start_node(0, *stages)
    time.sleep(2)
    for node in (first, start_node(1, *stages)):
        output = node.communicate(timeout=120)[0]
        assert node.returncode == 0, output
    for rank in (0, 1):
        assert (tmp_path / f"seen-{rank}").read_text() == "one 3\ntwo words 3\n"
    again = start_node(0, *stages)
    assert "is already finished; choose another name" in again.communicate(timeout=60)[0]
    assert again.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_node_stops_all_nodes_after_they_have_saved(
    start_node: Start, tmp_path: Path, stopped: int
) -> None:
    both = [start_node(node, "python", "-m", "node", "one", "60") for node in (0, 1)]
    wait_for(tmp_path, "seen-0", both[0])
    time.sleep(1)
    both[stopped].send_signal(signal.SIGTERM)
    output = both[stopped].communicate(timeout=60)[0]
    assert both[stopped].returncode == 143, output
    if stopped == 1:
        output = both[0].communicate(timeout=60)[0]
        assert both[0].returncode == 1  # torchrun's code: this node was not itself asked to stop
    assert output.count("stopped by SIGTERM after step 1") == 1
    assert (tmp_path / "saved-0").exists()
    assert (tmp_path / "saved-1").exists()
    both[1].terminate()  # it waits until the first node is started again
    both[1].communicate(timeout=60)
