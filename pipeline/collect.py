"""Finished experiments of this repository: DVC's experiments, the workspace, and the branches."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cl import charts
from cl.config import parse
from cl.report.experiments import Experiment, outdated, results
from pipeline import command

FILES = ("params.yaml", "dvc.lock")


def collect(say: Callable[[str], None]) -> list[Experiment]:
    """All that have a result of their own, the newest experiments first; what is missing from DVC's cache is told.

    Results are those that dvc.lock names, read from the cache by their hashes: neither a stale file of the workspace nor a
    stage that has not followed another is taken for a result.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        opened = Repo()
    except DvcException as error:
        raise ValueError(f"{error}; run this from the top folder of the project") from error
    found: list[Experiment] = []
    with opened as repo:
        for name, revision, params, lock in _places():
            try:
                outputs = _Outputs(
                    parse(lock, "dvc.lock"), lambda md5: Path(repo.cache.local.oid_to_path(md5))
                )
                known = {experiment.name for experiment in found}
                unique = name if name not in known else f"{name}@{revision}"
                experiment = _experiment(unique, revision, parse(params, "params.yaml"), outputs)
            except ValueError as error:
                say(f"{name} is left out: {error}")
                continue
            if outputs.missing:
                say(
                    f"{name}: {outputs.missing} files of its results are not in DVC's cache; `dvc pull` or `dvc exp pull` it"
                )
            if set(experiment.provenance) - {"prepare"}:
                found.append(experiment)
    return found


def _places() -> Iterator[tuple[str, str, str, str]]:
    """Name, commit, params.yaml and dvc.lock of everything that may hold an experiment."""
    listed = _git("for-each-ref", "--sort=-committerdate", "--format=%(refname)", "refs/exps").split()
    for ref in (ref for ref in listed if ref.count("/") == 4 and not ref.startswith("refs/exps/exec/")):
        yield from _commit(ref, ref.rsplit("/", 1)[1])
    if all(Path(file).is_file() for file in FILES):
        yield "workspace", "", *(Path(file).read_text() for file in FILES)  # type: ignore[misc]
    for ref in _git("for-each-ref", "--format=%(refname)", "refs/heads").split():
        yield from _commit(ref, ref.removeprefix("refs/heads/"))


def _commit(ref: str, name: str) -> Iterator[tuple[str, str, str, str]]:
    params, lock = (_git("show", f"{ref}:./{file}") for file in FILES)
    if params and lock:
        yield name, _git("rev-parse", "--short=10", ref).strip(), params, lock


class _Outputs:
    """Files of results that a dvc.lock names, read from the cache."""

    def __init__(self, lock: dict[str, Any], path_of: Callable[[str], Path]) -> None:
        self._path_of, self.missing = path_of, 0
        stages = (lock.get("stages") or {}).values()
        made = {output["path"]: output["md5"] for stage in stages for output in stage.get("outs", [])}
        followed = [
            stage
            for stage in stages
            if all(made.get(d["path"], d["md5"]) == d["md5"] for d in stage.get("deps", []))
        ]
        self.hashes: dict[str, str] = {}
        for output in (output for stage in followed for output in stage.get("outs", [])):
            path, md5 = output["path"], output["md5"]
            if path.startswith(f"{command.RESULTS}/") and md5.endswith(".dir"):
                self.hashes |= {f"{path}/{name}": own for name, own in self._listed(md5)}
            elif path.startswith(f"{command.RESULTS}/"):
                self.hashes[path] = md5

    def read(self, path: str) -> bytes | None:
        return self._object(self.hashes[path]) if path in self.hashes else None

    def inside(self, folder: str) -> list[str]:
        return [path for path in self.hashes if path.startswith(f"{folder}/")]

    def _listed(self, md5: str) -> list[tuple[str, str]]:
        listing = self._object(md5)
        return [(entry["relpath"], entry["md5"]) for entry in json.loads(listing)] if listing else []

    def _object(self, md5: str) -> bytes | None:
        file = self._path_of(md5)
        if file.is_file():
            return file.read_bytes()
        self.missing += 1
        return None


def _experiment(name: str, revision: str, params: dict[str, Any], outputs: _Outputs) -> Experiment:
    """What the parameters name and the files hold; a result made with other parameters is a problem, not a result."""
    found = Experiment(name, revision, params, {}, {})
    for result in results(params):
        metrics, provenance = (
            outputs.read(f"{command.RESULTS}/{result}{suffix}.json") for suffix in ("", ".provenance")
        )
        if (
            metrics is None
            or provenance is None
            or not (_independent(result) or "pretrain" in found.provenance)
        ):
            continue
        origin = json.loads(provenance)
        if others := outdated(origin, params):
            found.problems.append(f"{result} was made with another {', '.join(others[:3])}")
            continue
        found.metrics.update(json.loads(metrics))
        found.provenance[result] = origin
        if result.startswith("analyze/"):
            found.charts[result.removeprefix("analyze/")] = _charts(f"{command.RESULTS}/{result}", outputs)
    return found


def _independent(result: str) -> bool:
    """Of pretraining."""
    return result in ("prepare", "pretrain") or result.startswith("baseline/")


def _charts(folder: str, outputs: _Outputs) -> list[charts.Chart]:
    with tempfile.TemporaryDirectory() as copy:
        for file in outputs.inside(folder):
            if file.endswith((".chart.json", ".csv")) and (content := outputs.read(file)) is not None:
                (Path(copy) / Path(file).name).write_bytes(content)
        return list(charts.of_folder(Path(copy)))


def _git(*arguments: str) -> str:
    """What git prints; nothing where it fails."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""
