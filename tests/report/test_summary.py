"""The page about all experiments, in HTML and in Markdown."""

from cl.report import paper_tables
from cl.report.summary import page
from tests.support.experiments import KNN, TABLE3, composed, curve, experiment


def test_a_page_of_two_hundred_experiments_shows_every_table_and_experiment_once(tmp_path) -> None:
    """With "not run" in empty cells and names escaped, in HTML and in Markdown."""
    found = [experiment(f"e{n}", TABLE3, {KNN: 80 + n / 100}, seed=n) for n in range(99)]
    found += [
        curve(f"c{n}", "recipe=dcl/fig4_cifar10", n, seed=n % 10, temperature=0.1 + n // 10 / 100)
        for n in range(100)
    ]

    def compose(run: str) -> dict:
        known = ("recipe=dcl/table3_cifar10", "recipe=dcl/fig4_cifar10")
        return composed(run) if run.split()[0] in known else {}

    html, markdown = page([*found, experiment("<b>", TABLE3, {KNN: 5})], compose)
    assert html.count('id="exp-') == 200
    assert "<b></td>" not in html
    assert "80.5 ± 0.3" in html
    assert "80.5 ± 0.3" in markdown
    for paper in paper_tables.NAMES:
        for table in paper_tables.load(paper).tables:
            assert f"<h3>{table.name}</h3>" in html
            assert f"## {table.name}\n" in markdown
    assert "not run" in html
    sweep = "-S recipe=dcl/table1_imagenet100 -S optim.batch_size=32,64,128,256,512 -S loss=infonce"
    assert f"dvc exp run --queue {sweep}" in html
    assert len(html) < 1_500_000
    lines = markdown.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("|---"):
            assert lines[number - 1].count("|") == line.count("|") == lines[number + 1].count("|"), lines[
                number - 1
            ]


def test_recipes_are_not_composed_for_experiments_on_other_data() -> None:
    def refuse(run: str) -> dict:
        raise AssertionError(run)

    html, _ = page([experiment("a", "seed=0", {"knn_top1": 60.0})], refuse)
    assert "for 0 of the" in html
