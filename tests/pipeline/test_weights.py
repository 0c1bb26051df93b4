"""What pretraining starts from: a given backbone, or an experiment that it continues."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from cl import config
from cl.config import Params
from cl.data.reader import Reader
from cl.encoders import published
from cl.networks import backbones
from cl.runtime.distributed import max_over_ranks
from cl.runtime.tensor_files import load_tensors, save_tensors
from cl.training import optim, start
from pipeline import baseline, evaluate, pretrain
from pipeline.composition import compose as composition
from pipeline.composition.compose import command_for, write
from pipeline.support import pretraining
from tests.support.files import read_csv
from tests.support.processes import run_ranks, until
from tests.support.project import compose
from tests.support.resnets import TRANSFORM, save_encoder
from tests.support.stages import Answer, Stage, answers
from tests.support.stages import start as start_stage
from tests.support.training import assert_same_bits, models

SETTINGS = ["method=moco_v2", "bn_group=16", "optim.batch_size=32", "views.random.size=16"]
SETTINGS += ["dataset.resize=16", "dataset.crop=16"]
SETTINGS += ["optim.schedule=constant", "optim.warmup_epochs=0"]
SETTINGS += ["optim.monitor.k=5", "optim.monitor.bank=40", "optim.monitor.queries=20"]
SETTINGS += ["evaluation=[]", "transfer=[]", "analysis=[]", "baseline=[]"]
HASHES = ["md5:a1", "md5:b2"]  # of the parent's method and optimizer
SMALLER = ("backbone=timm", "backbone.name=test_resnet")  # whose files are a thirtieth of ResNet-18's


@pytest.fixture(scope="module")
def prepared(project_with_shards) -> Path:
    return project_with_shards


def run(
    folder: Path,
    *overrides: str,
    stages: tuple[str, ...] = ("weights", "pretrain"),
    start_from: str | None = None,
) -> str:
    """The stages with these parameters; what the last one said if it failed."""
    write(folder / "params.yaml", [*SETTINGS, *overrides])
    if start_from:
        named = f"start_from: {{name: {start_from}, method: {HASHES[0]}, optimizer: {HASHES[1]}}}"
        params = (folder / "params.yaml").read_text().replace("start_from: null", named)
        (folder / "params.yaml").write_text(params)
    *_, last = answers(folder, [Stage((stage,), {"CL_SCRATCH": str(folder / "scratch")}) for stage in stages])
    return last.stderr if last.code else ""


def epochs(folder: Path) -> list[dict[str, str]]:
    return read_csv(folder / "results" / "pretrain" / "epochs.csv")


def saved(parent: Path, folder: Path) -> None:
    """Save what the parent has learnt as the start of the next run."""
    files = [parent / f"{name}.safetensors" for name in ("method", "optimizer")]
    start.save(start.from_run(*files, HASHES), folder / "models" / "start.safetensors")


def test_a_run_that_continues_another_equals_one_long_run_bit_for_bit(prepared, tmp_path) -> None:
    """Weights, target, queue, batch-norm statistics and momenta; order, augmentation and shuffling.

    The method that the long run keeps after its first epoch is that of the short one.
    """
    assert run(prepared, *SMALLER, "optim.epochs=2", "optim.keep_every=1") == ""
    expected, rows = models(prepared), epochs(prepared)
    (kept,) = (prepared / "results" / "pretrain" / "methods").iterdir()
    after_one, _ = load_tensors(kept)
    assert run(prepared, *SMALLER, "optim.epochs=1") == ""
    assert not kept.exists()
    torch.testing.assert_close(after_one, models(prepared)["method"], rtol=0, atol=0)
    assert kept.name == "1.safetensors"
    shutil.copytree(prepared / "models", tmp_path / "parent")
    saved(tmp_path / "parent", prepared)
    assert "run `dvc repro weights`" in run(prepared, *SMALLER, "optim.epochs=1", stages=("pretrain",))
    more = (*SMALLER, "optim.epochs=1", "optim.keep_every=1")
    assert run(prepared, *more, stages=("pretrain",), start_from="parent") == ""
    assert [row["epoch"] for row in epochs(prepared)] == ["2"]
    assert [row["loss"] for row in epochs(prepared)] == [row["loss"] for row in rows[1:]]
    assert [row["step"] for row in epochs(prepared)] == [row["step"] for row in rows[1:]]
    assert_same_bits(models(prepared), expected)
    _, metadata = load_tensors(prepared / "models" / "method.safetensors")
    assert metadata["epochs"] == "2"
    parent = {"name": "parent", "hashes": HASHES, "licence": "unknown", "epochs": 1}
    assert json.loads(metadata["parent"]) == parent
    changed = ("temperature=0.3", "optim.base_lr=0.1", "seed=3")
    assert "Error: start_from continues an experiment with temperature=0.2, found 0.3; only seed," in run(
        prepared, *SMALLER, *changed, stages=("pretrain",), start_from="parent"
    )
    loss = {"kind": "infonce", "alpha": None}
    method = {"kind": "simclr", "negatives": None}
    older = {"precision": "fp32", "optim": {"compile": False}, "loss": loss, "method": method}
    newer = {"precision": "auto", "optim": {"compile": "auto"}, "loss": loss | {"positives": "each"}}
    newer["method"] = method | {"targets": "first_two"}
    assert start.differing(newer, older) is None
    (beginning, origin) = start.load(prepared / "models" / "start.safetensors"), {"data": "other"}
    with pytest.raises(ValueError, match="start_from continues on the same images, .*init=<experiment>"):
        beginning.check(HASHES, beginning.origin["parameters"], **origin)


def test_a_given_backbone_leaves_everything_else_as_in_a_fresh_run(prepared, tmp_path, here) -> None:
    """With a small stem, whose padding the file does not tell and `init` need not know."""
    small = ("backbone=resnet18_small", "backbone.width=0.125")
    run(prepared, *small, stages=("weights",))
    params = config.load(prepared / "params.yaml")
    torch.manual_seed(7)
    given = backbones.build(params.backbone)
    torch.save({"state_dict": given.state_dict()}, tmp_path / "given.pth")
    given_file = f"init={tmp_path / 'given.pth'}"
    assert run(prepared, given_file, *small, stages=("weights",)) == ""
    beginning = start.load(prepared / "models" / "start.safetensors")
    assert beginning.origin["licence"] == "unknown"
    fresh, started = (pretraining.build(params, here, 120, weights).method for weights in (None, beginning))
    for name, tensor in started.state_dict().items():
        part, _, rest = name.partition(".")
        if part == "target" and rest.startswith("0."):
            part, rest = "backbone", rest.removeprefix("0.")
        expected = given.state_dict()[rest] if part == "backbone" else fresh.state_dict()[name]
        assert torch.equal(tensor, expected), name
    wider = params.backbone.model_copy(update={"width": 2})
    with pytest.raises(ValueError, match="init gives a resnet18 .*small stem, but backbone"):
        beginning.load_backbone(backbones.build(wider), wider)


def test_a_run_hands_over_its_start_unless_it_became_better(prepared, tmp_path, monkeypatch) -> None:
    """The projector belongs to the trained encoder: the method keeps both, and neither is evaluated."""
    file = tmp_path / "given.safetensors"
    save_encoder(file, stem="small", width=0.25)
    adapt = [f"init={file}", "hand_over=better", "optim.epochs=1", "optim.base_lr=1.0e-9"]
    adapt += [
        "arms=[{optim: {base_lr: 1.0e-8, epochs: 2},"
        "views: {random: {area: [1, 1], jitter: {p: 0}, grayscale: 0}}},"
        "{optim: {base_lr: 1.0e+38, epochs: 2}}]",
        "ungrouped=true",
        "seed=1",
        *("analysis=[views]", "analyses.views.images=20", "analyses.views.batch_size=20"),
    ]
    assert "init has untrained weights" in run(prepared, *adapt)
    tensors, metadata = load_tensors(file)
    tensors["bn1.bias"] += 0.1
    save_tensors(tensors, file, metadata)
    assert run(prepared, *adapt) == ""
    handed_over, method, *_ = models(prepared).values()
    assert not all(torch.equal(method[f"backbone.{name}"], tensor) for name, tensor in handed_over.items())
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in handed_over.items())
    provenance = prepared / "results" / "pretrain.provenance.json"
    recorded = json.loads(provenance.read_text())
    found = recorded["adaptation"]
    assert found["sentence"].endswith("this run hands over the start encoder")
    assert [row["measure"] for row in found["rows"]][-1] == "mean"
    assert len(found["arms"]) == 3
    assert found["arms"][2] == 0, "a rate that diverges costs its arm, not the run"
    assert recorded["images_seen"] == 32 * (3 + 2 * 3 + 1), "the chosen arm is not counted twice"
    assert found["arms"][1] == max(found["arms"]), "whose views differ little"
    assert len(epochs(prepared)) == 2
    assert recorded["arm"]["optim"]["base_lr"] == 1e-8
    (analysed,) = answers(prepared, [Stage(("analyze", "views"))])
    assert analysed.code == 0
    similarity = json.loads((prepared / "results/analyze/views.json").read_text())["views_similarity"]
    assert similarity > 0.92, "0.96 of this arm's views, 0.87 of the first's"
    monkeypatch.chdir(prepared)
    assert evaluate.load(config.load(prepared / "params.yaml")).heads == {}
    uninterrupted = models(prepared)
    scratch = {"CL_SCRATCH": str(tmp_path), "CL_CHECKPOINT_SECONDS": "0"}
    process = start_stage(prepared, Stage(("pretrain",), scratch))
    until(lambda: list(tmp_path.glob("*/arm2/step-*")) or not process.is_alive())
    os.killpg(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.glob("*/arm1/step-*"))) == 2
    *_, resumed = answers(prepared, [Stage(("pretrain",), scratch)])
    assert "arm 1 of 3" in resumed.stderr
    assert "epoch 1/1" not in resumed.stderr, "the first arm is not trained again"
    assert json.loads(provenance.read_text())["images_seen"] == recorded["images_seen"]
    assert_same_bits(models(prepared), uninterrupted)


def test_published_weights_are_a_baseline_if_they_can_be_had(prepared, tmp_path) -> None:
    """A name is left out if nothing is cached and there is no network; a file must be there."""
    file = tmp_path / "given.safetensors"
    save_encoder(file, stem="small")
    offline = {"TORCH_HOME": str(tmp_path), "https_proxy": "http://127.0.0.1:9"}
    results = prepared / "results/baseline/published"
    (prepared / "data/scenes").mkdir(exist_ok=True)

    def answer(weights: str) -> Answer:
        settings = [
            "evaluation=[retrieval]",
            "baseline=[published]",
            f"baselines.published.weights={weights}",
        ]
        write(prepared / "params.yaml", [*SETTINGS, *settings])
        return answers(prepared, [Stage(("baseline", "published"), offline)])[0]

    assert answer(str(file)).code == 0
    found = baseline.load_published(str(file), None, config.load(prepared / "params.yaml"))[1].dataset
    assert found == type(found).model_validate(found.model_dump()), "of its types, or pydantic warns"
    assert "published_retrieval_hit1" in json.loads(results.with_suffix(".json").read_text())
    assert "left out: torchvision:resnet50 cannot be downloaded" in answer("torchvision:resnet50").stderr
    notes = json.loads(results.with_suffix(".provenance.json").read_text())
    assert notes["measurements"] == []
    assert "cannot be downloaded" in notes["missing"]
    assert notes["missing"].endswith("checkpoints; then `dvc repro -f -s baseline@published` measures it")
    assert "none.pth does not exist" in answer(str(tmp_path / "none.pth")).stderr


def load_on_rank(folder: Path, params: Params, missing: int, rank: int) -> None:
    """One of two processes; `missing` cannot reach the weights, and the other must not wait for it."""
    os.environ["RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)

    def fetch(name: str) -> tuple[Path, dict[str, str]]:
        if rank == missing:
            raise ValueError(f"{name} cannot be downloaded")
        (folder / f"loaded {rank}").touch()
        return folder / "given.safetensors", {}

    published.fetch = fetch
    found = baseline.on_all_ranks("timm:given", None, params)
    assert isinstance(found, tuple) if missing is None else "cannot be" in found
    max_over_ranks(0)


@pytest.mark.parametrize(("missing", "loaded"), [(None, 2), (0, 0), (1, 1)])
def test_weights_that_one_process_lacks_are_left_out_by_all(missing, loaded, params, tmp_path) -> None:
    save_encoder(tmp_path / "given.safetensors", stem="small")
    run_ranks(2, load_on_rank, tmp_path, params, missing)
    assert len(list(tmp_path.glob("loaded *"))) == loaded


def test_a_training_from_scratch_says_first_that_a_download_may_be_better(params, shard_folder) -> None:
    readers = [Reader(shard_folder, split) for split in ("train", "val")]
    baseline = params.baselines["random"].model_copy(update={"weights": "torchvision:resnet50"})
    compared = params.model_copy(update={"baselines": {"published": baseline}})
    said = [" ".join(pretrain.introduction(each, *readers)) for each in (params, compared)]
    assert ["dvc repro baseline@published" in text for text in said] == [False, True]


def test_init_is_the_published_baseline(tmp_path) -> None:
    file = tmp_path / "given.safetensors"
    save_encoder(file, stem="small")
    scratch, given = (
        compose(tmp_path, "recipe=own/small", "dataset.name=/tmp", *init) for init in ([], [f"init={file}"])
    )
    assert scratch["baselines"]["published"]["weights"] == "torchvision:resnet50"
    assert given["baselines"]["published"]["weights"] == str(file)
    assert command_for(config.check(given)) is not None
    params, found = config.check(given), given["baselines"]["published"]["hash"]
    assert (scratch["baselines"]["published"].get("hash"), found) == (None, given["init"]["hash"])
    baseline.load_published(str(file), found, params)
    save_encoder(file, stem="imagenet")
    with pytest.raises(ValueError, match=r"given.safetensors has changed since params\.yaml was written"):
        baseline.load_published(str(file), found, params)
    typed = "baseline=[published]", f"baselines.published.weights={file}"
    params = config.check(compose(tmp_path, "dataset=cifar10", *typed))
    file.unlink()
    assert command_for(params) is not None, "the file may be gone"


def test_an_encoder_of_bands_does_not_start_on_rgb(params, shard_folder, here) -> None:
    bank, weights = Reader(shard_folder, "train"), start.Start(origin={"bands": ["red", "green", "blue"]})
    with pytest.raises(ValueError, match="init takes the bands red, green, blue, the images are RGB"):
        pretraining.prepare(params, here, bank, weights)


def test_the_backbone_follows_init_unless_it_is_chosen(tmp_path, monkeypatch) -> None:
    file = tmp_path / "given.safetensors"
    save_encoder(file, stem="small")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert composition.compose(["init=~/given.safetensors"])["init"]["name"] == "~/given.safetensors"
    followed = config.check(compose(tmp_path, f"init={file}", "hand_over=better"))
    assert followed.backbone.title == "resnet18 of width 0.125 with small stem"
    assert followed.dataset.mean == TRANSFORM.mean
    assert followed.dataset.std == TRANSFORM.std
    assert command_for(followed) == f"dvc exp run -S init={file} -S hand_over=better"
    chosen = config.check(
        compose(tmp_path, f"init={file}", "backbone=resnet34", "dataset.mean=[0.5,0.5,0.5]")
    )
    assert (chosen.backbone.title, chosen.dataset.mean) == (
        "resnet34 of width 1 with imagenet stem",
        (0.5, 0.5, 0.5),
    )
    published = config.check(compose(tmp_path, "init=torchvision:resnet50", "dataset=cifar10"))
    assert published.backbone == config.check(compose(tmp_path, "backbone=resnet50")).backbone
    assert published.dataset.mean == config.check(compose(tmp_path, "dataset=folder")).dataset.mean


@pytest.mark.parametrize(("key", "remedy"), [("init", "choose hand_over=trained or"), ("teacher", "choose")])
def test_an_encoder_that_differs_from_our_network_is_refused_where_it_counts(key, remedy, tmp_path) -> None:
    file, settings = tmp_path / "given.safetensors", {"init": "hand_over=better", "teacher": "method=distill"}
    save_encoder(file, stem="small", metadata={})
    composition.compose([f"init={file}"])
    with pytest.raises(ValueError, match="does not show whether its first 3x3 convolution pads"):
        composition.compose([settings[key], f"{key}={file}"])
    (tmp_path / "config.json").write_text('{"model_args": {"stem_padding": 2}}')
    composition.compose([f"init={file}"])
    with pytest.raises(ValueError, match=f"{key}=.* with wider padding .*, unlike our network; {remedy} ano"):
        composition.compose([settings[key], f"{key}={file}"])


def test_a_normalisation_that_may_not_be_that_of_init_is_named(tmp_path) -> None:
    file, said = tmp_path / "given.safetensors", list[str]()
    save_encoder(file, stem="small")
    composition.compose([f"init={file}", "dataset.mean=[0.5,0.5,0.5]"], said.append)
    trained_with = f"was trained with dataset.mean={list(TRANSFORM.mean)}"
    assert said == [f"init={file} {trained_with}; this run uses [0.5, 0.5, 0.5]"]
    save_tensors(load_tensors(file)[0], file)
    composition.compose([f"init={file}"], said.append)
    assert "records no dataset.mean; this run uses" in said[1]


def test_a_file_that_has_changed_or_is_missing_is_refused(prepared, tmp_path) -> None:
    file = tmp_path / "given.pth"
    save_encoder(file, stem="small")
    write(prepared / "params.yaml", [*SETTINGS, f"init={file}"])
    file.write_bytes(b"another")
    changed, *_ = answers(prepared, [Stage(("weights",))])
    file.unlink()
    missing, *_ = answers(prepared, [Stage(("weights",))])
    assert f"init={file} has changed" in changed.stderr
    assert f"init={file} does not exist" in missing.stderr
    assert changed.code == missing.code == 1


def test_the_backbone_may_learn_at_its_own_rate(prepared, here) -> None:
    write(prepared / "params.yaml", [*SETTINGS, "optim.backbone_lr_scale=0.1"])
    params = config.load(prepared / "params.yaml")
    task = pretraining.build(params, here, 120)
    optimizer = pretraining.optimizer(params, task)
    optim.set_lr(optimizer, 1.0, 1.0)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    trained = {name: p for name, p in task.named_parameters() if p.requires_grad}
    assert rates.keys() == {id(p) for p in trained.values()}
    for name, parameter in trained.items():
        assert rates[id(parameter)] == (0.1 if name.startswith("method.backbone.") else 1.0), name
