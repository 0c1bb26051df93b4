"""cl classify --finetune: used if it helps, and otherwise without a trace."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Picture
from sklearn.metrics import log_loss

import cl
from cl.commands.classifiers import finetuning
from cl.commands.classifiers.heads import train
from cl.commands.classify import classify
from cl.commands.inputs.labels import Targets
from cl.networks import backbones
from cl.networks.backbones.timm import Config
from cl.runtime.tables import write_csv
from cl.runtime.tensor_files import save_tensors
from cl.statistics import interval
from tests.support.resnets import TRANSFORM
from tests.support.stages import run_cl

CONFIG = Config(kind="timm", name="test_efficientnet", size=32, pool=None, drop_path=0, checkpointing=False)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """40 red and green images of many brightnesses, 30 labelled; gray.safetensors sees only brightness."""
    torch.manual_seed(0)
    weights = backbones.build(CONFIG).state_dict()
    stem = weights["conv_stem.weight"]
    gray = {**weights, "conv_stem.weight": stem.mean(1, keepdim=True).expand_as(stem).contiguous()}
    transform = TRANSFORM.model_copy(
        update={"resize": 36, "crop": 32, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    )
    metadata = {"network": CONFIG.model_dump_json(), "transform": transform.model_dump_json()}
    metadata["license"] = "cc-by-4.0"
    save_tensors(weights, tmp_path / "colour.safetensors", metadata)
    save_tensors(gray, tmp_path / "gray.safetensors", metadata)
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for number in range(40):
        pixels = rng.integers(0, 80) + rng.integers(0, 60, (36, 36, 3))
        pixels[..., number % 2] += 60
        Picture.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"images/{number:02d}.png")
    rows = [(f"{number:02d}.png", ("red", "green")[number % 2]) for number in range(30)]
    write_csv(tmp_path / "labels.csv", ["path", "label"], rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finetuning, "STEPS", 15)
    monkeypatch.setattr(finetuning, "RATE", 2e-3)
    return tmp_path


def test_a_better_encoder_is_used_and_saved_with_its_classifier(folder) -> None:
    before = (folder / "gray.safetensors").read_bytes()
    found = classify("labels.csv", "images", encoder="gray.safetensors", finetune=True, save="c.safetensors")
    assert found.finetuning
    assert found.finetuning.better
    assert found.finetuning.accuracy[0] < 60
    assert found.finetuning.accuracy[1] > 90
    assert found.quality
    assert found.quality.accuracy == pytest.approx(found.finetuning.accuracy[1])
    within = interval(found.quality.accuracy, 30 / (1 + 3 / 2))  # three folds share training images
    assert found.quality.interval == pytest.approx(within)
    assert found.predicted[30:] == ["red", "green"] * 5
    again = classify(images="images", classifier="c.safetensors")
    np.testing.assert_array_equal(again.probabilities[30:], found.probabilities[30:])
    assert (folder / "gray.safetensors").read_bytes() == before
    tuned = Path("c-encoder.safetensors").read_bytes()
    assert cl.load("c-encoder.safetensors").licence == "cc-by-4.0"
    options = "--images images --encoder gray.safetensors --labels labels.csv --save c.safetensors"
    said = run_cl("classify", "--finetune", *options.split()).output
    assert f"{found.finetuning.log_loss[0]:.3f} to {found.finetuning.log_loss[1]:.3f}" in said
    assert "c-encoder.safetensors" in said
    assert Path("c-encoder.safetensors").read_bytes() == tuned


def test_without_a_gain_nothing_changes(folder, monkeypatch) -> None:
    monkeypatch.setattr(finetuning, "RATE", 1e-2)  # spoils the network
    monkeypatch.setattr(finetuning, "STEPS", 12)
    classify("labels.csv", "images", encoder="colour.safetensors", save="tuned.safetensors")
    shutil.copy("colour.safetensors", "tuned-encoder.safetensors")  # as an earlier run with a gain would
    encoder = cl.load("colour.safetensors").bfloat16()  # its copies are trained in float32
    tuned, plain = (
        classify("labels.csv", "images", encoder=encoder, finetune=finetune, save=save)
        for finetune, save in ((True, "tuned.safetensors"), (False, "plain.safetensors"))
    )
    assert tuned.finetuning
    assert not tuned.finetuning.better
    np.testing.assert_array_equal(tuned.probabilities, plain.probabilities)
    assert tuned.quality == plain.quality
    assert Path("tuned.safetensors").read_bytes() == Path("plain.safetensors").read_bytes()
    assert not Path("tuned-encoder.safetensors").exists()


def test_the_comparison_counts_groups() -> None:
    rng = np.random.default_rng(0)
    targets = np.eye(3, dtype=bool)[rng.integers(3, size=20)]
    both = rng.dirichlet(np.ones(3), (2, 20))
    found = finetuning._compared(
        Targets([], [], targets, np.full(20, -1), np.zeros(20, bool), []), *np.log(both)
    )
    assert found.log_loss == pytest.approx([log_loss(targets, each) for each in both])
    assert found.accuracy == pytest.approx([100 * (p.argmax(1) == targets.argmax(1)).mean() for p in both])
    difference = np.log(both[1][targets] / both[0][targets])
    assert found.error == pytest.approx(difference.std(ddof=1) / np.sqrt(20))
    copies = Targets([], [], targets.repeat(3, 0), np.arange(20).repeat(3), np.zeros(60, bool), [])
    assert finetuning._compared(copies, *np.log(both).repeat(3, 1)).error == pytest.approx(found.error)


def test_the_heads_of_the_folds_give_the_held_out_probabilities() -> None:
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(30, 5)), np.eye(3, dtype=bool)[np.arange(30) % 3]
    trained = train(features, targets, ["a", "b", "c"], number=3)
    assert sorted(np.concatenate([rows for _, rows in trained.folds])) == list(range(30))
    for head, rows in trained.folds:
        np.testing.assert_allclose(
            head.probabilities(features[rows]), trained.calibrated[rows], rtol=1e-4, atol=1e-6
        )


def test_mistakes_are_told_before_anything_is_embedded(folder) -> None:
    network, encoder = "gray.safetensors", cl.load("gray.safetensors")
    encoder.config = None
    given = {"labels": "labels.csv", "images": "images"}
    for name in ("alone", "other"):
        shutil.copy("colour.safetensors", f"{name}-encoder.safetensors")
    classify(**given, encoder=network, save="other.safetensors")  # type: ignore[arg-type]
    for options, message in (
        ({"labels": "labels.csv", "features": "f.parquet"}, "--finetune trains on --images with --labels"),
        ({"classifier": "c.safetensors", "images": "images"}, "--finetune trains on --images with --labels"),
        (given | {"encoder": encoder}, "--finetune cannot record"),
        (given | {"save": "alone.safetensors"}, "overwrite alone-encoder.safetensors, which is not its"),
        (given | {"save": "other.safetensors"}, "overwrite other-encoder.safetensors, which is not its"),
    ):
        with pytest.raises(ValueError, match=message):
            classify(finetune=True, **options)  # type: ignore[arg-type]
    assert cl.load(network).config
