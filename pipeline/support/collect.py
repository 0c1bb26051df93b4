"""Finished experiments: DVC's and the commits that these start from, the workspace, and the branches."""

import csv
import io
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
from cl.report.charts import Chart
from cl.report.experiments import Experiment, changed_params, result_names
from cl.runtime.metric_info import Measurement
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

    Raises:
        ValueError: the current folder is not in a DVC repository.
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
    outputs = _Outputs(parse(LOCKED_PARAMS.sub("", candidate.lock), "dvc.lock"), path_of)
    params = parse(candidate.params, "params.yaml")
    params.pop("overrides", None)  # other overrides may give the same experiment
    experiment = _experiment(candidate, params, outputs)
    if outputs.missing:
        say(
            f"{candidate.name}: {outputs.missing} of its result files are missing from DVC's cache; "
            "run `dvc pull` or `dvc exp pull`"
        )
    return experiment


class _Outputs:
    """The up-to-date result files of a dvc.lock, read from DVC's cache."""

    def __init__(self, lock: dict[str, Any], path_of: Callable[[str], Path]) -> None:
        self._path_of = path_of
        self.missing = 0
        self._hashes: dict[str, str] = {}
        for output in _up_to_date_outputs(list((lock.get("stages") or {}).values())):
            path, md5 = output["path"], output["md5"]
            if path.startswith(f"{command.RESULTS}/") and md5.endswith(".dir"):
                self._hashes |= {f"{path}/{name}": file_md5 for name, file_md5 in self._listed(md5)}
            elif path.startswith(f"{command.RESULTS}/"):
                self._hashes[path] = md5

    def read(self, path: str) -> bytes | None:
        return self._object(self._hashes[path]) if path in self._hashes else None

    def inside(self, folder: str) -> list[str]:
        return [path for path in self._hashes if path.startswith(f"{folder}/")]

    def _listed(self, md5: str) -> list[tuple[str, str]]:
        listing = self._object(md5)
        return [(entry["relpath"], entry["md5"]) for entry in json.loads(listing)] if listing else []

    def _object(self, md5: str) -> bytes | None:
        file = self._path_of(md5)
        if file.is_file():
            return file.read_bytes()
        self.missing += 1
        return None


def _up_to_date_outputs(stages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The outputs of stages whose inputs are the current outputs of earlier stages."""
    current = {output["path"]: output["md5"] for stage in stages for output in stage.get("outs", [])}
    for stage in stages:
        if all(current.get(used["path"], used["md5"]) == used["md5"] for used in stage.get("deps", [])):
            yield from stage.get("outs", [])


def _experiment(candidate: _Candidate, params: dict[str, Any], outputs: _Outputs) -> Experiment:
    """The results that the parameters name; a result of other parameters is listed as a problem."""
    experiment = Experiment(candidate.name, candidate.revision, params, {}, {})
    for result in result_names(params):
        path = f"{command.RESULTS}/{result}"
        metrics, provenance = outputs.read(f"{path}.json"), outputs.read(f"{path}.provenance.json")
        if metrics is None or provenance is None:
            continue
        is_independent = result in ("prepare", "pretrain") or result.startswith("baseline/")
        if not (is_independent or "pretrain" in experiment.provenance):
            continue
        origin = json.loads(provenance)
        if "/" in result and "measurements" not in origin:
            experiment.problems.append(f"{result} was made by version 0.2 or earlier; run it again")
            continue
        if changed := changed_params(origin, params):
            experiment.problems.append(f"{result} was made with a different {', '.join(changed[:3])}")
            continue
        experiment.metrics.update(json.loads(metrics))
        experiment.provenance[result] = origin
        experiment.measurements.extend(Measurement(**each) for each in origin.get("measurements", []))
        if result == "pretrain" and (log := outputs.read(f"{path}/epochs.csv")) is not None:
            experiment.epochs.extend(csv.DictReader(io.StringIO(log.decode())))
        if result.startswith("analyze/"):
            experiment.charts[result.removeprefix("analyze/")] = _charts(path, outputs)
    _put_used_values(params, experiment.provenance)
    return experiment


def _put_used_values(params: dict[str, Any], provenance: dict[str, dict[str, Any]]) -> None:
    """Replace parameters that were changed for few images by those that the results record."""
    pretraining = provenance.get("pretrain", {})
    for name in ("batch_size", "epochs"):
        if name in pretraining:
            params["optim"][name] = pretraining[name]
    if "bn_group" in pretraining:
        params["bn_group"] = pretraining["bn_group"]
    for name, entry in (params.get("evaluations") or {}).items():
        entry |= provenance.get(f"evaluate/{name}", {}).get("reduced", {})


def _charts(folder: str, outputs: _Outputs) -> list[Chart]:
    with tempfile.TemporaryDirectory() as copy:
        for file in outputs.inside(folder):
            if file.endswith((".chart.json", ".csv")) and (content := outputs.read(file)) is not None:
                (Path(copy) / Path(file).name).write_bytes(content)
        return [Chart.load(path) for path in sorted(Path(copy).glob("*.chart.json"))]
