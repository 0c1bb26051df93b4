"""The papers' figures, drawn from our experiments."""

from cl.report.summary import page
from pipeline.report import title
from tests.support.experiments import composed, curve


def test_a_papers_figure_overlays_the_charts_of_matching_experiments() -> None:
    """DCL, Fig. 4: both losses in one chart, seeds averaged, without experiments that differ otherwise."""
    runs = [f"recipe=dcl/fig4_cifar10 loss={loss}" for loss in ("infonce", "dcl")]
    found = [curve("a", runs[0], 50), curve("b", runs[1], 60), curve("c", runs[1], 64, seed=1)]
    found += [curve("short", runs[1], 10, optim__epochs=1), curve("other", runs[1], 11, optim__monitor__k=1)]
    found += [curve("part", runs[1], 12)]
    found[-1].metrics["train_images"] = 100
    html, _ = page(found, lambda run: composed(run) if "fig4_cifar10" in run else {}, title)
    assert "infonce, backbone, epoch 1: 50<" in html
    assert "dcl, backbone, epoch 1: 62 ± 2.83<" in html
    assert html.count("backbone, epoch 1:") == 2
