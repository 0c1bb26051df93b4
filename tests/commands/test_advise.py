"""cl advise: what it measures, trains on and recommends; that its trial is the recipe; what it refuses."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image as Picture
from timm.models import save_for_hf

import cl
from cl import config
from cl.commands.advise import parts
from cl.commands.inputs import sample
from cl.commands.inputs.labels import opened_table
from cl.commands.jobs import starts, trial
from cl.commands.jobs.starts import PIXELS, Start
from cl.commands.outputs.advice import FEW, Named, Tried, advice
from cl.console.command import progress
from cl.encoders.published import downloaded
from cl.pretraining.adaptation import verdict
from cl.runtime.registry import module_of
from cl.runtime.tables import write_csv
from pipeline.composition.compose import compose
from tests.support.files import read_csv
from tests.support.pictures import picture_file
from tests.support.resnets import save_encoder
from tests.support.stages import assert_refused, run_cl

BETTER, UNCLEAR, EQUAL = 40.0, 1.0, 0.0


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:  # type: ignore[no-untyped-def]
    """An encoder; 24 images of two classes in a folder that a shell must quote, and the same with splits."""
    root = tmp_path_factory.mktemp("advise")
    save_encoder(root / "a.safetensors")
    for label, name in enumerate(("robin", "wren")):
        for number in range(12):
            file = picture_file(
                root / "my birds (1)" / name / f"{number}.jpg", 100 * label + number, (80, 60)
            )
            split = "val" if number % 3 == 0 else "train"
            (root / "split" / split / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, root / "split" / split / name)
    return root


def overrides(command: str) -> list[str]:
    """Those of a command `dvc exp run`, as a shell passes them on."""
    words = shlex.split(command)
    assert words[:3] == ["dvc", "exp", "run"] and words[3::2] == ["-S"] * len(words[4::2])
    return words[4::2]


def test_the_screen_shows_what_the_labels_say_and_the_table_is_written(place, tmp_path) -> None:
    folder, to, given = place / "my birds (1)", tmp_path / "labels.csv", tmp_path / "given.csv"
    rows = [(f"{name}/{n}.jpg", name, f"{name}{n // 2}") for name in ("robin", "wren") for n in range(12)]
    write_csv(given, ["path", "label", "group"], [*rows, ("x.jpg", "wren", "")])
    of = ("--encoder", place / "a.safetensors", "--to", to)
    told = run_cl("advise", folder, *of, "--labels", given).stdout
    assert "12 independent groups" in told and "x.jpg: no such image" in told
    assert {tuple(row.values()) for row in read_csv(to)} == {*rows}
    (folder / "wren/x.jpg").write_text("no picture")
    told = run_cl("advise", folder, *of).stdout
    for part in (
        "24 images",
        "unreadable: 1 (",
        "x.jpg cannot be decoded",
        "2 classes with 12 images,",
        "near copies of others: 0",
        "kNN",
        PIXELS,
        "=> keep",
    ):
        assert part in told
    assert shlex.join([str(folder), "--to", "features.parquet"]) in told
    assert {row["label"] for row in read_csv(to)} == {"robin", "wren"}
    assert all((folder / row["path"]).is_file() for row in read_csv(to))
    (folder / "wren/x.jpg").unlink()


def test_without_labels_nothing_is_trained_nor_recommended(place, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("cl.commands.advise.FEW", 1)
    for file in (place / "my birds (1)").glob("*/*.jpg"):
        shutil.copy(file, tmp_path / f"{file.parent.name}{file.name}")
    (tmp_path / "names.csv").write_text("path,label\n")
    found = cl.advise(tmp_path, encoders=[place / "a.safetensors"])
    assert (found.verdict, found.trials) == ("keep", [])
    assert any("names.csv their table?" in remark for remark in found.about), "a table that was not given"
    assert any("50 labels" in sentence for sentence in found.answer)
    assert not any("dvc" in command for command in found.commands)
    monkeypatch.setattr("cl.commands.outputs.advice.FEW", 1)
    pixels = starts.find([place / "a.safetensors"], print)[-1:]
    monkeypatch.setattr(starts, "find", lambda *_: pixels)
    assert "ungrouped=true" in overrides(cl.advise(tmp_path, ungrouped=True).commands[-1])


def test_a_network_that_differs_from_ours_is_not_trained(place, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("cl.commands.advise.FEW", 1)
    save_encoder(tmp_path / "a.safetensors", metadata={}, stem="small")
    (tmp_path / "config.json").write_text('{"model_args": {"stem_padding": 2}}')
    found = cl.advise(place / "my birds (1)", encoders=[tmp_path / "a.safetensors"], minutes=0.01)
    assert (found.verdict, found.trials) == ("keep", [])
    assert "own/adapt cannot give back its network" in found.answer[-1]


def table_of(folder: Path, form: str) -> dict[str, object]:
    """The arguments of a table of half the images in a folder, whose groups the others belong to."""
    names = sorted(str(file.relative_to(folder)) for file in folder.glob("*/*.jpg"))
    rows = [
        (name, name[:5] if number % 2 else "", f"g{number // 2 % 6}") for number, name in enumerate(names)
    ]
    file, columns = folder / "labels.csv", ["path", "label", "group"]
    if form == "above":
        file, rows = folder.parent / "labels.csv", [(f"{folder.name}/{name}", *row) for name, *row in rows]
    if form == "columns":
        rows = [(*row, int(row[1] == "robin"), int(row[1] == "wren/")) for row in rows]
        columns = ["Class Name", "kind", "group", "is robin", "wren"]
    if form == "no suffix":
        rows = [(name.removesuffix(".jpg"), *row) for name, *row in rows]
    write_csv(file, columns, [*rows, *[("other.jpg", "wren", "")] * (form == "others")])
    named = {"path": "Class Name", "label": "is robin,wren"} if form == "columns" else None
    return {"labels": file, "columns": named}


@pytest.mark.parametrize(
    "form", ["folders", "split", "unequal", "above", "columns", "no suffix", "others", "unlabelled"]
)
def test_the_recommended_commands_train_on_the_images_that_were_looked_at(
    form, place, tmp_path, monkeypatch
) -> None:
    """With their labels and groups, those of unlabelled images too."""
    folder, given = tmp_path / "my birds (1)", {}
    shutil.copytree(place / ("split" if form in ("split", "unequal") else "my birds (1)"), folder)
    if form == "unequal":
        (folder / "val" / "wren").rename(folder / "val" / "owl")
    elif form == "unlabelled":
        for file in folder.glob("*/*.jpg"):
            file.rename(folder / f"{file.parent.name}{file.name}")
    elif form not in ("folders", "split"):
        given = table_of(folder, form)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cl.commands.outputs.advice.FEW", 1)
    pixels = starts.find([place / "a.safetensors"], print)[-1:]
    monkeypatch.setattr(starts, "find", lambda *_: pixels)
    found = cl.advise(folder, **given)
    again, *before, train = found.commands
    assert given == {} or str(given["labels"]) in shlex.split(again)
    for command in before:
        run_cl(*shlex.split(command)[1:])
    dataset = config.check(compose(overrides(train))).dataset
    listed = module_of("sources", dataset.kind).splits(dataset, tmp_path)
    expected = sample.read(folder, opened_table(given.get("labels"), given.get("columns"), None))
    known = {
        (str(image.path.relative_to(folder)), [*listed.classes, ""][image.label], image.group)
        for image in (*listed.train, *listed.val)
    }
    assert known == {(name, *each) for name, each in expected.listed.items()}


def test_labelled_images_are_looked_at_first(place, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sample, "MOST", 10)
    monkeypatch.setattr(sample, "LEAST", 10)
    rows = [(f"wren/{number}.jpg", "wren") for number in range(10)]
    write_csv(tmp_path / "labels.csv", ["path", "label"], rows)
    found = sample.read(place / "my birds (1)", opened_table(tmp_path / "labels.csv", None, None))
    assert found.labels.tolist() == ["wren"] * 10


def test_bursts_are_found_among_images_without_a_group(place, tmp_path) -> None:
    rng = np.random.default_rng(0)
    for scene in range(20):
        pixels = rng.integers(8, 248, (5, 6, 3))
        for number in range(3):
            changed = (pixels + rng.integers(-8, 8, pixels.shape)).astype(np.uint8)
            Picture.fromarray(changed).resize((24, 20)).save(tmp_path / f"{scene:02}_{number}.png")
    rows = [
        (file.name, "ab"[number // 3 % 2], "") for number, file in enumerate(sorted(tmp_path.glob("*.png")))
    ]
    rows[0] = (*rows[0][:2], "alone")
    write_csv(tmp_path / "labels.csv", ["path", "label", "group"], rows)
    given = ("--encoder", place / "a.safetensors", "--minutes", 0)
    said = run_cl("advise", tmp_path, "--labels", tmp_path / "labels.csv", *given).output
    assert re.search(r"[56]\d of 59 images are in about \d+ bursts", said)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("a class of one image", "2 classes with 8 images, 16 independent groups; .* left out: 1"),
        ("a group of three classes", "3 classes with 8 images, 4 independent groups"),
    ],
)
def test_classes_that_cannot_be_held_out(case, said, place, tmp_path, monkeypatch) -> None:
    """A group of the only other images of three groups fits into five folds, but not into a trial's three."""
    monkeypatch.setattr("cl.commands.advise.FEW", 1)
    images, rows = sorted((place / "my birds (1)").glob("*/*.jpg")), []
    for number, file in enumerate(images):
        shutil.copy(file, tmp_path / f"{number}.jpg")
        rows.append((f"{number}.jpg", "abc"[number // 8], "mixed" if number % 8 > 6 else f"g{number // 8}"))
    if case == "a class of one image":
        rows = [(name, label, "") for name, label, _ in rows[:17]]
    write_csv(tmp_path / "labels.csv", ["path", "label", "group"], rows)
    given = {"encoders": [place / "a.safetensors"], "labels": tmp_path / "labels.csv", "ungrouped": True}
    found = cl.advise(tmp_path, **given, minutes=1e-9)
    assert any(re.search(said, sentence) for sentence in found.about)
    assert bool(found.trials) == (case == "a class of one image")


def test_a_trial_is_judged_by_whole_groups_that_it_does_not_train_on(place) -> None:
    together, judging = np.arange(24) % 12, np.arange(24)
    split = sample.read(place / "split", None)
    assert split.files[8].parts[-3:-1] == ("train", "wren") and split.is_val.sum() == 8
    held, rest = parts(split, together, judging)
    assert held.tolist() == np.flatnonzero(split.is_val).tolist() and len(rest) == 8
    assert not {*together[held]} & {*together[rest]}
    held, rest = parts(sample.read(place / "my birds (1)", None), together, judging)
    assert sorted([*held, *rest]) == [*range(24)] and not {*together[held]} & {*together[rest]}


def test_a_trial_changes_a_copy_in_the_given_number_of_steps(place) -> None:
    encoder = cl.load(place / "a.safetensors")
    before = encoder.sha256
    images = sample.read(place / "my birds (1)", None).pixels
    trained, steps, seconds = trial.adapted(encoder, images, trial.OPTIM, 1e-9, progress("advise"))
    assert (steps, encoder.sha256) == (1, before)
    assert trained.sha256 != before and seconds > 0
    assert not trained.training


def test_the_trial_is_the_recipe(tmp_path) -> None:
    save_encoder(tmp_path / "a.safetensors")
    composed = compose(["recipe=own/adapt", f"init={tmp_path / 'a.safetensors'}", f"dataset.name={tmp_path}"])
    view, method, loss = composed["views"]["random"], composed["method"], composed["loss"]
    assert trial.VIEW.model_validate(view) == trial.VIEW
    assert trial.METHOD.model_validate(method) == trial.METHOD
    assert (loss, composed["temperature"], composed["bn_group"]) == ({"kind": "dcl"}, 0.1, "global")
    vit, size = tmp_path / "vit", {"img_size": 96}
    save_for_hf(timm.create_model("test_vit", **size), str(vit), model_args=size, safe_serialization=True)
    for file, chosen_by in (("a.safetensors", []), ("vit/model.safetensors", trial.OF_ADAMW)):
        chosen = compose(["recipe=own/adapt", f"init={tmp_path / file}", "dataset.name=x", *chosen_by])
        arms = [{}, *(arm["optim"] for arm in chosen["arms"])]
        for optim, arm in zip(trial.optimizers(cl.load(tmp_path / file)), arms, strict=True):
            of_recipe = {key: (chosen["optim"] | arm)[key] for key in optim.model_dump()}
            assert optim.model_validate(of_recipe) == optim
        known = [start(str(tmp_path / file), tmp_path / file, 80), start(PIXELS, tmp_path / file, 50)]
        found = advice(FEW, [], known, [tried(0.02, BETTER)], Named("x", "", [], ["dataset.name=x"]))
        run = next(command for command in found.commands if command.startswith("dvc"))
        assert [each for each in overrides(run) if each in trial.OF_ADAMW] == chosen_by
    assert composed["optim"]["least_steps"] == trial.LEAST_STEPS
    assert (composed["dataset"]["resize"], composed["dataset"]["crop"]) == (trial.RESIZE, trial.SIDES[0])


def start(name: str, encoder: str | Path, percent: float, measure: str = "kNN") -> Start:
    return Start(name, cl.load(encoder), np.zeros((2, 2)), 1.0, {measure: (percent, None)})


def tried(rate: float, gain: float) -> Tried:
    """With 19 images, each of which gains about as much."""
    scores = np.array([[50.0, 50 + gain + noise] for noise in range(-9, 10)])
    outcome = verdict({"kNN": scores}, ["robin"] * 19, np.arange(19), seed=0)
    assert outcome.comparison
    return Tried(rate, 1, 2, 1.0, outcome.comparison, outcome.is_better)


@pytest.mark.parametrize(
    ("percents", "gains", "images", "answer", "recipe"),
    [
        ((80, 50), [BETTER], FEW, "adapt", "own/adapt"),
        ((80, 50), [EQUAL, BETTER], FEW, "adapt", "own/adapt"),
        ((80, 50), [EQUAL, EQUAL], FEW, "keep", None),
        ((80, 50), [EQUAL], FEW, "try", "own/adapt"),
        ((80, 50), [], FEW, "keep", None),
        ((80, 50), [UNCLEAR], FEW, "try", "own/adapt"),
        ((80, 50), [UNCLEAR, UNCLEAR], FEW, "keep", None),
        ((50, 50), [EQUAL, EQUAL], FEW, "train from scratch", "own/small"),
        ((50, 50), [EQUAL, BETTER], FEW, "adapt", "own/adapt"),
        ((50, 50), [], FEW - 1, "keep", None),
        ((50,), [], FEW, "get an encoder", "own/small"),
        ((50,), [], FEW - 1, "get an encoder", None),
    ],
)
def test_what_is_recommended(place, percents, gains, images, answer, recipe) -> None:
    """Training from scratch is advised only without a start, or if pixels are as good, also after a trial.

    A trial of fewer steps than the recipe's excludes nothing: features may get worse before they get better.
    """
    file = place / "a.safetensors"
    known = [
        start(name, file, each)
        for name, each in zip([str(file), PIXELS][-len(percents) :], percents, strict=True)
    ]
    trials = [tried(rate, gain) for rate, gain in zip((0.02, 0.12), gains, strict=False)]
    folder = place / "my birds (1)"
    found = advice(images, [], known, trials, Named(str(folder), "", [], [f"dataset.name={folder}"]))
    assert found.verdict == answer
    few = any("1 of 2 steps do not tell" in sentence for sentence in found.answer)
    assert few == (answer == "try")
    compared = any(f"no better than {PIXELS}" in sentence for sentence in found.answer)
    assert compared == (percents == (50, 50) and answer != "adapt")
    runs = [overrides(command) for command in found.commands if command.startswith("dvc")]
    assert len(runs) == (recipe is not None)
    for run in runs:
        composed = compose(run)
        assert (composed["recipe"], composed["dataset"]["name"]) == (recipe, str(folder))
        if recipe == "own/adapt":
            assert composed["init"]["name"] == str(file)
            assert composed["dataset"]["crop"] == 16


def test_downloaded_weights_are_found_without_a_connection(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "resnet18-f37072fd.pth").touch()
    assert "torchvision:resnet18:IMAGENET1K_V1" in downloaded()
    assert starts.find([], lambda text: None)[-1][0] == PIXELS


def test_what_is_refused(place, tmp_path) -> None:
    images = sorted((place / "my birds (1)").glob("*/*.jpg"))
    for folder, count in (("one", 1), ("equal", 24)):
        (tmp_path / folder).mkdir()
        for number in range(count):
            shutil.copy(images[0], tmp_path / folder / f"{number}.jpg")
    (tmp_path / "weights.pth").write_text("no weights")
    (tmp_path / "deep").mkdir()
    Picture.fromarray(np.arange(99, dtype=np.uint16)[None] * 600).save(tmp_path / "deep/0.png")
    write_csv(tmp_path / "others.csv", ["path", "label"], [("x.jpg", "wren")])
    encoder = ("--encoder", place / "a.safetensors")
    shutil.copytree(place / "split/train", tmp_path / "splits/train")
    shutil.copytree(place / "split/val", tmp_path / "splits/test")
    assert_refused(
        tmp_path,
        "advise",
        {
            "has 1 image that can be read, of 1": ("one", *encoder),
            "has 0 images that can be read, of 1, .* deep/0.png cannot be decoded: 16-bit": (
                "deep",
                *encoder,
            ),
            "px gives all images the same features": ("equal", *encoder),
            "not weights": (place / "split", "--encoder", "weights.pth"),
            "not a folder": ("none", *encoder),
            "train and test, which are splits, .* rename the second to val": ("splits", *encoder),
            "none of the 24 images.* x.jpg": (place / "split", *encoder, "--labels", "others.csv"),
            "leave out --to": ("equal", *encoder, "--to", "labels.csv"),
        },
    )
