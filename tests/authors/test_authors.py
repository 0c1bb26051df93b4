"""Our side of the comparisons with the authors' code gives the numbers it gave when it agreed with theirs.

`python -m benchmarks.authors NAME --source CLONE --save` compares again and writes them (docs/parity.md).
"""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.authors.__main__ import NAMES, SAVED, comparisons_of, main
from benchmarks.authors.harness.table import table
from tests.support.project import ROOT

TOLERANCE = 1e-8
NEGLIGIBLE = 1e-3  # of the largest number of its kind: a smaller one may be 0 but for rounding

FILES = sorted((ROOT / SAVED).glob("*.json"))
CASES = [
    (file, name)
    for file in FILES
    for name, saved in json.loads(file.read_text()).items()
    if saved["numbers"]  # lightly's tests are without
]


@cache
def replayed(module: str, name: str) -> dict:
    """What our side measures; comparisons with several sources may train the same experiment."""
    (comparison,) = (each for each in comparisons_of(module) if each.name == name)
    same = [each.name for each in comparisons_of(module) if experiment(each) == experiment(comparison)]
    return json.loads(json.dumps(comparison.replay())) if same[0] == name else replayed(module, same[0])


def experiment(comparison) -> tuple:
    """What determines our side of a training; otherwise the name."""
    if not hasattr(comparison, "overrides"):
        return (comparison.name,)
    return comparison.overrides, comparison.sizes, comparison.steps_per_epoch


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
            pairs = zip(numbers(value), numbers(ours[name]), strict=True)
            result[f"{kind} {name}"] = max(abs(a - b) / max(abs(a), least, 1e-300) for a, b in pairs)
    return result


def cases() -> list:
    """All that are saved; slow where an earlier one has the same method and loss, whatever its size."""
    result, seen = [], set()
    for file, name in CASES:
        (comparison,) = (each for each in comparisons_of(file.stem) if each.name == name)
        overrides = getattr(comparison, "overrides", [f"method={name}"])
        chosen = (choice for choice in overrides if choice.startswith(("method=", "loss=")))
        kinds = tuple(re.sub(r"_(imagenet|cifar|k16|a\d+)$", "", choice) for choice in chosen) or file
        marks = [pytest.mark.slow] if kinds in seen else []
        seen.add(kinds)
        result.append(pytest.param(file, name, marks=marks, id=name))
    return result


@pytest.mark.parametrize(("file", "name"), cases())
def test_our_side_gives_the_numbers_with_which_it_agreed(file: Path, name: str) -> None:
    expected = json.loads(file.read_text())[name]["numbers"]
    found = differences(expected, replayed(file.stem, name))
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


def test_a_folder_that_is_not_the_source_gets_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["moco", "--source", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output == (
        f"Error: {tmp_path} is not a clone of facebookresearch/moco at 132aea9 (with moco/builder.py); "
        "pass the folder of one\n"
    )


def test_without_a_source_it_says_which_it_needs() -> None:
    result = CliRunner().invoke(main, ["knn"])
    assert result.exit_code == 1
    assert result.output == (
        "Error: nothing to compare with; pass --source with a clone of lightly-ai/lightly at e8d317f "
        "or vturrisi/solo-learn at 9187ea3\n"
    )


def test_without_a_name_it_lists_the_names_with_their_sources() -> None:
    lines = CliRunner().invoke(main).output.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == NAMES
    assert "    facebookresearch/moco-v3 at c349e6e" in lines


def test_the_page_shows_the_saved_differences() -> None:
    """`python -m benchmarks.authors --table` prints them."""
    assert table(ROOT / SAVED) in (ROOT / "docs/parity.md").read_text()
