"""A study runs from a commit that holds its plan (its YAML) and all code, and its rows name both."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.studies import Row, Study, arm_and_metric
from cl import config
from pipeline.composition.compose import compose
from pipeline.support.provenance import git

TREE = (".", ":!dvc.lock", ":!docs/results")  # all but results
DECIDES = ("settings", "arms", "seeds", "metric", "comparisons")  # the rest of a study is text
DIGITS = 10


class Plan(NamedTuple):
    """The commit of the code, and git's hash of the study's YAML in it."""

    commit: str
    blob: str


def registered(path: Path, commit: str = "") -> Plan:
    """The plan of the study at `path`, as a commit has it, by default the last one.

    Raises:
        ValueError: the commit lacks it, or differs from the files here; untracked files count.
    """
    commit = commit or git("rev-parse", "HEAD")[:DIGITS]
    plan = Plan(commit, blob(commit, path))
    if not plan.blob:
        raise ValueError(f"the last commit has no {path}: commit the plan before it runs")
    changed = git("diff", "--name-only", commit, "--", *TREE).splitlines()
    changed += git("ls-files", "--others", "--exclude-standard", "--", *TREE).splitlines()
    if changed:
        raise ValueError(
            f"commit {commit} does not have these files as they are here: {', '.join(changed[:5])} "
            f"({len(changed)} in all); commit or remove them, since a row names the commit that made it"
        )
    return plan


def of_run(path: Path, made: dict[str, Any], experiment: str) -> Plan:
    """The plan of a finished experiment, from the provenance of its pretraining.

    Raises:
        ValueError: it was trained from uncommitted code, or before the plan was committed.
    """
    plan = Plan(str(made["commit"])[:DIGITS], blob(str(made["commit"]), path))
    if made["uncommitted_changes"] or not plan.blob:
        raise ValueError(
            f"experiment {experiment} was trained from commit {plan.commit}, with uncommitted changes or "
            f"without {path}: `dvc exp remove {experiment}`, and take a seed that is new to you"
        )
    return plan


def blob(commit: str, path: Path) -> str:
    """Git's hash of a file in a commit; empty if the commit, or the file in it, does not exist."""
    return git("rev-parse", "--verify", "--quiet", f"{commit}:{path.as_posix()}")[:DIGITS]


def parameters_hash(composed: dict[str, Any]) -> str:
    """Of the composed parameters without the seed: changes with every file that the overrides name."""
    values = {key: value for key, value in composed.items() if key not in ("seed", "overrides")}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:DIGITS]


def check_parameters(study: Study, rows: list[Row], arm: str) -> None:
    """Check that the next run of an arm has the parameters of those before it.

    Raises:
        ValueError: a file that the overrides name has changed since.
    """
    now = parameters_hash(compose(study.overrides(arm, study.seeds[0])))
    known = {row.parameters for row in rows if arm_and_metric(row.arm)[0] == arm}
    if known - {now}:
        raise ValueError(
            f"arm {arm} has rows with parameters {', '.join(sorted(known))} and would now run with {now}: "
            "a recipe has changed since; undo that, or state a new study"
        )


def check(path: Path, study: Study, rows: list[Row]) -> None:
    """Check that every row was planned before it ran, and that the plan has not changed since.

    Raises:
        ValueError: the plan is not in the commit that ran, the commit is not in the history, or seeds, arms,
            settings or claims have changed.
    """
    if not study.registration and not all(row.plan for row in rows):
        raise ValueError(f"{path.stem}.csv has rows that name no plan: delete them, to run them again")
    for commit, plan in dict.fromkeys((row.commit, row.plan) for row in rows if row.plan):
        if blob(commit, path) != plan or not git("merge-base", commit, "HEAD").startswith(commit):
            if git("rev-parse", "--is-shallow-repository") == "true":
                raise ValueError(f"{path.stem}.csv has rows of older commits: `git fetch --unshallow` first")
            raise ValueError(
                f"{path.stem}.csv has rows of commit {commit}, which is not an ancestor of HEAD or lacks "
                f"their plan {plan}: delete them, to run them from a commit that stays in the history"
            )
        then = config.validated(Study, config.parse(git("cat-file", "blob", plan), str(path)))
        if changed := [key for key in DECIDES if getattr(then, key) != getattr(study, key)]:
            raise ValueError(
                f"{path}: {', '.join(changed)} changed after the first row; undo that, or state a new study"
            )
