"""The page about one experiment: its own numbers only, and "not run" for everything else."""

import base64
import json
import re
from pathlib import Path

import pytest

from cl.config import load
from cl.report.page import render as render_both
from tests.support.project import ROOT


def render(values: dict, results: Path) -> str:
    return render_both(values, results)[0]


@pytest.fixture
def values() -> dict:
    return load(ROOT / "params.yaml").model_dump(mode="json")


def write(root: Path, name: str, metrics: dict) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / f"{name}.json").write_text(json.dumps(metrics))


def test_a_page_without_results_says_not_run(values, tmp_path) -> None:
    page = render(values, tmp_path)
    assert page.count("not run") >= len(values["evaluations"]) + len(values["transfers"]) + len(
        values["analyses"]
    )
    assert "None" not in page.split("all parameters")[0]


def test_private_images_stay_out_of_the_report(values, tmp_path) -> None:
    """Those of training, of the neighbours and of detections; everything else is shown."""
    names = ("pretrain/views.png", "analyze/neighbours/neighbours.png", "transfer/voc_c4/detections.png")
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(f"private {number}".encode())
    write(tmp_path, "analyze/neighbours", {"neighbours_same_class": 51.25})
    pictures = [base64.b64encode(f"private {number}".encode()).decode() for number in range(3)]
    page = render(values, tmp_path)
    assert all(picture in page for picture in pictures)
    private = render({**values, "report": {"pictures": False}}, tmp_path)
    assert "<img" not in private
    assert not any(picture in private for picture in pictures)
    assert "51.25" in private
    assert "Pictures of the data are left out (report.pictures=false)." in private


def test_numbers_are_shown_beside_the_baselines_with_differences(values, tmp_path) -> None:
    write(tmp_path, "evaluate/knn", {"knn_top1": 65.4321, "knn_embedding_top1": 66.2})
    write(tmp_path, "baseline/random", {"random_knn_top1": 39.8, "random_knn_pixels_top1": 22.6})
    page = render(values, tmp_path)
    assert "<td>65.4</td>" in page
    assert '39.8 <span class="gain up">(+25.6)</span>' in page
    assert '<td><span class="soft">-</span></td>\n<td>22.6</td>' in page, (
        "raw pixels belong to the random baseline alone"
    )
    assert '<td><span class="soft">not run</span></td>' in page, "the supervised baseline has no results"


def test_several_seeds_are_shown_as_mean_and_deviation(values, tmp_path) -> None:
    several = {"linear_top1": 60.04, "linear_top1_sd": 0.52, "linear_base_lr": 0.5, "linear_n": 3}
    write(tmp_path, "evaluate/linear", several)
    write(
        tmp_path,
        "baseline/random",
        {"random_linear_top1": 50.0, "random_linear_top1_sd": 1.5, "random_linear_n": 3},
    )
    page = render(values, tmp_path)
    assert "<td>60.0 ± 0.5</td>" in page
    assert '<td>50.0 ± 1.5 <span class="gain up">(+10.0)</span></td>' in page
    assert "(base learning rate chosen on these images 0.5, mean ± standard deviation, seeds: 3)" in page
    assert "sd</td>" not in page
    for seed, name in ((0, "robin"), (1, "wren")):
        folder = tmp_path / f"evaluate/linear/seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "classes.csv").write_text(f"class,images,top1\n{name},5,60.0\n")
    page = render(values, tmp_path)
    assert "robin" in page
    assert "wren" not in page


def test_evaluations_with_similar_names_are_told_apart(values, tmp_path) -> None:
    values["evaluations"]["knn_200"] = values["evaluations"]["knn"]
    write(tmp_path, "baseline/random", {"random_knn_top1": 39.8, "random_knn_200_top1": 29.3})
    page = render(values, tmp_path)
    assert "200 top1" not in page
    assert page.count(">39.8<") == page.count(">29.3<") == 1


def test_files_of_another_experiment_are_not_shown(values, tmp_path) -> None:
    write(tmp_path, "evaluate/stale", {"stale_top1": 98.7})
    assert "98.7" not in render(values, tmp_path)


def test_the_page_is_reproducible_and_escapes_text(values, tmp_path) -> None:
    (tmp_path / "pretrain").mkdir()
    (tmp_path / "pretrain" / "epochs.csv").write_text("epoch,loss,knn_top1\n1,4.5,30\n2,3.5,40\n")
    values["recipe"] = "<b>bold"
    page = render(values, tmp_path)
    assert page == render(values, tmp_path)
    assert "<b>bold" not in page
    assert page.count("<svg") == 2
    assert "loss: from 4.5 at 1 to 3.5 at 2" in page
    assert "<title>loss, epoch 2: 3.5</title>" in page


def test_the_verdict_compares_with_the_baselines_that_were_run(values, tmp_path) -> None:
    assert "Nothing has been evaluated yet." in render(values, tmp_path)
    write(tmp_path, "evaluate/knn", {"knn_top1": 65.4})
    assert "knn, top-1: 65.4 %, with no baseline to compare with." in render(values, tmp_path)
    write(tmp_path, "baseline/random", {"random_knn_top1": 39.8})
    page = render(values, tmp_path)
    assert "knn, top-1: 65.4 %, +25.6 points against the random encoder&#39;s 39.8." in page


def test_the_page_loads_nothing_from_elsewhere(values, tmp_path) -> None:
    page = render(values, tmp_path)
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert "@import" not in page
    assert "url(" not in page


def test_the_tables_are_also_written_as_markdown(values, tmp_path) -> None:
    write(tmp_path, "evaluate/knn", {"knn_top1": 65.44, "knn_embedding_top1": 66.2})
    write(tmp_path, "baseline/random", {"random_knn_top1": 39.8})
    _, markdown = render_both(values, tmp_path)
    lines = markdown.splitlines()
    assert "| knn | top-1 | 65.4 | 39.8 | not run |" in lines
    assert "| knn | top-1, projector's embedding | 66.2 | - | not run |" in lines
    assert "| linear | not run | | | |" in lines
    assert {line.count("|") for line in lines if line.startswith("|")} == {6}
