"""Parameters against the data: everything that a later stage would refuse is found before pretraining."""

import re
import shlex

import numpy as np
import pytest

from cl import config
from cl.commands.jobs import trial
from cl.config.rules import check_data, data_problems, warnings
from cl.config.rules.data import without_negatives
from cl.data.reader import Reader
from pipeline.pretrain import introduction
from tests.support.project import compose
from tests.support.stages import Stage, answers

TOO_LARGE = {  # for 120 training and 60 validation images
    "optim.batch_size=121": "optim: batch_size=121 .*120",
    "optim.monitor.k=70": "optim.monitor: k=70 needs at least 70 labelled .*found 60",
    "optim.monitor.k=121 optim.monitor.bank=130": "optim.monitor: .*k=121 needs at least 121 labelled",
    "evaluations.knn.grid_k=[5,121]": "evaluations.knn: .*k=121 needs at least 121 labelled",
    "evaluations.knn.k=122": "evaluations.knn: .*k=122 needs at least 122 labelled",
    "evaluations.linear.optim.batch_size=121": "evaluations.linear: batch_size=121 .*120",
    "evaluation=[linear,semi_1_fastmoco]": "evaluations.semi_1_fastmoco: data/imagenet_1percent.txt",
    "baselines.supervised.training.optim.batch_size=121": "supervised.training.optim: batch_size=121 .*120",
    "analysis=[npc] analyses.npc.batch_sizes=[16,121]": "analyses.npc: batch_size=121 .*120",
    "analysis=[views] analyses.views.batch_size=121": "analyses.views: batch_size=121 .*120",
    "analysis=[gradient_norm] analyses.gradient_norm.images=101 analyses.gradient_norm.batch_size=50": (
        "images=101 .*100"
    ),
    "analysis=[gradient_norm] analyses.gradient_norm.images=60 analyses.gradient_norm.batch_size=60 "
    "analyses.gradient_norm.negatives=[60,70]": r"gradient_norm: negatives=\[60, 70\] .*59",
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
    assert re.search(TOO_LARGE[overrides], problem)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("method=byol", "positive=bird is not defined for method.kind=byol; choose .*moco or simclr or simo"),
        ("method=nnclr", "not defined for method.kind=nnclr"),
        ("loss=sigmoid", "not defined for loss.kind=sigmoid; choose loss=dcl or dclw or infonce or jcl"),
    ],
)
def test_what_columns_are_not_defined_for_is_refused(choice, message, tmp_path) -> None:
    table = "dataset=table", "dataset.positive=bird", "dataset.resize=32", "dataset.crop=32"
    with pytest.raises(ValueError, match=message):
        config.check(compose(tmp_path, *table, choice))
    for fitting in ("loss=jcl", "loss=infonce", "method=moco_v2"):
        config.check(compose(tmp_path, *table, fitting))


N = np.arange(120)
SITES = np.where(N < 10, -1 - N, N % 7)  # as `Reader.values` has images without one


