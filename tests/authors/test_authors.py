"""Our side of the comparisons with the authors' code gives the numbers it gave when it agreed with theirs.

`python -m benchmarks.authors NAME --source CLONE --save` compares again and writes them
(docs/results/parity.md).
"""

import json
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from benchmarks.authors.__main__ import NAMES, SAVED, comparisons_of
from benchmarks.authors.harness.comparison import STEPS, Training
from benchmarks.authors.harness.table import table
from tests.support.project import ROOT

# Of the other methods, the golden values show changes: tests/methods/test_contract.py.
FAST = ("moco_v2", "npid_cld", "swav")
FIRST_STEPS = 2  # show all that a step depends on: weights, target, queues and the optimizer's buffers
TOLERANCE = 1e-8
NEGLIGIBLE = 1e-3  # of the largest number of its kind: a smaller one may be 0 but for rounding

FILES = sorted((ROOT / SAVED).glob("*.json"))
CASES = [
    (file, name)
    for file in FILES
    for name, saved in json.loads(file.read_text()).items()
    if saved["numbers"]  # lightly's tests are without
]


def numbers(value) -> list[float]:
    """All numbers of nested lists and dictionaries."""
    if isinstance(value, dict | list):
        return [x for inner in (value.values() if isinstance(value, dict) else value) for x in numbers(inner)]
    return [value]


def differences(expected, found) -> dict[str, float]:
    """For every entry of every kind, the largest difference relative to its size."""
    assert expected.keys() == found.keys()
    result = {}
    for kind, entries in expected.items():
        least = NEGLIGIBLE * max(abs(x) for x in numbers(entries))
        by_name = entries if isinstance(entries, dict) else {"": entries}
        ours = found[kind] if isinstance(entries, dict) else {"": found[kind]}
        assert by_name.keys() == ours.keys()
        for name, value in by_name.items():
            assert all(map(isfinite, numbers(ours[name]))), f"{kind} {name} is not finite"
            pairs = zip(numbers(value), numbers(ours[name]), strict=True)
            result[f"{kind} {name}"] = max(abs(a - b) / max(abs(a), least, 1e-300) for a, b in pairs)
    return result


def until(steps: int, trained: dict) -> dict:
    """The numbers of a training up to a step."""
    norms = {
        kind: {name: values[:steps] for name, values in trained[kind].items()}
        for kind in ("gradients", "state")
    }
    return {"losses": trained["losses"][:steps], **norms}


def comparison_of(file: Path, name: str) -> Any:
    (found,) = (each for each in comparisons_of(file.stem) if each.name == name)
    return found


def cases() -> list:
    """All that are saved, trainings slow, and the first steps of some trainings."""
    result = []
    for file, name in CASES:
        training = isinstance(comparison_of(file, name), Training)
        steps, marks = (STEPS, [pytest.mark.slow]) if training else (None, [])
        result.append(pytest.param(file, name, steps, marks=marks, id=f"{name}, {steps or 'no'} steps"))
        if name in FAST:
            result.append(pytest.param(file, name, FIRST_STEPS, id=name))
    return result


@pytest.mark.parametrize(("file", "name", "steps"), cases())
def test_our_side_gives_the_numbers_with_which_it_agreed(file: Path, name: str, steps: int | None) -> None:
    """`steps`: of a training."""
    expected = json.loads(file.read_text())[name]["numbers"]
    replayed = comparison_of(file, name).replay(*[steps] if steps else [])
    ours = json.loads(json.dumps(replayed))
    found = differences(until(steps, expected) if steps else expected, ours)
    worst = max(found, key=lambda entry: found[entry])
    assert found[worst] <= TOLERANCE, f"{worst} differs by {found[worst]:.1e}"


def test_every_comparison_has_been_saved_after_agreeing() -> None:
    assert [file.stem for file in FILES] == NAMES
    for file in FILES:
        saved = json.loads(file.read_text())
        comparisons = {comparison.name: comparison for comparison in comparisons_of(file.stem)}
        assert saved.keys() == comparisons.keys()
        for name, entry in saved.items():
            assert max(entry["agreement"].values()) <= comparisons[name].tolerance
            source = comparisons[name].source
            assert (entry["source"], entry["commit"]) == (source.repository, source.commit)


def test_the_page_shows_the_saved_differences() -> None:
    """`python -m benchmarks.authors --table` prints them."""
    assert table(ROOT / SAVED) in (ROOT / "docs/results/parity.md").read_text()
