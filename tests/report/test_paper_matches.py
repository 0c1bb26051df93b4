"""Our numbers beside the papers': which experiments count, and the commands that run the rest."""

import pytest

from cl.report import paper_tables
from cl.report.experiments import Experiment, mean_over_seeds
from cl.report.paper_matches import PaperMatch, PaperMatches, commands
from cl.statistics import Estimate, Interval
from tests.support.experiments import KNN, TABLE3, composed, experiment


def match(found: list[Experiment], paper: str, table: str, row: str, column: int = 0) -> PaperMatch:
    sheet = paper_tables.load(paper)
    matches = PaperMatches(found, composed)
    chosen = next(t for t in sheet.tables if t.name == table)
    cells = next(cells for cells in paper_tables.cells(chosen) if cells[0].row.label == row)
    return matches.match(cells[column])


def test_a_cell_holds_the_papers_number_and_ours_and_gains_are_computed() -> None:
    found = [
        experiment("a", TABLE3.replace("loss=dcl", "loss=infonce"), 80.0),
        experiment("b", TABLE3, 83.5),
    ]
    cell = match(found, "dcl", "Table 3", "Baseline")
    assert (cell.printed, cell.ours.mean, round(cell.difference, 6)) == (81.8, 80.0, -1.8)
    cell = match(found, "dcl", "Table 3", "DCL, gain")
    assert (cell.printed, cell.ours.mean, cell.ours.names) == (3.1, 3.5, ("b", "a"))
    assert cell.ours.sd is None
    again = [experiment("c", TABLE3.replace("loss=dcl", "loss=infonce"), 82.0, seed=1)]
    again.append(experiment("d", TABLE3, 84.5, seed=1))
    both = match([*found, *again], "dcl", "Table 3", "DCL, gain").ours
    assert (both.mean, both.n) == (3.0, 2)
    assert both.sd == pytest.approx((0.5 + 2) ** 0.5), "of a difference of two independent numbers"
    assert match(found, "dcl", "Table 3", "Baseline", 3).ours is None, "ImageNet was not run"
    assert match(found[:1], "dcl", "Table 3", "DCL, gain").ours is None


@pytest.mark.parametrize(("printed", "verdict"), [(49.0, "up"), (51.0, ""), (53.0, "down"), (None, "")])
def test_the_verdict_is_empty_if_the_papers_number_lies_within_our_interval(printed, verdict) -> None:
    assert PaperMatch(None, printed, Estimate(51.0, None, 1, Interval(50.0, 52.0))).verdict == verdict


def test_a_quoted_number_is_beside_ours_and_says_whose_it_is() -> None:
    cell = match([], "dcl", "Table 2", "NPID")
    assert cell.text() == "80.8 / quoted"
    cell = match([experiment("a", "recipe=quoted/npid_cifar10", 79.3)], "dcl", "Table 2", "NPID")
    assert (cell.printed, cell.ours.mean, cell.ours.names) == (80.8, 79.3, ("a",))
    assert cell.quoted == "CLD; the CIFAR numbers equal those in its repository"
    assert cell.text() == "80.8 / **79.3**, n = 1 (-1.5)"


def test_an_experiment_on_part_of_the_data_matches_no_paper() -> None:
    small, other = (experiment(name, TABLE3, 80.0, seed=seed) for name, seed in (("small", 0), ("other", 1)))
    assert match([small], "dcl", "Table 3", "DCL").ours.mean == 80
    small.metrics["train_images"] -= 1
    assert match([small], "dcl", "Table 3", "DCL").ours is None
    assert mean_over_seeds([small, other], KNN).n == 2
    other.provenance["prepare"]["data_manifest_sha256"] = "e"
    assert mean_over_seeds([small, other], KNN).names == ("small",), (
        "experiments on different data are not averaged"
    )


def test_each_missing_run_has_its_command() -> None:
    runs = ["recipe=a loss=dcl", "evaluation=[a,b]", "recipe=a loss=dcl"]
    assert commands(runs) == ["dvc exp run -S recipe=a -S loss=dcl", "dvc exp run -S 'evaluation=[a,b]'"]
