"""cl search: its answers against a dense product, its files, and what it refuses."""

import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import cl
from cl.commands.inputs import feature_files
from cl.runtime.tensor_files import save_tensors
from tests.support.files import write_features
from tests.support.pictures import picture_file
from tests.support.resnets import TRANSFORM, WIDTH, save_encoder
from tests.support.stages import assert_refused, run_cl

COUNT = 20
ODD = "<b>&amp;.jpg"  # the name of an image


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> SimpleNamespace:
    """A folder of images, an encoder, and the images' features in Parquet and NumPy files."""
    folder = tmp_path_factory.mktemp("search")
    for number in range(COUNT - 1):
        picture_file(folder / f"images/{number:02d}.jpg", number)
    picture_file(folder / "images" / ODD, COUNT)
    picture_file(folder / "new/a.jpg", 100)
    picture_file(folder / "new/b.jpg", 101)
    encoder = folder / "encoder.safetensors"
    save_encoder(encoder)
    for suffix in (".parquet", ".npy"):
        cl.embed(folder / "images", encoder=encoder, to=folder / f"features{suffix}")
    found = feature_files.read(folder / "features.parquet")
    unit = found.features / np.linalg.norm(found.features, axis=1, keepdims=True)
    return SimpleNamespace(
        folder=folder, path=folder / "features.parquet", encoder=encoder, names=found.names, unit=unit
    )


def test_images_find_the_largest_cosines(searched) -> None:
    """An image file, and a folder with another image."""
    (searched.folder / "more").mkdir()
    paths = [searched.folder / "new/a.jpg", searched.folder / "more/b.jpg"]
    paths[1].write_bytes((searched.folder / "new/b.jpg").read_bytes())
    matches = cl.search(searched.path, [paths[0], paths[1].parent], encoder=searched.encoder, top=5)
    queries = cl.load(searched.encoder).embed(paths).numpy()
    cosines = queries / np.linalg.norm(queries, axis=1, keepdims=True) @ searched.unit.T
    np.testing.assert_array_equal(matches.positions, np.argsort(-cosines, axis=1)[:, :5])
    np.testing.assert_allclose(matches.cosines, -np.sort(-cosines, axis=1)[:, :5], atol=1e-5)
    assert matches.names == searched.names


@pytest.mark.parametrize("file", ["features.parquet", "features.npy"])
def test_a_name_needs_no_encoder_and_does_not_find_itself(file, searched) -> None:
    expected = np.argsort(-searched.unit @ searched.unit[3], kind="stable")
    found = run_cl("search", searched.folder / file, "03.jpg", "--top", COUNT - 1, "--encoder", "missing")
    lines = found.stdout.splitlines()
    assert lines[:10] == run_cl("search", searched.folder / file, "03.jpg").stdout.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [searched.names[i] for i in expected if i != 3]
    cosines = [float(line.split()[0]) for line in lines]
    np.testing.assert_allclose(cosines, np.sort(searched.unit @ searched.unit[3])[::-1][1:], atol=6e-4)


def test_a_name_comes_before_a_file_here(searched, tmp_path, monkeypatch) -> None:
    expected = cl.search(searched.path, "03.jpg").positions
    monkeypatch.chdir(tmp_path)
    picture_file(tmp_path / "03.jpg", 5)
    np.testing.assert_array_equal(cl.search(searched.path, "03.jpg").positions, expected)
    found = run_cl("search", searched.path, "./03.jpg", "--encoder", searched.encoder).stdout
    assert found.startswith("1.000 05.jpg")


def test_files_of_features_are_queries_and_results_are_tables(searched, capsys) -> None:
    tables = {}
    for suffix in (".csv", ".parquet"):
        to = searched.folder / f"found{suffix}"
        run_cl("search", searched.path, searched.path, "--top", 2, "--to", to)
        tables[suffix] = pq.read_table(to) if suffix == ".parquet" else pa.csv.read_csv(to)
    rows = tables[".parquet"].to_pylist()
    assert tables[".csv"].to_pylist() == rows
    assert [row["query"] for row in rows] == list(np.repeat(searched.names, 2))
    assert [row["rank"] for row in rows] == COUNT * [1, 2]
    cosines = searched.unit @ searched.unit.T - 2 * np.eye(COUNT)
    nearest = np.argsort(-cosines, axis=1)[:, :2]
    assert [row["name"] for row in rows] == [searched.names[i] for i in nearest.ravel()]
    other = searched.folder / "copy.parquet"
    other.write_bytes(searched.path.read_bytes())
    assert cl.search(searched.path, other, top=1).cosines.min() > 0.9999  # another file finds the same images
    assert "record" not in capsys.readouterr().err
    cl.search(searched.path, searched.folder / "features.npy", top=1)
    assert "features.npy do not both record their encoder" in capsys.readouterr().err


