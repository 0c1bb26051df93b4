"""The page about all experiments, in HTML and in Markdown."""

import io
import re
from collections.abc import Callable
from functools import cache

import pytest
from rich.console import Console

from cl.report import summary
from cl.report.comparisons import comparisons, labels, measured_rows
from cl.report.experiments import Experiment
from cl.report.summary import table
from pipeline.report import title
from tests.support.experiments import TABLE3, composed, experiment, knn_200, measured


def page(experiments: list[Experiment], compose: Callable[[str], dict]) -> tuple[str, str]:
    return summary.page(experiments, compose, title)


def test_recipes_are_not_composed_for_experiments_on_other_data() -> None:
    def refuse(run: str) -> dict:
        raise AssertionError(run)

    found = [experiment("a", "seed=0", [measured("knn", "top1", 60.0)], recipe="own/adapt")]
    for text in page(found, refuse):
        assert "1 experiment\n" in text or "<h1>1 experiment</h1>" in text
        assert "the papers measured" not in text


def default_run(name: str, run: str, value: float, **changes: object) -> Experiment:
    """An experiment of the default evaluation kNN, with its log and its baseline."""
    knn = measured("knn", "top1", value, meaning="how many are right", images=1000)
    random = knn._replace(mean=39.8, baseline="random")
    made = experiment(name, run, [knn, random], **changes)
    made.epochs.extend({"epoch": str(epoch), "knn_top1": str(value + epoch)} for epoch in (1, 2))
    return made


@cache
def three() -> list[Experiment]:
    seeds = [default_run(name, "seed=0", 60.0 + 2 * seed, seed=seed) for seed, name in enumerate("ab")]
    return [*seeds, default_run("c", "loss=infonce", 50.0)]


def test_quoted_numbers_name_their_source_beside_ours() -> None:
    """In a table with a system per column, and in one with a system per row."""
    small, large = "recipe=quoted/npid_cifar10", "recipe=quoted/npid_imagenet"
    found = [
        experiment("small", small, 79.3),
        experiment("large", large, [measured("moco_lin", "top1", 53.1)]),
    ]
    html, markdown = page(found, composed_of(small, large))
    source = "CLD; the CIFAR numbers equal those in its repository"
    assert re.search(rf'<th>NPID <span[^>]* title="{source}">quoted</span></th>', html)
    assert "| 80.8 / **79.3**, n = 1 (-1.5) |" in markdown
    (row,) = re.findall(r"<tr><td>InstDisc, 200 epochs <.*?</tr>", html, re.DOTALL)
    assert "(Wu et al. 2018)" in row
    assert 'href="#exp-large"' in row
    assert "| InstDisc, 200 epochs (Wu et al. 2018) | 54.0 / **53.1**, n = 1 (-0.9) |" in markdown


def test_tables_without_a_number_of_ours_are_collapsed() -> None:
    html, _ = page([experiment("a", TABLE3, 80.0)], composed_of(TABLE3))
    opened = re.findall(r"<details open><summary><h([23])[^>]*>([^<]+?) *<", html)
    assert ("2", "Decoupled Contrastive Learning") in opened
    assert ("3", "Table 3") in opened
    html, _ = page(three(), composed_of())
    assert "<details open>" not in html
    assert html.count("<h2") == 2 + 1, "experiments and curves; all papers share one line"


def composed_of(*runs: str) -> Callable[[str], dict]:
    recipes = {run.split()[0] for run in runs}
    return lambda run: composed(run) if run.split()[0] in recipes else {}


def test_the_curves_share_one_chart_with_means_over_seeds() -> None:
    html, _ = page([*three(), default_run("again", "seed=0", 90.0)], composed_of())
    curves = html[html.index(">Curves</h2>") : html.index("no numbers of ours yet")]
    assert curves.count("<svg") == 1
    assert "<title>a and 2 more, epoch 2: 63 ± 1.41</title>" in curves, "each seed once"
    assert "<title>c, epoch 2: 52</title>" in curves


