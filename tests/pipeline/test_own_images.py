"""Own images from prepare to the report: without labels, and with groups and a few labels in a table."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Picture
from skimage import data as photographs

import cl
from cl import config
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.features.extraction import extract
from cl.runtime import machine
from cl.runtime.machine import Machine
from cl.training import start
from tests.support.bands import write_images
from tests.support.project import TINY, compose, copy_product
from tests.support.resnets import save_encoder
from tests.support.stages import Stage, answers

SIZES = [setting for setting in TINY if "patches" not in setting] + [
    *("dataset.name=own", "dataset.resize=32", "dataset.crop=32", "dataset.holdout=0.3"),
    *("transfer=[]", "optim.monitor.queries=20", "optim.monitor.bank=20"),
    *("optim.monitor.k=3", "backbone.width=0.125"),
]
ANALYSES = "analysis=[alignment_uniformity,neighbours,embedding]"


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """A raw folder with 120 images in nested folders, six to a folder."""
    raw = tmp_path_factory.mktemp("raw")
    whole = [photographs.astronaut(), photographs.coffee(), photographs.chelsea(), photographs.rocket()]
    rng = np.random.default_rng(0)
    for number in range(120):
        picture = whole[number // 6 % 4]
        y, x = (int(rng.integers(0, side - 64)) for side in picture.shape[:2])
        path = raw / f"own/site {number // 60}/object {number // 6}/{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Picture.fromarray(picture[y : y + 64, x : x + 64]).save(path)
    (raw / "own/read me.txt").touch()
    (raw / "own/empty.jpg").touch()
    shutil.copy(raw / "own/site 0/object 0/0.jpg", raw / "own/copy.jpg")
    frames = [Picture.new("RGB", (64, 64), (100 * number, 0, 0)) for number in range(3)]
    frames[0].save(raw / "own/animated.webp", save_all=True, append_images=frames[1:])
    return raw


def run(folder: Path, raw: Path, *stages: tuple[str, ...], code: int = 0) -> str:
    """What the stages say; all succeed, or the last one fails."""
    found = answers(folder, [Stage(stage, {"CL_RAW": str(raw)}) for stage in stages])
    assert [answer.code for answer in found] == [*[0] * (len(found) - 1), code], found
    return "".join(answer.stderr for answer in found)


def test_images_without_labels_end_in_a_report_without_accuracies(project, images, tmp_path) -> None:
    folder = copy_product(project, tmp_path / "project")
    small = ["analyses.embedding.perplexity=5", "analyses.alignment_uniformity.batch_size=20"]
    said = run(
        folder,
        images,
        ("compose", "dataset=unlabelled", ANALYSES, *SIZES, *small),
        ("prepare",),
        ("weights",),
        ("pretrain",),
        ("evaluate",),
        *(("analyze", name) for name in ("alignment_uniformity", "neighbours", "embedding")),
        ("baseline", "random"),
        ("report",),
    )
    assert "dataset.labels=none: left out what needs labels: knn, linear, semi_1, semi_10, supervised" in said
    assert "have a label" not in said
    assert re.search(r"\d+ images are too few to learn from.*cl embed.*\n.*simclr with dcl", said)
    assert "prepare: left out 1 file: with suffix .txt" in said
    assert "prepare: left out empty: unreadable .jpg, ValueError: the file is empty" in said
    notes = json.loads((folder / "results/prepare.provenance.json").read_text())["left_out"]
    assert notes == {"with suffix .txt": 1, "unreadable .jpg, ValueError: the file is empty": 1}
    assert "prepare: 1 image with the same content as another, " in said
    assert "1 file with several frames or pages: only the first is used" in said
    metrics: dict[str, float] = {}
    for path in (folder / "results").rglob("*.json"):
        if not path.name.endswith("provenance.json"):
            metrics |= json.loads(path.read_text())
    assert {"retrieval_hit1", "random_retrieval_hit1", "random_retrieval_pixels_hit5"} <= set(metrics)
    assert {"alignment_uniformity_uniformity", "alignment_uniformity_effective_rank"} <= set(metrics)
    assert metrics["duplicates"] == 1
    assert not [name for name in metrics if "top1" in name or "same_class" in name]
    page = (folder / "report/index.html").read_text()
    verdict = json.loads((folder / "results/pretrain.provenance.json").read_text())["verdict"]
    assert f"pretrain: {verdict}\n" in said
    assert f"{verdict[1:]}.</p>" in page
    assert "finds itself from a changed copy" in page
    queries = len((folder / "results/evaluate/retrieval/images.csv").read_text().splitlines()) - 1
    assert f"(queries {queries}, " in page  # not the 2000 that were asked for
    assert "\nretrieval: retrieval_hit1" in said
    assert "\nuntrained encoder retrieval: retrieval_hit1" in said
    assert "-S dataset=unlabelled" in page
    assert "top-1" not in page
    other = ("compose", "dataset=unlabelled", ANALYSES, *SIZES, *small, "temperature=0.5")
    refused = run(folder, images, other, ("report",), code=1)
    assert "results/pretrain has another temperature than params.yaml" in refused


def test_what_needs_labels_is_refused_where_there_are_none(tmp_path) -> None:
    """In a params.yaml that was edited by hand; composing leaves it out."""
    values = compose(tmp_path, "dataset=unlabelled")
    assert list(values["evaluations"]) == ["retrieval"]
    assert list(values["baselines"]) == ["random"]
    labelled = compose(tmp_path)
    for group, name in (("evaluations", "knn"), ("baselines", "supervised")):
        wrong = {**values, group: {**values[group], name: labelled[group][name]}}
        with pytest.raises(ValueError, match=f"{group}.{name} .*dataset.labels=none; remove"):
            config.check(wrong)


def write_table(images: Path, labelled: int) -> None:
    """The images of each object as a group; every object's first images have the place as label."""
    lines = ["path,label,group"]
    for path in sorted((images / "own").rglob("*/*.jpg")):
        name = path.relative_to(images / "own")
        number = int(path.stem)
        label = f"photo {number // 6 % 2}" if number % 6 < labelled else ""
        lines.append(f"{name},{label},{path.parent.name}")
    (images / "own/images.csv").write_text("\n".join(lines))