def test_the_page_shows_the_pictures_and_needs_no_other_file(searched) -> None:
    """A picture that is gone is replaced by the reason; names are escaped."""
    to = searched.folder / "page.html"
    gone = searched.folder / "images/07.jpg"
    content = gone.read_bytes()
    gone.unlink()
    of = ["--encoder", searched.encoder]
    run_cl("search", searched.path, "03.jpg", searched.folder / "new", "--top", 19, *of, "--to", to)
    gone.write_bytes(content)
    page = to.read_text(encoding="utf-8")
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) == 3 * (1 + 19) - 3 and all(x.startswith("data:image/jpeg;base64,") for x in sources)
    assert page.startswith('<!doctype html><html lang="en">')
    assert 'alt="03.jpg"' in page and f'href="{(searched.folder / "images/03.jpg").as_uri()}"' in page
    assert f"{searched.path}, by {searched.encoder}" in page
    assert "No such file" in page and "&lt;b&gt;&amp;amp;.jpg" in page and ODD not in page
    assert "http" not in page
    queries = re.findall(r'<section class="cl"><figure>.*</figure><div><figure>', page)
    assert len(queries) == 3  # apart from what they find
    shown = cl.search(searched.path, ["03.jpg", "05.jpg"], top=14)._repr_html_()  # in notebooks
    assert shown.count("data:image/jpeg") == 2 * (1 + 10) and "body" not in shown


def test_a_page_of_features_without_their_folder_looks_here(searched, capsys, monkeypatch) -> None:
    monkeypatch.chdir(searched.folder / "images")
    path, page = searched.folder / "features.npy", searched.folder / "here.html"
    cl.search(path, path, top=2, to=page)
    assert "features.npy does not record the folder" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8").count("data:image") == 3 * COUNT


def test_features_record_where_their_encoder_is(searched, tmp_path, monkeypatch) -> None:
    """The same is used until it changes, or another is named; if it is gone, the default is."""
    encoder, to, new = tmp_path / "encoder.safetensors", tmp_path / "new.parquet", searched.folder / "new"
    save_encoder(encoder)
    monkeypatch.chdir(tmp_path)
    cl.embed(new, encoder="encoder.safetensors", to=to)
    monkeypatch.chdir(searched.folder)
    matches = cl.search(to, new / "a.jpg", top=1)
    assert repr(matches) == "Matches(queries: 1, images each: 1 of 2)"
    assert matches.names[matches.positions[0, 0]] == "a.jpg"
    save_encoder(encoder, seed=1)
    with pytest.raises(ValueError, match="came from another encoder"):
        cl.search(to, new / "a.jpg")
    cl.search(to, new / "a.jpg", encoder=searched.encoder)
    encoder.unlink()
    with pytest.raises(ValueError, match=r"models/backbone.safetensors does not exist.*--encoder.* this is "):
        cl.search(to, new / "a.jpg")


def test_the_prefix_of_an_encoder_is_recorded_however_it_is_given(searched, tmp_path) -> None:
    encoder, to, new = tmp_path / "two.safetensors", tmp_path / "new.parquet", searched.folder / "new"
    tensors = save_encoder(encoder).items()
    both = {f"{network}.{name}": x.clone() for network in ("one", "two") for name, x in tensors}
    save_tensors(both, encoder, {"transform": TRANSFORM.model_dump_json()})
    for given in ([encoder, "--prefix", "two."], [f"{encoder}:two."]):
        run_cl("embed", new, "--to", to, "--encoder", *given)
        notes = feature_files.read(to).notes
        assert (notes["encoder"], notes["prefix"]) == (str(encoder), "two.")
        assert len(cl.search(to, new / "a.jpg").names) == 2
    assert cl.export(
        "torchvision", encoder=f"{encoder}:two.", to=tmp_path / "exported.safetensors"
    ).path.exists()
    with pytest.raises(ValueError, match="would overwrite"):
        cl.export("torchvision", encoder=f"{encoder}:two.", to=encoder)


def test_names_agree_however_their_accents_are_encoded(tmp_path) -> None:
    """macOS lists names decomposed; people type them composed."""
    np.save(tmp_path / "a.npy", np.eye(2, 3, dtype=np.float32) + 1)
    (tmp_path / "a.txt").write_text("vo\u0308gel.jpg\nb.jpg\n")
    assert cl.search(tmp_path / "a.npy", "v\u00f6gel.jpg", top=1).queries == ["vo\u0308gel.jpg"]


def test_an_encoder_that_changes_in_memory_is_another_one(searched, tmp_path) -> None:
    encoder, new = cl.load(searched.encoder), searched.folder / "new"
    before, after = tmp_path / "before.parquet", tmp_path / "after.parquet"
    cl.embed(new, encoder=encoder, to=before)
    cl.search(searched.path, before)  # the encoder of the file
    with torch.no_grad():
        encoder.network.conv1.weight[0] += 1
    cl.embed(new, encoder=encoder, to=after)
    with pytest.raises(ValueError, match="another encoder"):
        cl.search(before, after)
    with pytest.raises(ValueError, match="another encoder"):
        cl.search(before, new, encoder=encoder)


