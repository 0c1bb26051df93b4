"""The scripts of docker/, on this machine; `docker/check` tries the image itself."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from ruamel.yaml import YAML

from cl.runtime import cores
from tests.pipeline.test_dvc import environment
from tests.support.project import ROOT

DVC_YAML = """
stages:
  slow:
    cmd: python slow.py
    params: [seconds]
    outs: [out]
"""
SLOW = """
import os, pathlib, signal, sys, time
from cl.console.stop import terminate_when_exists
terminate_when_exists(pathlib.Path(os.environ["CL_STOP"]))
def save(number, frame):
    time.sleep(1)
    pathlib.Path("saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path("started").touch()
time.sleep(float(pathlib.Path("params.yaml").read_text().split()[1]))
pathlib.Path("out").write_text("done")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A DVC project of one stage, which takes `seconds` and a second to save when it is told to stop."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in {
        "dvc.yaml": DVC_YAML,
        "slow.py": SLOW,
        "params.yaml": "seconds: 0\n",
        ".gitignore": "/out\n/scratch\n",
    }.items():
        (folder / name).write_text(text)
    for command in ("git init -q", "dvc init -q", "git add -A", "git commit -q -m first"):
        subprocess.run(command.split(), cwd=folder, env=environment(), check=True)
    return folder


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen:
    command, together = (
        [ROOT / "docker/entrypoint.sh", *arguments],
        {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
    )
    variables = environment() | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.Popen(command, cwd=folder, env=variables, text=True, start_new_session=True, **together)


def run(folder: Path, *arguments: str, code: int = 0, **keywords: str) -> str:
    process = start(folder, *arguments, **keywords)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == code, output
    return output


def wait_for(folder: Path, pattern: str, process: subprocess.Popen) -> Path:
    end = time.monotonic() + 120
    while not (found := next(folder.glob(pattern), None)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, f"no {pattern} in {folder}"
        time.sleep(0.05)
    return found


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=environment(), check=True, capture_output=True, text=True
    ).stdout


def test_every_stage_is_a_command() -> None:
    stages = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    script = (ROOT / "docker/entrypoint.sh").read_text()
    accepted = re.search(r"^  (prepare \|.*)\)$", script, re.MULTILINE)[1].split(" | ")
    assert set(stages) < set(accepted)
    assert all((ROOT / f"pipeline/{stage}.py").is_file() for stage in accepted)
    told = run(ROOT, "help")
    assert all(re.search(rf"\b{stage}\b", told) for stage in accepted)
    assert run(ROOT) == told
    assert "Usage: python -m pipeline.pretrain" in run(ROOT, "pretrain", "--help")


def test_a_folder_without_project_or_permission_is_answered_with_a_sentence(tmp_path) -> None:
    assert run(tmp_path, "dvc", "repro", code=1).startswith(
        f"no dvc.yaml in {tmp_path}: start the container in a clone"
    )
    assert run(tmp_path, "pretrain", code=1).startswith(f"no dvc.yaml in {tmp_path}")
    (tmp_path / "file").touch()
    assert "is what the image does" in run(tmp_path, "init", code=1, CL_IMAGE="")
    assert "must be an empty folder" in run(tmp_path, "init", code=1, CL_IMAGE="commit")
    assert run(tmp_path, "pretrian", code=1).startswith("there is no command pretrian here")


def test_dvc_waits_while_its_stage_saves(project) -> None:
    process = start(project, "dvc", "exp", "run", "-S", "seconds=60")
    wait_for(project, "started", process)
    os.killpg(process.pid, signal.SIGTERM)  # all of them, as Ctrl-C and `scancel` do
    assert process.wait(timeout=60) == 143
    assert (project / "saved").exists(), "with it a container would end"
    assert "failed to reproduce 'slow'" in process.communicate()[0], "DVC was there to the end"


def test_a_stop_that_comes_before_the_stage_is_not_lost(project) -> None:
    process = start(project, "dvc", "-q", "experiments", "run", "-S", "seconds=60")
    wait_for(project, ".dvc/tmp/entrypoint", process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert not (project / "out").exists()


def test_any_other_command_ends_at_once(project) -> None:
    process = start(project, "sleep", "60")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)  # until nothing holds its output any more
    assert process.returncode == -signal.SIGTERM


def test_one_dvc_works_in_a_folder_also_after_one_that_was_killed(project) -> None:
    process = start(project, "dvc", "exp", "run", "-S", "seconds=60")
    wait_for(project, "started", process)
    refused = run(project, "dvc", "repro", code=1)
    assert re.search(rf"^\S+ is at work in {project}: wait for it, or run this in another clone", refused)
    assert "slow" in run(project, "dvc", "stage", "list"), "looking is allowed"
    for one in psutil.Process(process.pid).children(recursive=True):
        one.kill()
    process.communicate()
    assert process.returncode == 137
    rwlock = project / ".dvc/tmp/rwlock"
    assert '"cmd"' in rwlock.read_text()
    # As in another container, where the same number is another process.
    rwlock.write_text(re.sub(r'"pid": \d+', f'"pid": {os.getpid()}', rwlock.read_text()))
    run(project, "dvc", "exp", "run", "-S", "seconds=0")
    assert (project / "out").read_text() == "done"
    assert (project / ".dvc/tmp/entrypoint").read_text() == ""


def test_experiments_of_a_list_run_in_clones_and_end_up_in_the_project(project, tmp_path) -> None:
    (project / "list.txt").write_text("-S seconds=0.1\n-S seconds=0.2\n")
    tasks = [start(project, "experiment", "list.txt", SLURM_ARRAY_TASK_ID=str(number)) for number in (1, 2)]
    for task in tasks:
        output = task.communicate(timeout=120)[0]
        assert task.returncode == 0, output
    experiments = git(project, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    names = [experiment.split("/")[-1] for experiment in experiments]
    assert [name.rsplit("-", 1)[0] for name in names] == ["seconds-0.1", "seconds-0.2"]
    for experiment, seconds in zip(experiments, ("0.1", "0.2"), strict=True):
        assert git(project, "show", f"{experiment}:params.yaml") == f"seconds: {seconds}\n"
    assert list((project / "scratch/experiments").iterdir()) == [], "nothing is left"
    assert run(project, "experiment", "list.txt", "2") == f"{names[1]} is finished\n"
    assert run(project, "experiment", "list.txt", "3", code=1) == "list.txt has no line 3\n"
    (project / "slow.py").write_text(SLOW + "\n")
    (project / "list.txt").write_text("-S seconds=0.3\n-S 'seconds=1\n-S seconds=no-number\n")
    assert "commit your changes" in run(project, "experiment", "list.txt", "1", code=1)
    assert "list.txt, line 2: check its quotes" in run(project, "experiment", "list.txt", "2", code=1)
    run(project, "experiment", "list.txt", "1", CL_COMMIT="HEAD")
    told = run(
        project, "experiment", "list.txt", "3", CL_COMMIT="HEAD", code=1
    )  # DVC's own 255 would end xargs
    assert "failed to reproduce 'slow'" in told


def test_an_experiment_that_is_lost_goes_on_in_its_clone(project) -> None:
    (project / "list.txt").write_text("-S seconds=60\n")
    first = start(project, "experiment", "list.txt", JOB_COMPLETION_INDEX="0")
    clone = wait_for(project, "scratch/experiments/*/started", first).parent
    assert "is being run by another process" in run(project, "experiment", "list.txt", "1", code=1)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert first.returncode == 143
    assert (clone / "saved").exists(), "what it saved is kept"
    assert git(project, "for-each-ref", "refs/exps") == ""
    (clone / "slow.py").write_text("open('out', 'w').write('done')")
    name = clone.name.partition("-")[2]
    run(clone, "dvc", "exp", "run", "--name", name, "-S", "seconds=60")
    assert run(project, "experiment", "list.txt", "1") == "", "it had finished, and only not been fetched"
    assert name in git(project, "for-each-ref", "refs/exps")


NODE = """
import signal, time
from pathlib import Path
import click, torch, torch.distributed as dist
from cl.runtime.distributed import any_rank, rank
from cl.console.stop import StoppedError, signals
from pipeline import command, launch

@click.command()
@click.argument("name")
@click.argument("seconds", type=float)
@command.entry_point
@launch.on_all_devices
def main(name, seconds):
    total = torch.tensor([2.0 ** rank()])
    dist.all_reduce(total)
    with open(f"seen-{rank()}", "a") as file:
        file.write(f"{name} {total.item():.0f}\\n")
    end = time.monotonic() + seconds
    with signals() as stop:
        while not all(any_rank(time.monotonic() > end)):
            time.sleep(0.1)
            if any_rank(bool(stop))[0]:
                time.sleep(2)
                Path(f"saved-{rank()}").touch()
                any_rank()
                raise StoppedError(signal.SIGTERM, 1, saved=True)
main()
"""


@pytest.fixture
def nodes(tmp_path) -> Callable[..., subprocess.Popen]:
    """Starts node 0 or 1 of two, in a folder with a stage that all processes share."""
    (tmp_path / "node.py").write_text(NODE)
    (tmp_path / "dvc.yaml").touch()
    shutil.copy(ROOT / "params.yaml", tmp_path)
    names = {
        "CL_RUN": "a run",
        "CL_NODES": "2",
        "CL_FIRST_NODE": "127.0.0.1",
        "CL_PORT": "29611",
        "CL_PROCESSES": "1",
    }
    names["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    return lambda number, *command: start(tmp_path, "nodes", *command, CL_NODE=str(number), **names)


@pytest.mark.slow
def test_two_nodes_share_the_stages_of_one_command(nodes, tmp_path) -> None:
    """Two stages after one another; the second node comes later than the first."""
    stages = ("bash", "-c", "python -m node one 0 && python -m node 'two words' 0")
    first = nodes(0, *stages)
    time.sleep(2)
    for node in (first, nodes(1, *stages)):
        output = node.communicate(timeout=120)[0]
        assert node.returncode == 0, output
    for rank in (0, 1):
        assert (tmp_path / f"seen-{rank}").read_text() == "one 3\ntwo words 3\n"
    again = nodes(0, *stages)
    assert "is finished: choose another name" in again.communicate(timeout=60)[0]
    assert again.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_node_that_is_stopped_stops_all_after_they_have_saved(nodes, tmp_path, stopped) -> None:
    both = [nodes(number, "python", "-m", "node", "one", "60") for number in (0, 1)]
    wait_for(tmp_path, "seen-0", both[0])
    time.sleep(1)
    both[stopped].send_signal(signal.SIGTERM)
    output = both[stopped].communicate(timeout=60)[0]
    assert both[stopped].returncode == 143, output
    if stopped == 1:
        output = both[0].communicate(timeout=60)[0]
        assert both[0].returncode == 1  # that of torchrun: it was not itself asked to stop
    assert output.count("stopped by SIGTERM after step 1") == 1
    assert (tmp_path / "saved-0").exists()
    assert (tmp_path / "saved-1").exists()
    both[1].terminate()  # which waits for the first to be started again
    both[1].communicate(timeout=60)


@pytest.mark.slow
def test_a_node_that_waits_for_the_others_can_be_stopped(nodes, tmp_path) -> None:
    for number in (0, 1):
        alone = nodes(number, "python", "-m", "node", "one", "60")
        wait_for(tmp_path, "scratch/nodes-*/*.stage", alone)  # node 1 finds that of node 0
        time.sleep(5)
        alone.send_signal(signal.SIGTERM)
        alone.communicate(timeout=30)
        assert alone.returncode == 143


def test_a_container_has_the_cores_of_its_limit(tmp_path, monkeypatch) -> None:
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    (groups / "pods/one").mkdir(parents=True)
    assert list(cores.quotas(groups, own)) == [], "no such groups"
    own.write_text("1:cpu:/other\n0::/pods/one\n")
    (groups / "pods/one/cpu.max").write_text("max 100000\n")
    assert list(cores.quotas(groups, own)) == []
    (groups / "pods/cpu.max").write_text("250000 100000\n")
    (groups / "pods/one/cpu.max").write_text("50000 100000\n")
    assert sorted(cores.quotas(groups, own)) == [0.5, 2.5]
    for limits, expected in (([], 16), ([2.5, 64.0], 2), ([0.5], 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
        monkeypatch.setattr(cores, "quotas", lambda limits=limits: limits)
        assert cores.cores() == expected


def test_nodes_says_what_it_needs(tmp_path) -> None:
    (tmp_path / "dvc.yaml").touch()
    assert "CL_RUN: a name for this run, the same on all nodes" in run(tmp_path, "nodes", "true", code=1)