def test_a_table_with_few_labels_gives_accuracies_on_these(project, images, tmp_path) -> None:
    """Groups stay in one split and reach training; a table that has changed is noticed by every stage."""
    folder = copy_product(project, tmp_path / "project")
    write_table(images, labelled=2)
    few = ["dataset.labels=some", "evaluation=[knn,linear]", "evaluations.knn.k=3", "analysis=[]"]
    few += ["evaluations.linear.optim.epochs=1", "evaluations.linear.optim.batch_size=10", "baseline=[]"]
    few.append("dataset.positive=group")
    said = run(
        folder,
        images,
        ("compose", "dataset=table", *few, *SIZES),
        ("prepare",),
        ("weights",),
        ("pretrain",),
        ("evaluate",),
    )
    readers = [Reader(folder / "data/shards", split) for split in ("train", "val")]
    assert sum(len(reader.labelled) for reader in readers) == 40
    assert sum(len(reader) for reader in readers) == 120
    held_out = len(readers[1].labelled)
    assert f"prepare: 40 of 120 images have a label, {held_out} of them for validation\n" in said
    for reader in readers:
        objects = [key.decode().split("/")[1] for key in reader.keys.tolist()]
        assert len(set(zip(objects, reader.groups.tolist(), strict=True))) == len(set(objects))
    assert "knn_top1" in (folder / "results/evaluate/knn.json").read_text()
    assert "linear_top1" in (folder / "results/evaluate/linear.json").read_text()
    assert "queries_without_negatives" in (folder / "results/pretrain/epochs.csv").read_text()
    write_table(images, labelled=3)
    said = run(folder, images, ("evaluate", "knn"), code=1)
    assert "images.csv has changed: run `dvc repro -f prepare`" in said
    write_table(images, labelled=6)
    without = ("compose", "dataset=table", "dataset.labels=none", *SIZES)
    said = run(folder, images, without, ("prepare",), code=1)
    assert "dataset.labels=none, but 120 of 120 images have a label; choose dataset.labels=all" in said


def test_the_smallest_profile_needs_no_gpu(tmp_path) -> None:
    params = config.check(compose(tmp_path, "recipe=own/small", "dataset.name=birds"))
    machine.find(params.precision, deterministic=params.deterministic)


def test_bands_go_from_files_to_an_encoder_that_reads_such_files(project, tmp_path) -> None:
    """With changes of bands; the encoder's features of files are those of the shards, and it is an `init`."""
    folder, raw = copy_product(project, tmp_path / "project"), tmp_path / "raw"
    write_images(raw / "own", 45, 15)
    shutil.copy(raw / "own/train/kind0/0.tif", raw / "own/val/kind0/copy.tif")
    small = ["dataset=folder", "dataset.name=own", "dataset.resize=36", "dataset.crop=32"]
    small += ["views.random.size=32", "backbone.width=0.125", "optim.epochs=1", "optim.warmup_epochs=0"]
    small += ["evaluation=[knn,retrieval]", "analysis=[neighbours,bands]", "baseline=[random]"]
    stages = [
        ("prepare",),
        ("weights",),
        ("pretrain",),
        ("evaluate",),
        ("analyze", "neighbours"),
        ("analyze", "bands"),
    ]
    chosen = ("compose", "recipe=own/bands", *small, "dataset.show=[5,3,1]")
    said = run(folder, raw, chosen, *stages, ("baseline", "random"), ("report",))
    assert "prepare: bands 1, 2, 3, 4, 5, stored as uint16" in said
    page = (folder / "report/index.html").read_text()
    assert "make results too good (1; dataset.deduplicate" in page
    assert page.count("Pictures show bands 5, 3, 1 as red, green and blue") >= 2
    assert "Values of each band" in page
    assert "; bands: all" in page and "torchvision:resnet50" not in page  # which reads no bands
    encoder, reader = cl.load(folder / "models/backbone.safetensors"), Reader(folder / "data/shards", "val")
    files = [raw / "own/val" / f"{key.decode()}.tif" for key in reader.keys]
    stored = extract(
        encoder.network, EvalSet(reader, encoder.transform), Machine(torch.device("cpu"), 0, "fp32")
    )
    torch.testing.assert_close(encoder.embed(files), stored)
    save_encoder(tmp_path / "rgb.safetensors", stem="imagenet", width=0.125)
    shutil.copy(folder / "models/backbone.safetensors", tmp_path / "bands.safetensors")
    for name in ("rgb", "bands"):
        said = run(folder, raw, (*chosen, f"init={tmp_path}/{name}.safetensors"), ("weights",), ("pretrain",))
        assert "pretrain: epoch 1/1" in said
        recorded = start.load(folder / "models/start.safetensors").origin["bands"]
        assert recorded == ([] if name == "rgb" else ["1", "2", "3", "4", "5"])