def test_baselines_have_rows_which_experiments_share() -> None:
    html, markdown = page(three(), composed_of())
    assert html.count('<td>random <span class="soft">baseline</span></td>') == 1
    assert "39.8 ± 0.0" in html
    assert "supervised <span" not in html, "it has no numbers"
    assert "| random baseline |" in markdown
    larger = default_run("d", "seed=0", 61.0, backbone__name="resnet50")
    html, _ = page([*three(), larger], composed_of())
    for encoder in ("resnet18", "resnet50"):
        assert re.search(rf"<td>random <.*?></td>(<td></td>)*<td>{encoder}</td>", html)


def test_own_images_are_told_apart_and_further_differences_named() -> None:
    values = {name: dict.fromkeys([*"uvwxyz", "name"], f"{name}/birds") for name in "ab"}
    found = [
        default_run(name, "seed=0", 60.0, dataset={"kind": "folder"} | each) for name, each in values.items()
    ]
    html, markdown = page(found, composed)
    assert "| a/birds |" in markdown.replace("*", "")
    for text in (html, markdown):
        (hidden,) = re.findall(r"also differ in (.*)\.", text)
        assert "dataset.z" in hidden and "dataset.name" not in hidden


def test_other_data_and_protocols_below_a_column_are_named() -> None:
    found = [default_run(run, run, 60.0) for run in ("seed=0", "evaluations.knn.k=1")]
    found.append(experiment("other", "evaluation=[linear]", [measured("linear", "top1", 50.0)]))
    for data, named in (("d", "evaluations.knn.k"), ("e", "the images, evaluations.knn.k")):
        found[0].provenance["prepare"]["data_manifest_sha256"] = data
        assert all(f"also differ in {named}." in text for text in page(found, composed_of()))


def test_numbers_of_experiments_have_intervals_and_explanations() -> None:
    html, markdown = page(three()[:1], composed_of())
    assert "[56.9, 63.0]" in html
    assert "60.0 [56.9, 63.0]" in markdown
    assert "<b>Nearest neighbours, top1</b>: how many are right, higher is better." in html
    html, _ = page([default_run("a", "seed=0", 60.0, evaluations__knn__kind="of_a_branch")], composed_of())
    assert "<b>knn_top1</b>: how many" in html


def test_a_difference_to_a_paper_is_coloured_where_its_number_is_outside_our_interval() -> None:
    for value, colour in ((84.5, "soft"), (70.0, "down"), (95.0, "up")):
        found = experiment("a", TABLE3, [knn_200(value, images=10_000)])
        html, _ = page([found], composed_of(TABLE3))
        assert f'<span class="gain {colour}">({value - 84.2:+.1f})</span>' in html
        assert "one seed" in html


def three_seeds(name: str, run: str, *values: float, **changes: object) -> list[Experiment]:
    return [
        default_run(f"{name}{seed}", run, value, seed=seed, **changes) for seed, value in enumerate(values)
    ]


def test_experiments_that_differ_only_in_the_seed_share_a_line_of_means() -> None:
    html, markdown = page([*three_seeds("a", "seed=0", 60.0, 62.0, 64.0), three()[2]], composed_of())
    (row,) = re.findall(r'<tr class="mean">.*?</tr>', html)
    assert "a0 and 2 more" in row
    assert "62.0 ± 2.0" in row
    assert "<td>0, 1, 2</td>" in row
    assert "| a0 and 2 more, mean |" in markdown
    assert 'Nearest neighbours, top1 62.0 ± 2.0 (<a href="#exp-a0">a0</a>, mean of 3 seeds).' in html, (
        "not 64.0"
    )


@pytest.mark.parametrize(
    ("better", "best", "colour"), [("higher", "dcl", "up"), ("lower", "infonce", "down")]
)
def test_the_best_mean_is_the_lowest_where_lower_is_better(better, best, colour) -> None:
    found = [
        experiment(f"{loss}{seed}", f"loss={loss}", [measured("knn", "top1", mean, better=better)], seed=seed)
        for loss, mean in (("dcl", 60.0), ("infonce", 50.0))
        for seed in range(2)
    ]
    html, _ = page(found, composed_of())
    assert re.search(rf'Best: [^(]*\(<a href="#exp-{best}0">', html)
    assert f'<span class="{colour}">+10.0</span>' in html


