"""docker/experiment.sh: experiments of a list, each in its own clone."""

import signal
from pathlib import Path

import pytest

from tests.support.commands import git, run, start, wait_for


@pytest.mark.slow
def test_experiments_of_a_commit_run_in_clones_and_end_up_in_the_project(slow_project: Path) -> None:
    (slow_project / "slow.py").write_text("raise SystemExit(1)\n")  # not in the commit
    (slow_project / "list.txt").write_text("-S seconds=0.1\n-S seconds=0.2\n")
    tasks = [
        start(slow_project, "experiment", "list.txt", SLURM_ARRAY_TASK_ID=line, CL_COMMIT="HEAD")
        for line in "12"
    ]
    for task in tasks:
        output = task.communicate(timeout=120)[0]
        assert task.returncode == 0, output
    experiments = git(slow_project, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    names = [experiment.split("/")[-1] for experiment in experiments]
    assert [name.rsplit("-", 1)[0] for name in names] == ["seconds-0.1", "seconds-0.2"]
    for experiment, seconds in zip(experiments, ("0.1", "0.2"), strict=True):
        assert git(slow_project, "show", f"{experiment}:params.yaml") == f"seconds: {seconds}\n"
    assert list((slow_project / "scratch/experiments").iterdir()) == [], "nothing is left"
    assert run(slow_project, "experiment", "list.txt", "2") == f"{names[1]} is already finished\n"


def test_a_wrong_line_or_uncommitted_changes_are_refused(slow_project: Path) -> None:
    (slow_project / "slow.py").write_text("changed = True\n")
    (slow_project / "list.txt").write_text("-S seconds=0.3\n-S 'seconds=1\n")
    assert "commit your changes" in run(slow_project, "experiment", "list.txt", "1", code=1)
    assert "list.txt, line 2: unmatched quotes" in run(slow_project, "experiment", "list.txt", "2", code=1)
    assert run(slow_project, "experiment", "list.txt", "3", code=1) == "list.txt contains no line 3\n"


def test_a_stopped_experiment_resumes_in_its_clone(slow_project: Path) -> None:
    (slow_project / "list.txt").write_text("-S seconds=60\n")
    first = start(slow_project, "experiment", "list.txt", JOB_COMPLETION_INDEX="0")
    clone = wait_for(slow_project, "scratch/experiments/*/started", first).parent
    assert "is already running in another process" in run(slow_project, "experiment", "list.txt", "1", code=1)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert first.returncode == 143
    assert (clone / "saved").exists(), "what it saved is kept"
    assert git(slow_project, "for-each-ref", "refs/exps") == ""
    (clone / "slow.py").write_text("open('out', 'w').write('done')")
    name = clone.name.partition("-")[2]
    run(clone, "dvc", "exp", "run", "--name", name, "-S", "seconds=60")
    assert run(slow_project, "experiment", "list.txt", "1") == "", "it had finished but was not fetched yet"
    assert name in git(slow_project, "for-each-ref", "refs/exps")
