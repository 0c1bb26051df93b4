"""The page about one experiment: its own numbers only, and "not run" for everything else."""

import base64
import csv
import json
import re
from pathlib import Path

import pytest

from cl.config import load
from cl.report import page as report
from cl.report.charts import Chart
from cl.runtime.metric_info import Measurement
from tests.support.experiments import measured
from tests.support.project import ROOT

HIGHER = {"title": "top-1", "meaning": "how many are right", "images": 1000}
PICTURES = ["row", "title", "file", "caption", "mark"]


PARAMS = load(ROOT / "params.yaml")


def render_both(values: dict, results: Path, command: str | None) -> tuple[str, str]:
    return report.render(values, results, command, PARAMS.titles)


def render(values: dict, results: Path, command: str | None = "dvc exp run") -> str:
    return render_both(values, results, command)[0]


PRETRAINED = {
    "commit": "0123456789abcdef",
    "uncommitted_changes": False,
    "effective_lr": 1.0,
    "hardware": {"gpus": [], "cpu": "c", "threads": 1},
    "images_per_second": 1,
    "versions": {"torch": "2"},
}


@pytest.fixture
def values() -> dict:
    return PARAMS.model_dump(mode="json")


def write(root: Path, name: str, *found: Measurement, about: str = "", **provenance: object) -> None:
    """A result as a stage leaves it."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    made = {"stage": name, "measurements": [each._asdict() for each in found]}
    entries = dict.fromkeys([name.partition("/")[2], *(each.entry for each in found)], about)
    (root / f"{name}.provenance.json").write_text(json.dumps({**made, "about": entries, **provenance}))


def write_table(path: Path, rows: list[list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def write_knn(root: Path, own: float, random: float) -> None:
    about = "What it is about."
    write(root, "evaluate/knn", measured("knn", "top1", own, **HIGHER), about=about)
    number = measured("knn", "top1", random, baseline="random", **HIGHER)
    write(root, "baseline/random", number, about=about)


def test_a_page_without_results_says_not_run(values, tmp_path) -> None:
    """It names the experiment, lists its augmentations and its sections, and loads nothing from elsewhere."""
    page = render(values, tmp_path)
    requested = [*values["evaluations"], *values["transfers"], *values["analyses"]]
    for name in requested:
        assert re.search(rf"{name}(</code>)? <span class=\"soft\">not run", page), name
    assert "None" not in page.split("all parameters")[0]
    assert 'class="card"' not in page
    assert "<h1>simclr with dcl on photos</h1>" in page
    assert re.search(r"<b>1 % of the labels</b> <code[^>]*>semi_1</code>", page)
    assert "2 random of 32 px" in page
    assert "20 to 100 % of the area" in page
    assert "p 0.8: brightness 0.4, contrast 0.4, saturation 0.4, hue 0.1" in page
    links = re.findall(r'<a href="#(part-\d+)">(.*?)</a>', page)
    assert links == re.findall(r'<h2 id="(part-\d+)">(.*?)</h2>', page)
    assert {"Evaluation", "Pretraining", "Details"} <= {title for _, title in links}
    assert not re.search(r'(?:src|href)="(?!data:|#)|@import|url\(', page)


def test_the_title_says_what_was_changed(values, tmp_path) -> None:
    values["dataset"]["name"] = "birds"
    values["overrides"] = ["seed=1", "method=moco_v2", "method.ema.momentum=0.99"]
    assert "<h1>moco_v2 (ema.momentum=0.99) with dcl on birds</h1>" in render(values, tmp_path)
    values["overrides"] = [f"method.a{n}=1" for n in range(5)]
    assert "simclr (a0=1, a1=1, a2=1 and 2 more) with" in render(values, tmp_path)


def test_the_page_gives_the_command_that_repeats_the_run(values, tmp_path) -> None:
    write(tmp_path, "pretrain", **PRETRAINED)
    page = render(values, tmp_path, "dvc exp run -S loss=dclw -S 'evaluation=[knn]'")
    assert "git checkout 0123456789ab\ndvc exp run -S loss=dclw -S &#39;evaluation=[knn]&#39;</pre>" in page
    assert "edited by hand" not in page
    edited = render(values, tmp_path, None)
    assert "edited by hand" in edited
    assert "parameters</a> of this run as params.yaml:" in edited


def test_private_images_stay_out_of_the_report(values, tmp_path) -> None:
    """Those of training, of the neighbours, of the worst classes and of detections; all else is shown."""
    names = (
        "pretrain/views.png",
        "transfer/voc_c4/detections.png",
        "analyze/neighbours/pictures/0-0.jpg",
        "evaluate/knn/worst/0-0.jpg",
    )
    write(tmp_path, "evaluate/knn", measured("knn", "top1", 50.0))
    same_class = measured("neighbours", "same_class", 51.25, stage="analyze")
    write(tmp_path, "analyze/neighbours", same_class)
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(f"private {number}".encode())
    for name in names[2:]:
        listed = [PICTURES, [0, "robin", "0-0.jpg", "wren", "wrong"]]
        write_table((tmp_path / name).parent / "pictures.csv", listed)
    write_table(tmp_path / "evaluate/knn/predictions.csv", [["image", "truth", "predicted"], ["k", "a", "b"]])
    pictures = [base64.b64encode(f"private {number}".encode()).decode() for number in range(len(names))]
    page = render(values, tmp_path)
    assert all(picture in page for picture in pictures)
    private = render({**values, "report": {"pictures": False}}, tmp_path)
    assert "<img" not in private
    assert not any(picture in private for picture in pictures)
    assert "51.25" in private
    assert "report.pictures=false" in private


def test_numbers_are_shown_with_intervals_beside_the_baselines(values, tmp_path) -> None:
    write_knn(tmp_path, 65.4, 39.8)
    page = render(values, tmp_path)
    assert '<td>65.4 <span class="soft gain">[62.4, 68.3]</span></td>' in page
    assert '39.8 <span class="soft gain">[36.8, 42.9]</span> <span class="gain up">(+25.6)</span>' in page
    assert '<td><span class="soft">not run</span></td>' in page, "the supervised baseline has no results"
    assert page.count('class="card"') == 1, "only what was measured has a card"


@pytest.mark.parametrize("seeds", [{}, {"sd": 0.5, "n": 3}])
def test_a_single_group_is_the_reason_for_a_missing_interval(seeds, values, tmp_path) -> None:
    """Its images are not independent, so nothing says how far the number could move."""
    one = {**HIGHER, **seeds, "images": 0.0}
    write(tmp_path, "evaluate/knn", measured("knn", "top1", 65.4, **one))
    write(tmp_path, "baseline/random", measured("knn", "top1", 39.8, baseline="random", **one))
    page, markdown = render_both(values, tmp_path, None)
    assert "one group of images: no interval" in page
    assert "one group of images: no interval" in markdown
    assert '<span class="gain soft">(+25.6)</span>' in page


def test_a_difference_is_coloured_only_where_the_intervals_do_not_overlap(values, tmp_path) -> None:
    for own, colour in ((65.4, "up"), (41.0, "soft"), (30.0, "down")):
        write_knn(tmp_path, own, 39.8)
        assert f'<span class="gain {colour}">({own - 39.8:+.1f})</span>' in render(values, tmp_path)
    write(tmp_path, "evaluate/knn", measured("knn", "top1", 65.4), reduced={"k": 8})
    page = render(values, tmp_path)
    assert '<span class="gain soft">(+25.6)</span>' in page, "without an interval"
    assert "(k 8, " in page, "fewer than asked for"


@pytest.mark.parametrize(
    ("group", "images", "colour", "shown"),
    [
        (lambda image: image, 100, "up", r"\(\+10.0 \[[3-6]\..*?\]\)"),
        (lambda image: "" if image % 2 else image + 1, 100, "up", r"\(\+10.0 \[[3-6]\..*?\]\)"),
        (lambda image: image // 20, 100, "soft", r"\(\+10.0 \[.*?\]\)"),
        (lambda image: image % 4, 100, "soft", r"\(\+10.0\)"),
        (lambda image: "", 99, "soft", r"\(\+10.0\)"),
    ],
    ids=["paired", "groups named like images", "in groups", "few groups", "other images"],
)
def test_encoders_are_compared_image_by_image_where_possible(
    group, images, colour, shown, values, tmp_path
) -> None:
    """60 against 50 of the same 100 images, whose separate intervals overlap."""
    write(tmp_path, "pretrain", **PRETRAINED)
    write(tmp_path, "evaluate/knn", measured("knn", "top1", 60.0, images=100))
    other = measured("knn", "top1", 50.0, baseline="random", images=100)
    write(tmp_path, "baseline/random", other, other._replace(representation="pixels"))
    for result, right, of in (("evaluate/knn", 60, 100), ("baseline/random/knn", 50, images)):
        rows = [[i, "a", x := "ab"[i >= right], x, group(i)] for i in range(of)]
        header = ["image", "truth", "predicted", "pixels", "group"]
        write_table(tmp_path / result / "predictions.csv", [header, *rows])
    page = render(values, tmp_path)
    assert len(re.findall(f'<span class="gain {colour}">{shown}</span>', page)) == 2
    assert ("not clearly different from the untrained encoder and raw pixels" in page) == (colour == "soft")
    assert ("A ready one works at once" in page) == (colour == "soft")
    assert "chance 100.0" in page


def test_every_number_says_what_it_means_and_which_direction_is_good(values, tmp_path) -> None:
    write_knn(tmp_path, 65.4, 39.8)
    words = {"title": "ratio", "meaning": "smallest by largest", "better": "lower"}
    ratio = measured("gradient_norm", "margin_ratio", 2.5, stage="analyze", **words)
    write(tmp_path, "analyze/gradient_norm", ratio, about="What an analysis is about.")
    page = render(values, tmp_path)
    assert "What it is about." in page
    assert "how many are right; higher is better" in page
    assert "What an analysis is about." in page
    assert "smallest by largest; lower is better" in page


def test_several_seeds_are_shown_as_mean_and_deviation_and_one_as_one(values, tmp_path) -> None:
    top1 = measured("linear", "top1", 60.04, sd=0.52, n=3, **HIGHER)
    base_lr = measured("linear", "base_lr", 0.5, n=3, title="base learning rate", better=None)
    write(tmp_path, "evaluate/linear", top1, base_lr)
    write(tmp_path, "baseline/random", top1._replace(mean=50.0, sd=1.5, baseline="random"))
    page = render(values, tmp_path)
    assert '<td>60.0 ± 0.5 <span class="soft gain">[56.7, 63.3]</span></td>' in page
    assert "50.0 ± 1.5" in page
    assert "base learning rate 0.5, mean ± standard deviation over 3 seeds" in page
    assert "one seed" not in page.replace("Pretrained with one seed", "")
    assert "sd</td>" not in page
    for seed, name in ((0, "robin"), (1, "wren")):
        rows = [["class", "images", "top1"], [name, 5, 60.0]]
        write_table(tmp_path / f"evaluate/linear/seed-{seed}/classes.csv", rows)
    page = render(values, tmp_path)
    assert "robin" in page
    assert "wren" not in page
    write_knn(tmp_path, 65.4, 39.8)
    assert "k 20, temperature 0.07, one seed" in render(values, tmp_path)


def test_confused_classes_are_shown_with_pictures(values, tmp_path) -> None:
    write(tmp_path, "evaluate/knn", measured("knn", "top1", 50.0))
    rows = [["image", "truth", "predicted"], ["a", "robin", "wren"], ["b", "wren", "wren"]]
    write_table(tmp_path / "evaluate/knn/predictions.csv", rows)
    listed = [PICTURES, [0, "robin: 100 % wrong", "0-0.jpg", "wren", ""]]
    write_table(tmp_path / "evaluate/knn/worst/pictures.csv", listed)
    (tmp_path / "evaluate/knn/worst/0-0.jpg").write_bytes(b"picture")
    page = render(values, tmp_path)
    assert 'title="robin, taken for wren: 1">1</td>' in page
    assert "robin: 100 % wrong, taken for:" in page
    assert "<figcaption>wren</figcaption>" in page
    assert f"data:image/jpeg;base64,{base64.b64encode(b'picture').decode()}" in page


def test_the_encoder_is_named_and_batch_norm_only_where_there_is_any(values, tmp_path) -> None:
    del values["backbone"]["stem"]  # as of a transformer
    assert ">resnet18<" in render(values, tmp_path)
    write(
        tmp_path,
        "pretrain",
        **PRETRAINED,
        backbone="transformer of 12 blocks",
        precision="bf16",
        compiled=True,
    )
    page = render(values, tmp_path).split("all parameters")[0]
    assert ">transformer of 12 blocks<" in page
    assert ", bf16, compiled, batch norm over" in page
    write(tmp_path, "pretrain", **PRETRAINED, batch_norm=False)
    assert "batch norm" not in render(values, tmp_path).split("all parameters")[0]


def test_neighbours_are_named_with_a_legend_where_there_are_classes(values, tmp_path) -> None:
    write(tmp_path, "analyze/neighbours", about="Neighbours.")
    folder = tmp_path / "analyze/neighbours/pictures"
    for marks in (["", "right", "wrong"], ["", "", ""]):
        rows = [[0, "robin", f"0-{x}.jpg", f"bird {x}", mark] for x, mark in enumerate(marks)]
        write_table(folder / "pictures.csv", [PICTURES, *rows])
        page = render(values, tmp_path)
        assert "<figcaption>bird 2</figcaption>" in page
        assert ("the same class" in page) == (marks[1] == "right")
    write_table(folder / "pictures.csv", [PICTURES, *([y, "", f"{y}-0.jpg", "", ""] for y in range(2))])
    assert render(values, tmp_path).count('<div class="row">') == 2, "without classes, one for each image"


def test_files_of_another_experiment_are_not_shown(values, tmp_path) -> None:
    write(tmp_path, "evaluate/stale", measured("stale", "top1", 98.7))
    assert "98.7" not in render(values, tmp_path)


def test_curves_are_drawn_of_all_that_was_logged(values, tmp_path) -> None:
    rows = [["epoch", "loss", "lr", "gradient_norm"], [1, 4.5, 0.1, 2], [2, 3.5, 0.05, 1]]
    write_table(tmp_path / "pretrain/epochs.csv", rows)
    page = render(values, tmp_path)
    assert page.count("<svg") == 3
    for title in ("loss", "learning rate", "gradient"):
        assert re.search(rf"<title>{title}, epoch 2: ", page), title


@pytest.mark.parametrize(
    ("labelled", "words"), [([240, 60], "240 and 60 of them labelled"), ([2000, 900], "all labelled")]
)
def test_the_data_row_says_how_many_images_have_labels(labelled, words, values, tmp_path) -> None:
    write(tmp_path, "pretrain", **PRETRAINED, labelled=labelled)
    counts = {"train_images": 2000, "val_images": 900, "train_skipped": 0, "val_skipped": 0, "classes": 20}
    (tmp_path / "prepare.json").write_text(json.dumps(counts))
    page = render(values, tmp_path)
    assert f"2000 training and 900 validation images of 20 classes, {words}</td>" in page


def test_one_epoch_gives_a_sentence_and_no_chart(values, tmp_path) -> None:
    write_table(tmp_path / "pretrain/epochs.csv", [["epoch", "loss", "lr"], [1, 4.5, 0.1]])
    page = render(values, tmp_path)
    assert "<svg" not in page
    assert "Curves need at least two epochs; this run has one, with a mean loss of 4.500." in page


def test_the_page_is_reproducible_and_escapes_text(values, tmp_path) -> None:
    write_table(tmp_path / "pretrain/epochs.csv", [["epoch", "loss", "knn_top1"], [1, 4.5, 30], [2, 3.5, 40]])
    values["recipe"] = "<b>bold"
    page, markdown = render_both(values, tmp_path, "dvc exp run")
    assert page == render(values, tmp_path)
    assert "<b>bold" not in page + markdown
    assert page.count("<svg") == 2
    assert "<title>loss, epoch 2: 3.5</title>" in page


def box(page: str) -> str:
    """The text of the first box."""
    return re.sub("<.*?>", "", page.split('<div class="card answer">')[1].split("</div>")[0])


def test_the_first_box_compares_with_the_baselines_that_were_run(values, tmp_path) -> None:
    assert "not been evaluated" in box(render(values, tmp_path))
    write(tmp_path, "evaluate/knn", measured("knn", "top1", 65.4))
    elsewhere = values["baselines"]["random"] | {"evaluations": ["linear"]}
    for baselines in (values["baselines"], {"random": elsewhere}, {}):
        assert "No baseline of this" in box(render({**values, "baselines": baselines}, tmp_path))
    write_knn(tmp_path, 65.4, 39.8)
    found = box(render(values, tmp_path))
    assert "better than the untrained encoder." in found
    assert "Nearest neighbours, top-1: 65.4 % of 1000 images (95 % interval 62.4 to 68.3)" in found
    assert "untrained encoder 39.8 (+25.6)" in found
    write_knn(tmp_path, 65.4, 64.0)
    assert "not clearly different from the untrained encoder." in box(render(values, tmp_path))
    pixels = measured("knn", "top1", 75.0, baseline="random", representation="pixels", **HIGHER)
    write(tmp_path, "baseline/random", pixels)
    found = box(render(values, tmp_path))
    assert "worse than raw pixels." in found
    assert "raw pixels 75.0 (-9.6)" in found
    write(tmp_path, "evaluate/knn", measured("knn", "top1", 65.4))
    assert "may be chance" in box(render(values, tmp_path)), "without an interval, nothing is better"


def test_the_first_box_says_whether_training_has_finished_and_how_to_use_the_encoder(
    values, tmp_path
) -> None:
    """At most five lines; a collapse is the first."""
    write_knn(tmp_path, 65.4, 39.8)
    for state, place in (("still improving", 2), ("collapsed", 0)):
        write(tmp_path, "pretrain", **PRETRAINED, state=state, verdict="epoch 15: <train> longer")
        lines = box(render(values, tmp_path)).strip().splitlines()
        assert lines[place] == "Epoch 15: &lt;train&gt; longer."
        assert len(lines) == 5
        assert "models/backbone.safetensors" in lines[3]
        assert "cl.load(" in lines[3]
        assert "cl embed IMAGES --to" in lines[4]


def test_the_first_box_says_if_a_download_is_as_good(values, tmp_path) -> None:
    values["baselines"] = {
        "published": {"training": None, "weights": "n", "evaluations": "all", "transfers": []}
    }
    titles = PARAMS.titles | {"published": "published encoder (n)"}
    write_knn(tmp_path, 61.2, 39.8)
    for other, is_named in ((74.1, True), (61.5, True), (40.0, False)):
        number = measured("knn", "top1", other, baseline="published", **HIGHER)
        write(tmp_path, "baseline/published", number)
        first, *_ = box(report.render(values, tmp_path, None, titles)[0]).strip().splitlines()
        assert (f"61.2 %, n as published {other} %" in first) == is_named
    write(tmp_path, "pretrain", **PRETRAINED, adaptation={"rows": [], "sentence": "the start is kept"})
    number = measured("knn", "top1", 61.2, baseline="published", **HIGHER)
    write(tmp_path, "baseline/published", number)
    page, _ = report.render(values, tmp_path, None, titles)
    assert "as published" not in box(page), "it is the start, and this was the advice"
    assert "same network" not in page
    write(tmp_path, "baseline/published", missing="n cannot be downloaded")
    page, _ = report.render(values, tmp_path, None, titles)
    assert "No published encoder could be compared: n cannot" in box(page)


def test_an_adapted_encoder_is_compared_with_its_start_first(values, tmp_path) -> None:
    write_knn(tmp_path, 65.4, 39.8)
    rows = [
        {"measure": "kNN", "a": 70.0, "b": 75.0, "difference": 5.0, "low": 1.0, "high": 9.0},
        {"measure": "mean", "a": 60.0, "b": 61.0, "difference": 1.0, "low": -1.0, "high": 3.0},
    ]
    found = {
        "rows": rows,
        "images": 300,
        "groups": 300,
        "is_better": False,
        "sentence": "cannot tell; the start is handed over",
        "classes": [rows[1] | {"measure": "rare", "images": 7}],
    }
    found["arms"], views = [50.0, 60.0], {"small": {**values["views"]["random"], "size": 24}}
    arm = {"optim": values["optim"] | {"kind": "adamw"}, "views": views}
    write(tmp_path, "pretrain", **PRETRAINED, state="finished", verdict="done", adaptation=found, arm=arm)
    page = render(values, tmp_path)
    assert box(page).strip().splitlines()[0] == "Cannot tell; the start is handed over."
    table = re.sub("<.*?>", " ", page.split("Start and adapted encoder</h2>")[1].split("</table>")[0])
    assert re.search("arm 2 of 2: .* adamw, learning rate 1,", page) and "2 small of 24 px" in page
    assert "features are those of the start" in page.split("Analyses</h2>")[1]
    assert re.search(r"rare, 7 images +60.0 +61.0", table)
    assert re.search(r"300 held-out images.* kNN +70.0 +75.0 +\(\+5.0\) +\[1.0, 9.0\]", table, re.DOTALL)


@pytest.mark.parametrize(
    ("metric", "student", "judged"),
    [("top1", 90, "is"), ("top1", 87, "may or may not be"), ("top1", 70, "is not"), ("hit1", 90, "")],
)
def test_a_student_is_compared_with_its_teacher_first(values, tmp_path, metric, student, judged) -> None:
    """Unless without labels: parts of images that are found do not tell."""
    values["baselines"] = {"teacher": {"training": "teacher", "evaluations": "all", "transfers": []}}
    for result, right in (("evaluate/knn", student), ("baseline/teacher", 90)):
        own = {} if result == "evaluate/knn" else {"baseline": "teacher"}
        found = HIGHER | {"images": 100.0} | own
        write(tmp_path, result, measured("knn", metric, float(right), **found))
        file = "predictions.csv" if metric == "top1" else "images.csv"
        rows = ([n, "a", "ab"[n >= right], "1" if n < right else ""] for n in range(100))
        table = tmp_path / result / ("" if not own else "knn") / file
        write_table(table, [["image", "truth", "predicted", "place"], *rows])
    costs = {"parameters": 7e5, "macs": 4e7, "milliseconds": 2.0}
    found = {"student": costs, "teacher": {key: 4 * value for key, value in costs.items()}}
    write(tmp_path, "pretrain", **PRETRAINED, distillation=found)
    page, _ = report.render(values, tmp_path, None, PARAMS.titles | {"teacher": "teacher encoder"})
    first, second, *_ = [*[""] * (not judged), *box(page).strip().splitlines()]
    expected = f"The student {judged} within 3 points of its teacher ({student - 90:+.1f} ["
    assert first.startswith(expected if judged else "")
    assert "0.7 million parameters (teacher 2.8)" in second
    assert "2 ms per image (teacher 8)" in second


def test_analyses_without_pictures_or_maps_are_folded(values, tmp_path) -> None:
    for name in ("npc", "neighbours", "embedding"):
        write(tmp_path, f"analyze/{name}", about=f"About {name}.")
    pictures = tmp_path / "analyze/neighbours/pictures/pictures.csv"
    write_table(pictures, [PICTURES, [0, "", "0-0.jpg", "", ""]])
    for name, kind in (("npc", "lines"), ("embedding", "points")):
        chart = Chart("drawn", f"Chart of {name}", "x", "y", kind)
        chart.add("", 1, 1)
        (tmp_path / f"analyze/{name}").mkdir()
        chart.save(tmp_path / f"analyze/{name}")
    page = render(values, tmp_path)
    assert page.count("<svg") == 2
    assert re.search("<details open><summary>[^\n]*About embedding", page)
    assert re.search("<details><summary>[^\n]*About npc", page)
    assert re.search("<details open><summary>[^\n]*About neighbours", page)


def test_the_tables_are_also_written_as_markdown(values, tmp_path) -> None:
    write_knn(tmp_path, 65.44, 39.8)
    _, markdown = render_both(values, tmp_path, None)
    lines = markdown.splitlines()
    assert "| Nearest neighbours (knn) | top-1 | 65.4 [62.4, 68.3] | 39.8 [36.8, 42.9] | not run |" in lines
    assert "| Linear classifier (linear) | not run | | | |" in lines
    for number, line in enumerate(lines):
        if line.startswith("|---"):
            assert lines[number - 1].count("|") == line.count("|") == lines[number + 1].count("|")


def test_copies_in_the_other_split_are_said(values, tmp_path) -> None:
    write(tmp_path, "pretrain", **PRETRAINED)
    for classes in (0, 20):
        counts = {"train_images": 2000, "val_images": 900, "train_skipped": 0, "val_skipped": 0}
        counts |= {"classes": classes, "copies_in_other_split": 16}
        (tmp_path / "prepare.json").write_text(json.dumps(counts))
        said = "Copies across training and validation can make results too good (16; "
        assert (said in render(values, tmp_path)) == bool(classes), (
            "without labels, copies make nothing easier"
        )
