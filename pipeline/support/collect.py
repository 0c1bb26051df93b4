"""Finished experiments: DVC's and the commits that these start from, the workspace, and the branches."""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dvc.exceptions import DvcException
from dvc.repo import Repo

from cl.config import parse
from cl.report.experiments import Experiment, changed_params, result_names
from cl.report.files import ResultFiles
from pipeline.support import command
from pipeline.support.provenance import git

FILES = ("params.yaml", "dvc.lock")
# The values of parameters: most of dvc.lock, and params.yaml has them too.
LOCKED_PARAMS = re.compile(r"^    params:\n(?: {5,}.*\n|\n)*", re.MULTILINE)


class _Candidate(NamedTuple):
    """A commit or the workspace (empty revision) that may hold an experiment, and the text of its files."""

    name: str
    revision: str
    params: str
    lock: str


def collect(say: Callable[[str], None]) -> list[Experiment]:
    """All finished experiments, newest DVC experiment first; `say` reports what is left out or missing.

    Results are read by their hashes in dvc.lock from DVC's cache. Stale workspace files do not count, nor do
    outputs of stages whose dependencies have changed since.
    """
    try:
        opened = Repo()
    except DvcException as error:
        raise ValueError(f"{error}; run this from the top folder of the project") from error
    experiments: list[Experiment] = []
    with opened as repo:
        for candidate in _candidates():
            try:
                experiment = _read(candidate, lambda md5: Path(repo.cache.local.oid_to_path(md5)), say)
            except ValueError as error:
                say(f"{candidate.name} is left out: {error}")
                continue
            if any(experiment.name == other.name for other in experiments):
                experiment = replace(experiment, name=f"{experiment.name}@{experiment.revision}")
            if set(experiment.provenance) - {"prepare"}:
                experiments.append(experiment)
            elif experiment.problems:
                say(f"{candidate.name} is left out: {experiment.problems[0]}")
    return experiments


def _candidates() -> Iterator[_Candidate]:
    refs = git("for-each-ref", "--sort=-committerdate", "--format=%(refname)", "refs/exps").split()
    refs = [ref for ref in refs if ref.count("/") == 4 and not ref.startswith("refs/exps/exec/")]
    for ref in refs:
        yield from _at_commit(ref, ref.rsplit("/", 1)[1])
    if all(Path(file).is_file() for file in FILES):
        params, lock = (Path(file).read_text() for file in FILES)
        yield _Candidate("workspace", "", params, lock)
    for ref in git("for-each-ref", "--format=%(refname)", "refs/heads").split():
        yield from _at_commit(ref, ref.removeprefix("refs/heads/"))
    for base in dict.fromkeys("".join(ref.split("/")[2:4]) for ref in refs):
        yield from _at_commit(base, base[:10])


def _at_commit(ref: str, name: str) -> Iterator[_Candidate]:
    params, lock = (git("show", f"{ref}:./{file}") for file in FILES)
    if params and lock:
        revision = git("rev-parse", "--short=10", ref)
        yield _Candidate(name, revision, params, lock)


def _read(candidate: _Candidate, path_of: Callable[[str], Path], say: Callable[[str], None]) -> Experiment:
    """The experiment of a candidate; raises ValueError if its files cannot be read."""
    lock = parse(LOCKED_PARAMS.sub("", candidate.lock), "dvc.lock")
    params = parse(candidate.params, "params.yaml")
    params.pop("overrides", None)  # other overrides may give the same experiment
    missing = 0
    with tempfile.TemporaryDirectory() as folder:
        for path, cached in _results(list((lock.get("stages") or {}).values()), path_of):
            missing += not cached.is_file()
            link = Path(folder, path)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(cached)
        read = ResultFiles(Path(folder) / command.RESULTS, pictures=False)
        experiment = _experiment(candidate, params, read)
    if missing:
        say(
            f"{candidate.name}: {missing} of its result files are missing from DVC's cache; "
            "run `dvc pull` or `dvc exp pull`"
        )
    return experiment


def _results(stages: list[dict[str, Any]], path_of: Callable[[str], Path]) -> Iterator[tuple[Path, Path]]:
    """The up-to-date result files of a dvc.lock, and where each is in DVC's cache."""
    for output in _up_to_date_outputs(stages):
        path, cached = Path(output["path"]), path_of(output["md5"])
        if command.RESULTS in path.parents and cached.suffix == ".dir" and cached.is_file():
            entries = json.loads(cached.read_text())
            yield from ((path / entry["relpath"], path_of(entry["md5"])) for entry in entries)
        elif command.RESULTS in path.parents:
            yield path, cached


def _up_to_date_outputs(stages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The outputs of stages whose inputs are the current outputs of earlier stages."""
    current = {output["path"]: output["md5"] for stage in stages for output in stage.get("outs", [])}
    for stage in stages:
        if all(current.get(used["path"], used["md5"]) == used["md5"] for used in stage.get("deps", [])):
            yield from stage.get("outs", [])


def _experiment(candidate: _Candidate, params: dict[str, Any], read: ResultFiles) -> Experiment:
    """The results that the parameters name; a result of other parameters is listed as a problem."""
    experiment = Experiment(candidate.name, candidate.revision, params, {}, {})
    for result in result_names(params):
        origin = read.provenance(result)
        is_independent = result in ("prepare", "pretrain") or result.startswith("baseline/")
        if not origin or not (is_independent or "pretrain" in experiment.provenance):
            continue
        if changed := changed_params(origin, params):
            experiment.problems.append(f"{result} was made with a different {', '.join(changed[:3])}")
            continue
        experiment.metrics.update(read.metrics(result))
        experiment.provenance[result] = origin
        experiment.measurements.extend(read.measurements(result))
        if result == "pretrain":
            experiment.epochs.extend(read.table(result, "epochs.csv"))
        if result.startswith("analyze/"):
            experiment.charts[result.removeprefix("analyze/")] = read.charts(result)
    put_used_values(params, experiment.provenance)
    return experiment


def put_used_values(params: dict[str, Any], provenance: dict[str, dict[str, Any]]) -> None:
    """Replace parameters that an arm or few images changed by those that the results record."""
    pretraining = provenance.get("pretrain", {})
    params |= pretraining.get("arm", {})
    for name in ("batch_size", "epochs"):
        if name in pretraining:
            params["optim"][name] = pretraining[name]
    if "bn_group" in pretraining:
        params["bn_group"] = pretraining["bn_group"]
    for name, entry in (params.get("evaluations") or {}).items():
        entry |= provenance.get(f"evaluate/{name}", {}).get("reduced", {})