def test_no_experiment_is_the_best_of_trainings_of_different_lengths() -> None:
    found = [default_run("long", "seed=0", 60.0), default_run("short", "optim.epochs=2", 50.0)]
    html, _ = page(found, composed_of())
    assert "Best: " not in html
    assert "<td>15</td>" in html, "not 15.0"


def test_a_terminal_of_80_columns_shows_the_evaluations_that_most_experiments_share() -> None:
    found = [measured(name, "top1", 50.26) for name in ("linear", "semi_1", "semi_10")]
    found += [measured("retrieval", "hit1", 14.2), measured("voc_c4", "ap50", 60.0)]
    birds = experiment("b", "dataset=unlabelled dataset.name=/photographs/[birds]", found[-2:-1])
    file = io.StringIO()
    Console(file=file, width=80).print(table([birds, experiment("a" * 14, "seed=0", found), *three()]))
    header, *rows = file.getvalue().splitlines()
    columns = "experiment data method loss seed knn retrieval linear semi_1 semi_10"
    assert " ".join(header.split()) == columns
    assert rows[0].split() == ["b", "[birds]", "simclr", "dcl", "0", "-", "14.2", "-", "-", "-"]
    assert rows[1].split()[-5:] == ["-", "14.2", "50.3", "50.3", "50.3"]


def test_a_mean_over_fewer_seeds_than_its_line_has_says_so() -> None:
    found = three_seeds("a", "seed=0", 60.0, 62.0, 64.0)
    found[2].measurements.clear()
    html, markdown = page(found, composed_of())
    (row,) = re.findall(r'<tr class="mean">.*?</tr>', html)
    assert "61.0 ± 1.4" in row
    assert "n = 2" in row
    assert "n = 2" in next(line for line in markdown.splitlines() if "a0 and 2 more" in line)
    assert "n = " not in page(three_seeds("a", "seed=0", 60.0, 62.0), composed_of())[1]


def test_two_losses_are_compared_over_their_equal_seeds() -> None:
    """With the interval of paired differences 2, 3 and 4; seed 3 of one loss does not count."""
    dcl = three_seeds("a", "seed=0", 60.0, 65.0, 64.0, 10.0)
    infonce = three_seeds("b", "loss=infonce", 58.0, 62.0, 60.0)
    _, markdown = page([*infonce, *dcl], composed_of())
    expected = (
        "| Nearest neighbours, top1 | dcl | 63.0 ± 2.6 | infonce | 60.0 ± 2.0 | +3.0 [0.5, 5.5] | 3 | loss |"
    )
    assert expected in markdown.splitlines()


def test_only_losses_or_methods_are_compared_and_only_over_two_seeds() -> None:
    def pairs(*found: list[Experiment]) -> list[set[str]]:
        experiments = [experiment for group in found for experiment in group]
        return [set(pair["names"]) for pair in comparisons(experiments)]

    dcl, infonce = (three_seeds(loss, f"loss={loss}", 60.0, 61.0) for loss in ("dcl", "infonce"))
    moco, moco_infonce, byol = (
        three_seeds(run, f"method={run}", 50.0, 52.0) for run in ("moco_v2", "moco_v2 loss=infonce", "byol")
    )
    assert pairs(dcl, infonce[:1]) == [], "one seed"
    assert pairs(dcl, three_seeds("long", "loss=infonce optim.epochs=30", 60.0, 61.0)) == []
    assert pairs(dcl, moco) == [{"simclr", "moco"}], "with the temperature that the method sets"
    assert pairs(dcl, byol) == [{"dcl, simclr", "cosine, byol"}], "with the loss that the method sets"
    assert len(pairs(dcl, infonce, moco, moco_infonce)) == 4, "no pair across the grid"


def test_a_label_of_many_parameters_is_the_name_of_an_experiment() -> None:
    found = [
        experiment(f"{views}-{rate}", f"views={views}", [measured("knn", "top1", rate)], optim__base_lr=rate)
        for views, rate in (("small", 1.0), ("small_multicrop", 2.0))
    ]
    lines = [measured_rows("knn_top1", [each]) for each in found]
    assert labels(lines) == ["small-1.0", "small_multicrop-2.0"]
