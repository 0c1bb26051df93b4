"""cl duplicates: planted copies among photographs, a warning across splits, and what it refuses."""

import re
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image as Picture

import cl
from cl.features import copies
from cl.images import photographs
from tests.support.files import read_csv
from tests.support.resnets import save_encoder
from tests.support.stages import assert_refused, run_cl

PLANTED = ("astronaut", "chelsea", "china", "coffee", "flower", "rocket")  # a copy of each, of one kind each


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> SimpleNamespace:
    """Twenty photographs (training), and copies of six of them with three others (validation)."""
    folder = tmp_path_factory.mktemp("duplicates")
    for split in ("train", "val"):
        (folder / split).mkdir()
    rng = np.random.default_rng(0)
    for name, path in photographs.files().items():
        picture = Picture.open(path).convert("RGB").resize((160, 120))
        picture.save(folder / f"train/{name}.png")
        if name in PLANTED:
            change = copies.CHANGES[PLANTED.index(name)]
            change(picture, rng).save(folder / f"val/{name}-{change.__name__}.png")
    for number in range(3):
        noise = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Picture.fromarray(noise).resize((160, 120)).save(folder / f"val/other{number}.png")
    encoder = folder / "encoder.safetensors"
    save_encoder(encoder)
    for split in ("train", "val"):
        cl.embed(folder / split, encoder=encoder, to=folder / f"{split}.parquet")
    cl.embed(folder / "train", encoder=encoder, to=folder / "train.npy")
    return SimpleNamespace(folder=folder, encoder=encoder)


def test_planted_copies_are_found_and_splits_that_share_images_are_reported(planted) -> None:
    to = planted.folder / "duplicates.csv"
    files = [planted.folder / f"{split}.parquet" for split in ("train", "val")]
    output = run_cl("duplicates", *files, "--encoder", planted.encoder, "--to", to).output
    rows = read_csv(to)
    groups: dict[str, set[str]] = {}
    for row in rows:
        groups.setdefault(row["group"], set()).add(row["name"])
        assert row["same_as"].split("-")[0].split(".")[0] == row["name"].split("-")[0].split(".")[0]
        assert {row["split"], row["same_as_split"]} == {"train", "val"}
        assert 0 < float(row["agreement"]) <= 1 and 0 < float(row["cosine"]) <= 1
    expected = [{f"{name}.png", f"{name}-{copies.CHANGES[i].__name__}.png"} for i, name in enumerate(PLANTED)]
    assert list(groups.values()) == expected and list(groups) == ["1", "2", "3", "4", "5", "6"]
    assert re.search(r"warning: .*val.parquet has copies of images in .*train.parquet .6.:", output)
    shares = re.findall(
        r"(resized|recompressed|resized and recompressed|cropped|flipped|brightness) (\d+) %", output
    )
    assert len(shares) == 6 and np.mean([int(share) for _, share in shares]) > 85
    assert re.search(r"found [\d.]+ % of 84 made copies", output)
    wrong, pairs = re.search(r"agreement of pixels: (\d+) of (\d+) pairs", output).groups()
    assert int(wrong) <= len(PLANTED)  # they may count
    assert 29 * 28 / 2 - 15 * 14 / 2 - 6 < int(pairs) <= 29 * 28 / 2 - 15 * 14 / 2


def test_files_of_equal_names_are_told_apart(planted, tmp_path) -> None:
    files = [tmp_path / split / "features.parquet" for split in ("train", "val")]
    for file in files:
        file.parent.mkdir()
        file.write_bytes((planted.folder / f"{file.parent.name}.parquet").read_bytes())
    found = cl.duplicates(files, encoder=planted.encoder)
    assert {copy.split for copy in found} == {str(file) for file in files}


def test_without_copies_nothing_is_found(planted, capfd) -> None:
    """A .npy file records neither the folder nor the encoder."""
    to = planted.folder / "none.parquet"
    images = planted.folder / "train"
    found = cl.duplicates(planted.folder / "train.npy", images=images, encoder=planted.encoder, to=to)
    assert found == []
    assert f"train.npy and {planted.encoder} do not both record their encoder" in capfd.readouterr().err
    assert pq.read_table(to).num_rows == 0 and pq.read_table(to).column_names[:2] == ["group", "name"]


def test_equal_files_are_one_group(planted, tmp_path) -> None:
    for number in range(4):
        content = planted.folder / f"train/{'coffee' if number < 3 else 'rocket'}.png"
        (tmp_path / f"{number}.png").write_bytes(content.read_bytes())
    Picture.effect_noise((70_000, 40), 99).save(tmp_path / "wider than a JPEG may be.png")
    cl.embed(tmp_path, encoder=planted.encoder, to=tmp_path / "features.parquet")
    to = tmp_path / "copies.html"
    found = cl.duplicates(tmp_path / "features.parquet", encoder=planted.encoder, to=to)
    (shown,) = re.findall(r'<section class="cl">(.*)</section>', to.read_text(encoding="utf-8"))
    assert re.findall('alt="(.*?)"', shown) == ["0.png", "1.png", "2.png"] and "1.000 features 1.png" in shown
    assert [(copy.group, copy.name) for copy in found] == [(1, "0.png"), (1, "1.png"), (1, "2.png")]
    assert min(copy.cosine for copy in found) > 0.9999 and min(copy.agreement for copy in found) > 0.9999


@pytest.mark.parametrize(("different", "said"), [(1, "equal, so how many"), (4, "% of 12 made copies")])
def test_equal_files_measure_what_is_found_once(different, said, planted, tmp_path, capfd) -> None:
    """By copies of half of the different images; a single one measures nothing."""
    for number in range(40):
        name = ("china", "coffee", "flower", "rocket")[max(0, number - 40 + different)]
        (tmp_path / f"{number}.png").write_bytes((planted.folder / f"train/{name}.png").read_bytes())
    cl.embed(tmp_path, encoder=planted.encoder, to=tmp_path / "features.parquet")
    assert len(cl.duplicates(tmp_path / "features.parquet", encoder=planted.encoder)) == 41 - different
    assert said in capfd.readouterr().err


def test_bad_input_gets_one_sentence(planted, tmp_path) -> None:
    parquet, array = planted.folder / "train.parquet", planted.folder / "train.npy"
    (tmp_path / "without moon").mkdir()
    for path in (planted.folder / "train").iterdir():
        if path.stem != "moon":
            (tmp_path / "without moon" / path.name).symlink_to(path)
    cl.embed(planted.folder / "train/moon.png", encoder=planted.encoder, to=tmp_path / "one.parquet")
    mistakes = {
        r"no image .*moon.png.*--images": [parquet, "--images", tmp_path / "without moon"],
        r"one.parquet has features of 1 image": [tmp_path / "one.parquet"],
        r"no image .*png, which is in the features.*--images": [array],
        r"found .*train.parquet, .*train.parquet; give one": [parquet] * 2,
        r"found .*, .*, .*; give one file of features, or those of training and": [parquet] * 3,
    }
    of = ["--encoder", planted.encoder, "--to", tmp_path / "nothing.csv"]
    assert_refused(tmp_path, "duplicates", {says: [*words, *of] for says, words in mistakes.items()})
    assert not list(tmp_path.glob("nothing*"))
    with pytest.raises(ValueError, match="found no files; give one"):
        cl.duplicates([])
