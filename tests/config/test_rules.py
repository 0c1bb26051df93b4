"""Parameters against the data: everything that a later stage would refuse is found before pretraining."""

import pytest

from cl import config
from cl.config.rules import check_data, data_problems, warnings
from cl.data.reader import Reader
from tests.support.project import compose
from tests.support.stages import Stage, answers

TOO_LARGE = {  # for 120 training and 60 validation images
    "optim.batch_size=121": "optim: batch_size=121 exceeds the 120 images",
    "optim.monitor.k=121 optim.monitor.bank=130": "optim.monitor: kNN with k=121 needs at least 121 labelled",
    "evaluations.knn.grid_k=[5,121]": "evaluations.knn: kNN with k=121 needs at least 121 labelled",
    "evaluations.knn.k=120 evaluations.knn.leave_one_out=true": "k=120 needs at least 120 labelled training "
    "images, found 119",
    "evaluations.linear.optim.batch_size=121": "evaluations.linear: batch_size=121 exceeds the 120 images",
    "evaluation=[linear,semi_1_fastmoco]": "evaluations.semi_1_fastmoco: data/imagenet_1percent.txt",
    "baselines.supervised.training.optim.batch_size=121": "supervised.training.optim: batch_size=121 exceeds",
    "analysis=[embedding] analyses.embedding.perplexity=20": "analyses.embedding: perplexity=20 needs more "
    "than 60 images, found 60",
    "analysis=[npc] analyses.npc.batch_sizes=[16,121]": "analyses.npc: batch_size=121 exceeds the 120 images",
    "analysis=[views] analyses.views.batch_size=121": "analyses.views: batch_size=121 exceeds the 120 images",
    "analysis=[mi_bound] analyses.mi_bound.images=101 analyses.mi_bound.batch_size=50": "analyses.mi_bound: "
    "images=101 exceeds the 100 images of an epoch of batches of 50; choose fewer",
    "analysis=[gradient_norm] analyses.gradient_norm.images=60 analyses.gradient_norm.batch_size=60 "
    "analyses.gradient_norm.negatives=[60,70]": "gradient_norm: negatives=[60, 70] exceed the 59 available",
}
FITTING = [
    "dataset.train_patches=6",
    "dataset.val_patches=3",
    "optim.batch_size=32",
    "optim.monitor.bank=60",
    "evaluations.linear.optim.batch_size=32",
    "baselines.supervised.training.optim.batch_size=32",
]


@pytest.fixture
def readers(shard_folder) -> list[Reader]:
    return [Reader(shard_folder, split) for split in ("train", "val")]


@pytest.mark.parametrize("overrides", TOO_LARGE)
def test_what_the_data_is_too_small_for_is_named(overrides, readers, tmp_path) -> None:
    given = overrides.split()
    chosen = [] if any(word.startswith("analysis=") for word in given) else ["analysis=[]"]
    params = config.check(compose(tmp_path, *FITTING, *chosen, *given))
    (problem,) = data_problems(params, *readers)
    assert TOO_LARGE[overrides] in problem


def test_data_that_suffices_is_not_refused(readers, tmp_path) -> None:
    params = config.check(
        compose(tmp_path, *FITTING, "analysis=[npc,neighbours]", "analyses.npc.batch_sizes=[120]")
    )
    check_data(params, *readers)


def test_pretraining_refuses_all_of_it_at_once_before_it_trains(project_with_shards) -> None:
    folder = project_with_shards
    compose(folder, *FITTING, "optim.monitor.k=121", "optim.monitor.bank=130", "evaluations.knn.k=200")
    weights, refused = answers(folder, [Stage(("weights",)), Stage(("pretrain",))])
    assert (weights.code, refused.code) == (0, 1)
    assert "Error: optim.monitor: kNN with k=121 needs at least 121 labelled" in refused.stderr
    assert "; evaluations.knn: kNN with k=200 needs at least 200 labelled" in refused.stderr
    assert "learning rate" not in refused.stderr
    assert not (folder / "results" / "pretrain").exists()


def test_views_of_another_size_than_evaluations_are_warned_of(tmp_path) -> None:
    assert not list(warnings(config.check(compose(tmp_path))))
    own = config.check(compose(tmp_path, "dataset=unlabelled", "dataset.name=birds"))
    assert list(warnings(own)) == [
        "pretraining sees views of 32 px, evaluations use images of 224 px: choose views=... of 224 px, or "
        "dataset.resize and dataset.crop of 32"
    ]
    assert not list(warnings(config.check(compose(tmp_path, "views=small_multicrop"))))


def test_a_warm_up_that_is_shortened_is_said(tmp_path) -> None:
    short = config.check(compose(tmp_path, "optim.epochs=1", "baselines.supervised.training.optim.epochs=1"))
    assert list(warnings(short)) == [
        f"{place}.warmup_epochs=2 is more than {place}.epochs=1: the warm-up takes half of them, 0.5"
        for place in ("optim", "baselines.supervised.training.optim")
    ]