@pytest.mark.parametrize(
    ("groups", "within"),
    [(0 * N, None), (N % 7, SITES), (N % 7, N // 60), (np.where(N < 40, -1, 3), N // 40), (None, SITES)],
)
def test_data_that_leaves_no_image_a_negative_is_refused(groups, within, readers, tmp_path) -> None:
    """Where only most images have none, that is said; methods without negatives are not concerned."""
    train = readers[0]
    train.groups, train.values = groups, {} if within is None else {"within": within}
    of, values = -1 + 0 * N if groups is None else groups, 0 * N if within is None else within
    apart = (of[:, None] != of) | ((of < 0) & (N[:, None] != N))
    alone = int((~(apart & (values[:, None] == values)).any(1)).sum())
    for method, expected in (("simclr", alone), ("npid_cld", alone), ("byol", 0), ("swav", 0)):
        params = config.check(compose(tmp_path, *FITTING, "analysis=[]", f"method={method}"))
        assert without_negatives(params, train) == expected
        problems = "; ".join(data_problems(params, *readers))
        refused = expected == 120 and method != "npid_cld"  # whose clusters have negatives
        assert ("dataset: groups leave all training images" in problems) == refused
        assert ("have no negatives" in " ".join(introduction(params, *readers))) == (expected > 60)


class OneLabelled(Reader):
    labelled = np.arange(1)


def test_one_validation_image_shows_no_collapse(readers, shard_folder, tmp_path) -> None:
    params = config.check(compose(tmp_path, *FITTING, "analysis=[]", "evaluation=[linear]"))
    (problem,) = data_problems(params, readers[0], OneLabelled(shard_folder, "val"))
    assert problem.startswith("optim.monitor: collapse is measured on at least 2 labelled validation images")


OWN = ["dataset=partly_labelled", "dataset.name=own", "baseline=[random,supervised]", "transfer=[]"]


def test_a_few_images_of_your_own_reduce_what_they_are_too_few_for(readers, tmp_path) -> None:
    """And a published data set is refused, as above."""
    given = [override for override in " ".join(TOO_LARGE).split() if "analysis=" not in override]
    given = [override for override in given if "evaluation=" not in override]
    analyses = "analysis=[embedding,npc,views,gradient_norm]"
    params = config.check(compose(tmp_path, *OWN, analyses, *given, "evaluation=[knn,linear,retrieval]"))
    assert list(data_problems(params, *readers))
    fewer, changes = config.for_few_images(params, *readers)
    assert not list(data_problems(fewer, *readers))
    assert changes["optim.batch_size"] == "121 to 64", "a power of two"
    assert changes["evaluations.knn.k"] == "122 to 120"
    assert fewer.evaluations["knn"].k == 120
    assert config.for_few_images(fewer, *readers) == (fewer, {})


def test_few_images_of_your_own_are_trained_on_for_enough_steps(readers, tmp_path) -> None:
    steps = ["optim.batch_size=60", "optim.epochs=15", "optim.least_steps=51", "evaluation=[]", "analysis=[]"]
    _, changes = config.for_few_images(config.check(compose(tmp_path, *OWN, *steps)), *readers)
    assert changes["optim.epochs"] == "15 to 26", "of two steps each"
    _, changes = config.for_few_images(
        config.check(compose(tmp_path, *OWN, *steps, "optim.least_steps=30")), *readers
    )
    assert "optim.epochs" not in changes


def test_batch_norm_groups_are_reduced_with_the_batch(readers, tmp_path) -> None:
    chosen = ["method=moco_v1", "optim.batch_size=512", "bn_group=128", "analysis=[]", "evaluation=[knn]"]
    params = config.check(compose(tmp_path, *OWN, *chosen))
    fewer, changes = config.for_few_images(params, *readers)
    assert (fewer.optim.batch_size, fewer.bn_group) == (64, 32)
    assert changes["bn_group"] == "128 to 32"


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
    assert re.search("optim.monitor: .*k=121 .*; evaluations.knn: .*k=200", refused.stderr)
    assert "learning rate" not in refused.stderr
    assert not (folder / "results" / "pretrain").exists()


def test_views_of_another_size_than_evaluations_are_warned_of(tmp_path) -> None:
    assert not list(warnings(config.check(compose(tmp_path))))
    own = config.check(compose(tmp_path, "dataset=unlabelled", "dataset.name=birds"))
    (warning,) = warnings(own)
    assert re.search(
        "views of 32 px, .*images of 224 px: choose views=.* 224 px, .*dataset.crop of 32", warning
    )
    assert not list(warnings(config.check(compose(tmp_path, "views=small_multicrop"))))


def test_a_rate_that_makes_a_given_encoder_worse_is_warned_of(tmp_path) -> None:
    given = ["init=torchvision:resnet18", "recipe=own/small", "dataset.name=birds"]
    (warning,) = warnings(config.check(compose(tmp_path, *given)))
    assert re.search(
        "init=torchvision:resnet18 with a learning rate of 0.12: .*choose recipe=own/adapt", warning
    )
    for gentle in ("recipe=own/adapt", "optim.backbone_lr_scale=0.1"):
        assert not list(warnings(config.check(compose(tmp_path, *given, gentle))))


def test_a_transformer_is_trained_further_with_adamw(tmp_path) -> None:
    given = ["recipe=own/adapt", "dataset.name=birds", "init=torchvision:resnet18"]
    transformer = config.check(compose(tmp_path, "backbone=vit_tiny_patch4")).backbone

    def warned(*overrides: str) -> list[str]:
        params = config.check(compose(tmp_path, *given, *overrides))
        return list(warnings(params.model_copy(update={"backbone": transformer})))

    (warning,) = warned()
    assert warning.startswith("init=torchvision:resnet18 has no batch norm")
    advised = shlex.split(warning.partition("choose ")[2])[1::2]
    assert advised == trial.OF_ADAMW and not warned(*advised)


def test_a_warm_up_that_is_shortened_is_said(tmp_path) -> None:
    (warning,) = warnings(config.check(compose(tmp_path, "optim.epochs=1")))
    assert re.search("^optim.warmup_epochs=2 .*optim.epochs=1: .*0.5", warning)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("views=mocov2", "views.random.jitter.p needs RGB, but dataset.channels=all reads bands; choose rec"),
        (
            "evaluations.retrieval.views.random.grayscale=0.5",
            "evaluations.retrieval.views.random.grayscale needs RGB",
        ),
        ("views.random.solarize=0.1", "views.random.solarize needs RGB"),
        ("optim.cropping=device", "optim.cropping=device needs RGB, .* choose optim.cropping=workers"),
        ("backbone=resnet18_lab method=cmc", "backbone.streams needs RGB"),
        ("transfer=[voc_c4]", "transfers.voc_c4 needs RGB, .* choose transfer="),
        ("baseline=[published]", "baselines.published.weights=torchvision:resnet50 needs RGB"),
        ("dataset.channels=null", "views.random.bands changes bands, but dataset.channels=null reads"),
        ("dataset.show=[1,2]", "dataset.show: .1, 2. must be three bands"),
        (
            "dataset.channels=null dataset.show=[1] views=small "
            "evaluations.retrieval.views.random.bands=null",
            "dataset.show=.1. has no effect with dataset.channels=null; remove it",
        ),
    ],
)
def test_what_cannot_work_with_bands_is_refused(overrides, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        config.check(compose(tmp_path, "recipe=own/bands", *overrides.split()))