def test_a_transform_that_cannot_be_recorded_is_refused(searched) -> None:
    encoder, new = cl.load(searched.encoder), searched.folder / "new"
    encoder.transform = torch.nn.Identity()
    for use in (cl.embed, partial(cl.search, searched.path)):
        with pytest.raises(ValueError, match="Identity, expected a Transform.*model_copy"):
            use(new, encoder=encoder)


def test_bad_input_gets_one_sentence(searched, tmp_path) -> None:
    path, new, of = searched.path, searched.folder / "new", ["--encoder", searched.encoder]
    other, resized = tmp_path / "other.safetensors", tmp_path / "resized.safetensors"
    save_encoder(other, seed=1)
    transform = TRANSFORM.model_copy(update={"resize": 40})
    save_encoder(resized, metadata={"transform": transform.model_dump_json()})
    infinite = searched.unit[:5].copy()
    infinite[3, 2] = np.inf
    large = 1e30 * searched.unit[:5]
    pq.write_table(pa.table({"path": ["a.jpg"], "embedding": [[1.0]]}), tmp_path / "their.parquet")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    (tmp_path / "empty").mkdir()
    foreign = write_features(tmp_path / "foreign.parquet", searched.unit[:3], {"sha256": "0" * 64})
    write_features(tmp_path / "plain.npy", searched.unit)
    none = write_features(tmp_path / "none.npy", np.ones((0, WIDTH)))
    narrow = write_features(tmp_path / "narrow.parquet", searched.unit[:3, :7])
    mistakes = {
        r"came from another encoder .*than .*other.safetensors.*embed": [path, new, "--encoder", other],
        r"another transform \(resize 20, not 40\) than .*resized": [path, new, "--encoder", resized],
        r"models/backbone.safetensors does not exist; give a checkpoint": [tmp_path / "plain.npy", new],
        r"7 features per image, not 64\) than .*encoder.safetensors": [narrow, new, *of],
        r"3.jpg in .* reach inf, expected finite numbers whose squares": [
            write_features(tmp_path / "infinite.parquet", infinite),
            "1.jpg",
        ],
        r"0.jpg in .* reach .*e.29, expected": [write_features(tmp_path / "large.parquet", large), "1.jpg"],
        r"their.parquet is not a file of features": [tmp_path / "their.parquet", "a.jpg"],
        r"another encoder .*embed the images of both": [path, foreign],
        r"no images.*empty": [path, tmp_path / "empty", *of],
        r"none.npy contains no features": [none, "1.jpg"],
        r"no file robin.jpg, and no image of that name": [path, "robin.jpg"],
        r"missing.parquet.*cl embed": [tmp_path / "missing.parquet", "a"],
        r"page.pdf .*\.html, \.csv or \.parquet": [path, "03.jpg", "--to", "page.pdf"],
        r"damaged.parquet cannot be read as a table": [path, tmp_path / "damaged.parquet", *of],
    }
    to = tmp_path / "nothing.csv"
    assert_refused(tmp_path, "search", {says: ["--to", to, *words] for says, words in mistakes.items()})
    assert not list(tmp_path.glob("nothing*"))


def test_an_encoder_that_records_no_size_gets_that_of_the_features(searched) -> None:
    encoder = searched.folder / "plain.safetensors"
    save_encoder(encoder, metadata={})
    (searched.folder / "config.json").write_text('{"model_args": {"stem_padding": 1}}')
    features = searched.folder / "small.parquet"
    cl.embed(searched.folder / "images", encoder=encoder, to=features, resize=24, crop=24)
    image = searched.folder / "images/05.jpg"
    matches = cl.search(features, image, encoder=encoder, top=1)
    assert matches.names[matches.positions[0, 0]] == "05.jpg" and matches.cosines[0, 0] > 0.9999
    loaded = cl.load(encoder)
    with pytest.raises(ValueError, match="resize 24, not 256"):
        cl.search(features, image, encoder=loaded)
    assert loaded.transform.resize == 256
    cl.embed(searched.folder / "images", encoder=encoder, to=features.with_suffix(".npy"), resize=24, crop=24)
    with pytest.raises(ValueError, match="neither .*small.npy nor .*plain.safetensors records the size"):
        cl.search(features.with_suffix(".npy"), image, encoder=encoder)
    matches = cl.search(searched.folder / "features.npy", image, encoder=searched.encoder, top=1)
    assert matches.names[matches.positions[0, 0]] == "05.jpg" and matches.cosines[0, 0] > 0.9999
