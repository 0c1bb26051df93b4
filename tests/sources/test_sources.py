"""Every data source on a tiny archive in its official layout; CIFAR-10 also on the real one, where it is at hand."""

import hashlib
import io
import pickle
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image as Picture
from torchvision.datasets import CIFAR10, CIFAR100, STL10

from cl import config
from cl.data.reader import Reader
from cl.evaluations import Context, knn, linear, semi
from cl.pretraining import monitor
from cl.runtime import machine
from cl.runtime.kinds import kinds, module_of
from cl.sources import UNLABELLED, Source, Splits, cifar10, cifar100, imagenet, raw_images, stl10
from cl.sources._shared import imagenet as archive
from cl.training.checkpoints import Checkpoints
from tests.support.project import ROOT, TINY, compose
from tests.support.tiny import evaluated, write_shards

REAL = ROOT.parent / "shared" / "data" / "cifar-10-batches-py.tar.xz"
CLASSES = ["apple", "bee", "cup", "dog"]


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def class_folders(root: Path) -> None:
    for split, count in (("train", 3), ("val", 2)):
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                Picture.fromarray(noise(number, 40, 50, 3)).save(root / split / name / f"{number}.JPEG")


def hashed(official: type, folder: Path) -> type:
    """One of torchvision's archives with the hashes of the files in `folder`, which no server offers."""

    def md5(name: str) -> str:
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    tiny = {
        name: [[file, md5(file)] for file, _ in getattr(official, name)]
        for name in ("train_list", "test_list")
    }
    if meta := getattr(official, "meta", None):
        tiny["meta"] = {**meta, "md5": md5(meta["filename"])}
    return type("Tiny", (official,), {**tiny, "url": "http://127.0.0.1:9/nothing"})


def tiny_cifar(official: type[CIFAR10], raw: Path, key: str) -> type[CIFAR10]:
    """Files as in the official archive, eight images each, and the class with their hashes instead of the official ones."""
    folder = raw / official.base_folder
    folder.mkdir(parents=True)
    for number, (name, _) in enumerate([*official.train_list, *official.test_list]):
        value = {"data": noise(number, 8, 3072), key: [3, 2, 1, 0] * 2, "coarse_labels": [9] * 8}
        (folder / name).write_bytes(pickle.dumps(value))
    (folder / official.meta["filename"]).write_bytes(pickle.dumps({official.meta["key"]: CLASSES}))
    return hashed(official, folder)


def tiny_stl10(raw: Path) -> type[STL10]:
    """Three labelled images a class, the eight test images, and unlabelled ones that are the test images and noise.

    A class is a pattern with a little noise, so that the nearest neighbours of an image are of its class.
    """
    folder = raw / "stl10_binary"
    folder.mkdir(parents=True)
    (folder / "class_names.txt").write_text("\n".join(CLASSES) + "\n")
    patterns = noise(0, 4, 3, 96, 96) // 2
    images = {}
    for name, count in (("train", 3), ("test", 2)):
        labels = np.tile(np.arange(4), count)
        images[name] = patterns[labels] + noise(count, len(labels), 3, 96, 96) // 4
        (folder / f"{name}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())
    images["unlabeled"] = np.concatenate([images["test"], noise(9, 12, 3, 96, 96)])
    for name, pixels in images.items():
        (folder / f"{name}_X.bin").write_bytes(pixels.tobytes())
    return hashed(STL10, folder)


@pytest.fixture
def source(tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    """The shipped configuration of a source, and below `tmp_path / "raw"` a tiny archive for it."""

    def make(kind: str) -> Source:
        raw, extra = tmp_path / "raw", []
        if kind in ("imagenet", "imagenet100"):
            class_folders(raw / "imagenet")
        if kind == "imagenet":
            extra = [f"dataset.classes={len(CLASSES)}"]
        if kind == "imagenet100":
            (tmp_path / "list.txt").write_text("\n".join(CLASSES))
            extra = [f"dataset.list={tmp_path / 'list.txt'}"]
        if kind == "folder":
            class_folders(raw / "folder")
        if kind == "photos":
            extra = TINY
        if kind == "cifar10":
            monkeypatch.setattr(cifar10, "CIFAR10", tiny_cifar(CIFAR10, raw, "labels"))
        if kind == "cifar100":
            monkeypatch.setattr(cifar100, "CIFAR100", tiny_cifar(CIFAR100, raw, "fine_labels"))
        if kind == "stl10":
            monkeypatch.setattr(stl10, "STL10", tiny_stl10(raw))
        return config.check(compose(tmp_path, f"dataset={kind}", *extra)).dataset

    return make


def splits(source: Source, raw: Path) -> Splits:
    return module_of("sources", source.kind).splits(source, raw)


def write(found: Splits, folder: Path, shard_images: int = 10) -> tuple[Reader, Reader]:
    write_shards(found, folder, shard_images)
    return Reader(folder, "train"), Reader(folder, "val")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", kinds("sources"))
def test_every_source_keeps_the_contract(kind, source, tmp_path) -> None:
    """Labels number the classes, every image is read, and a second preparation writes the same bytes."""
    settings = source(kind)
    found = splits(settings, tmp_path / "raw")
    known = set(range(len(found.classes)))
    assert {image.label for image in found.val} == known
    assert {image.label for image in found.train} - {UNLABELLED} == known
    readers = write(found, tmp_path / "a")
    assert [len(reader) for reader in readers] == [len(found.train), len(found.val)]
    write(splits(settings, tmp_path / "raw"), tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("kind", sorted({*kinds("sources")} - {"photos"}))
def test_a_source_says_where_files_go(kind, source, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"no (file|folder) .*put .*nowhere.* CL_RAW") as error:
        splits(source(kind), tmp_path / "nowhere")
    assert "\n" not in str(error.value)


def test_imagenet_is_every_class_folder_in_the_order_of_wnids(source, tmp_path) -> None:
    settings = source("imagenet")
    (tmp_path / "raw/imagenet/train/n01").mkdir()
    Picture.new("RGB", (9, 9)).save(tmp_path / "raw/imagenet/train/n01/1.JPEG")
    with pytest.raises(ValueError, match="imagenet/val lacks 1 of 5 classes, the first is n01"):
        splits(settings, tmp_path / "raw")
    (tmp_path / "raw/imagenet/train/n01").rename(tmp_path / "raw/imagenet/val/n01")
    with pytest.raises(ValueError, match="imagenet/val has the class n01, which"):
        splits(settings, tmp_path / "raw")
    (tmp_path / "raw/imagenet/val/n01").rename(tmp_path / "n01")
    found = splits(settings, tmp_path / "raw")
    assert found.classes == CLASSES
    assert [(image.key, image.label) for image in found.val[:3]] == [
        ("apple/0", 0),
        ("apple/1", 0),
        ("bee/0", 1),
    ]


def test_raw_images_come_back_pixel_for_pixel() -> None:
    pixels = noise(0, 5, 3, 8, 12).transpose(0, 2, 3, 1)
    images = raw_images("some", Path("archive"), pixels, [1, 0, UNLABELLED, 2, 3])
    assert [image.key for image in images[:2]] == ["some/000000", "some/000001"]
    assert [image.label for image in images] == [1, 0, UNLABELLED, 2, 3]
    for image, expected in zip(images, pixels, strict=True):
        assert image.read() == image.read()
        with Picture.open(io.BytesIO(image.read())) as picture:
            assert picture.format == "PNG"
            assert np.array_equal(np.asarray(picture), expected)


@pytest.mark.parametrize(("kind", "batch"), [("cifar10", "data_batch_3"), ("cifar100", "train")])
def test_cifar_keeps_pixels_and_labels(kind, batch, source, tmp_path) -> None:
    train, _ = write(splits(source(kind), tmp_path / "raw"), tmp_path / "shards")
    stored = {key.decode(): position for position, key in enumerate(train.keys)}
    (file,) = (tmp_path / "raw").glob(f"*/{batch}")
    rows = pickle.loads(file.read_bytes())["data"]
    first = 16 if kind == "cifar10" else 0
    for number, row in enumerate(rows):
        position = stored[f"train/{first + number:06d}"]
        image = train.pixels(position)
        for channel in range(3):  # a row is red, green, blue, each line by line
            assert np.array_equal(
                image[:, :, channel].reshape(-1), row[1024 * channel : 1024 * (channel + 1)]
            )
        assert train.labels[position] == [3, 2, 1, 0][number % 4]


class Trap:
    def __reduce__(self):  # type: ignore[no-untyped-def]
        return Path.touch, (Path("trap"),)


@pytest.mark.parametrize(
    ("kind", "name"), [("cifar10", "data_batch_3"), ("cifar10", "batches.meta"), ("cifar100", "meta")]
)
def test_a_foreign_pickle_is_never_opened(kind, name, source, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = source(kind)
    (file,) = (tmp_path / "raw").glob(f"*/{name}")
    content = pickle.dumps(Trap())
    file.write_bytes(content)
    md5 = hashlib.md5(content).hexdigest()
    archive = {
        "cifar10": "cifar-10-python.tar.gz .md5 c58f30108f",
        "cifar100": "cifar-100-python.tar.gz .md5 eb9058c3a3",
    }[kind]
    with pytest.raises(
        ValueError,
        match=f"{name} has md5 {md5}, expected .*; remove .*: the next run makes it anew from {archive}",
    ):
        splits(settings, tmp_path / "raw")
    assert not Path("trap").exists()
    file.unlink()
    with pytest.raises(ValueError, match=f"no file .*/{name}; remove .* anew from {archive}"):
        splits(settings, tmp_path / "raw")


@pytest.mark.skipif(not REAL.exists(), reason="the official CIFAR-10 files are not at hand")
def test_the_real_cifar10_equals_torchvisions(tmp_path) -> None:
    shutil.unpack_archive(REAL, tmp_path)
    found = splits(config.check(compose(tmp_path, "dataset=cifar10")).dataset, tmp_path)
    assert found.classes[0] == "airplane"
    for images, count in ((found.train, 5000), (found.val, 1000)):
        assert np.bincount([image.label for image in images]).tolist() == [count] * 10
    readers = write(
        Splits(found.classes, found.train[::10], found.val[::10]), tmp_path / "shards", 500
    )  # all take 25 s
    for reader, train in zip(readers, (True, False), strict=True):
        expected = CIFAR10(tmp_path, train=train)
        for position in range(0, len(reader), len(reader) // 500):
            picture, label = expected[int(reader.keys[position].split(b"/")[1])]
            assert np.array_equal(reader.pixels(position), np.asarray(picture))
            assert reader.labels[position] == label


@pytest.fixture
def stl(source, tmp_path) -> tuple[Reader, Reader]:
    return write(splits(source("stl10"), tmp_path / "raw"), tmp_path / "shards")


def test_stl10_trains_on_labelled_and_unlabelled_images(stl, tmp_path) -> None:
    train, val = stl
    assert (len(train), len(val)) == (12 + 20, 8)
    names = np.array([key.decode().split("/")[0] for key in train.keys])
    assert set(names[train.labelled]) == {"train"}
    assert len(train.labelled) == 12
    assert set(train.labels[names == "unlabeled"]) == {UNLABELLED}
    assert np.array_equal(val.labelled, np.arange(8))
    for position in (0, 11, 31):
        name, number = train.keys[position].decode().split("/")
        content = (tmp_path / f"raw/stl10_binary/{name}_X.bin").read_bytes()
        image = train.pixels(position)
        for y, x, channel in (
            (0, 0, 0),
            (0, 95, 1),
            (95, 0, 2),
            (17, 60, 0),
        ):  # the file goes column by column
            assert image[y, x, channel] == content[int(number) * 27648 + channel * 9216 + x * 96 + y]
        if name == "train":
            assert (
                train.labels[position]
                == (tmp_path / "raw/stl10_binary/train_y.bin").read_bytes()[int(number)] - 1
            )


@pytest.mark.parametrize(
    "name", ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin"]
)
def test_stl10_files_that_are_not_the_official_ones_are_named(name, source, tmp_path) -> None:
    settings = source("stl10")
    path = tmp_path / "raw" / "stl10_binary" / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    remedy = f"remove {path.parent}: the next run makes it anew from stl10_binary.tar.gz .md5 91f7769df0f17e"
    with pytest.raises(ValueError, match=f"{name} has md5 [0-9a-f]+, expected [0-9a-f]+; {remedy}") as error:
        splits(settings, tmp_path / "raw")
    assert "\n" not in str(error.value)
    path.unlink()
    with pytest.raises(ValueError, match=f"no file {path}; {remedy}"):
        splits(settings, tmp_path / "raw")


@pytest.mark.parametrize("names", [None, "", "apple bee cup", "a b c d e"])
def test_stl10_needs_a_name_for_every_class(names, source, tmp_path) -> None:
    settings = source("stl10")
    path = tmp_path / "raw/stl10_binary/class_names.txt"
    path.unlink() if names is None else path.write_text(names)
    count = len((names or "").split())
    with pytest.raises(
        ValueError, match=f"class_names.txt has {count} names for 4 classes: take it from stl10_binary.tar.gz"
    ):
        splits(settings, tmp_path / "raw")


def test_a_class_without_labelled_image_is_refused(source, tmp_path, monkeypatch) -> None:
    settings = source("stl10")
    (tmp_path / "raw/stl10_binary/train_y.bin").write_bytes(bytes([2, 3, 4] * 4))
    monkeypatch.setattr(stl10, "STL10", hashed(STL10, tmp_path / "raw/stl10_binary"))
    with pytest.raises(ValueError, match="class apple has no readable image in train"):
        write(splits(settings, tmp_path / "raw"), tmp_path / "shards")


class Recording(Reader):
    """Notes the positions whose images were decoded."""

    def __init__(self, folder: Path, split: str) -> None:
        super().__init__(folder, split)
        self.seen: set[int] = set()

    def pixels(self, position: int) -> np.ndarray:
        self.seen.add(int(position))
        return super().pixels(position)


@pytest.fixture
def params(stl, tmp_path) -> config.Params:
    parts = ["evaluations.linear.optim", "evaluations.semi_1.optim", "baselines.supervised.training.optim"]
    sizes = [f"{part}.{size}" for part in parts for size in ("batch_size=12", "epochs=1")]
    small = ["dataset.resize=32", "dataset.crop=32", "optim.monitor.k=3"]
    small += ["baselines.supervised.training.optim.warmup_epochs=0"]
    return config.check(compose(tmp_path, "dataset=stl10", *small, *sizes))


@pytest.fixture
def context(stl, params, here, quiet, tiny_backbone, tmp_path) -> Context:
    return evaluated(
        Recording(tmp_path / "shards", "train"),
        Reader(tmp_path / "shards", "val"),
        params,
        tiny_backbone,
        tmp_path,
    )


def test_the_bank_of_knn_is_the_labelled_images(context, params) -> None:
    """The test images themselves are among the unlabelled ones, and would be the nearest."""
    settings = params.evaluations["knn"].model_copy(update={"k": 12})
    assert knn.evaluate(settings, context)["pixels_top1"] == 100
    with pytest.raises(ValueError, match="k=13 needs as many labelled training images, there are 12"):
        knn.evaluate(settings.model_copy(update={"k": 13}), context)


def test_linear_evaluation_trains_on_the_labelled_images(context, params) -> None:
    linear.evaluate(params.evaluations["linear"], context)
    assert context.train.seen == set(context.train.labelled)


def test_semi_chooses_among_the_labelled_images(context, params) -> None:
    settings = params.evaluations["semi_1"]
    metrics = semi.evaluate(settings.model_copy(update={"fraction": 1.0}), context)
    keys = (context.out / "labels.txt").read_text().split()
    assert metrics["labels"] == 12
    assert sorted(keys) == [f"train/{number:06d}" for number in range(12)]
    assert semi.evaluate(settings, context)["labels"] == 4


def test_the_monitor_looks_at_the_first_labelled_images(context, params, here, quiet) -> None:
    settings = params.optim.monitor.model_copy(update={"bank": 5})
    method = SimpleNamespace(backbone=context.backbone, projector=torch.nn.Identity())
    task = SimpleNamespace(method=method, machine=here, alignment=torch.zeros(()), progress=0.0)
    monitor.watch(task, settings, context.train, context.val, source=context.source, progress=quiet)
    assert context.train.seen == set(context.train.labelled[:5])


def test_the_supervised_baseline_trains_on_the_labelled_images(
    context, params, here, tmp_path, monkeypatch
) -> None:
    from pipeline import baseline, locations

    monkeypatch.setattr(
        machine, "find", lambda *_, **__: here
    )  # without workers, which would note what they read
    monkeypatch.setattr(locations, "reader", lambda split: context.train)
    baseline.train(
        params.baselines["supervised"], "supervised", params, Checkpoints(tmp_path / "checkpoints", 60)
    )
    assert context.train.seen == set(context.train.labelled)


WNIDS = ["n00000003", "n00000001", "n00000002"]  # in the order of their numbers in the devkit


def imagenet_folders(root: Path) -> None:
    """Class folders: three training and two validation images a class."""
    for label, wnid in enumerate(WNIDS):
        for split, count in (("train", 3), ("val", 2)):
            (root / split / wnid).mkdir(parents=True)
            for number in range(count):
                name = (
                    f"{wnid}_{number}" if split == "train" else f"ILSVRC2012_val_{2 * label + number + 1:08d}"
                )
                Picture.fromarray(noise(10 * label + number, 40, 50, 3)).save(
                    root / split / wnid / f"{name}.JPEG"
                )


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def imagenet_archives(folders: Path, root: Path) -> None:
    """The same images in the official archives."""
    root.mkdir(parents=True)
    with tarfile.open(root / archive.TRAIN, "w") as outer:
        for wnid in WNIDS:
            memory = io.BytesIO()
            with tarfile.open(fileobj=memory, mode="w") as inner:
                for path in sorted((folders / "train" / wnid).iterdir(), reverse=True):
                    add(inner, path.name, path.read_bytes())
            add(outer, f"{wnid}.tar", memory.getvalue())
    with tarfile.open(root / archive.VAL, "w") as tar:
        for path in sorted((folders / "val").rglob("*.JPEG"), key=lambda p: p.name):
            add(tar, path.name, path.read_bytes())
    fields = [(name, "O") for name in ("ILSVRC2012_ID", "WNID", "words")]
    synsets = np.array([(number + 1, wnid, "words") for number, wnid in enumerate(WNIDS)], fields)
    meta = io.BytesIO()
    scipy.io.savemat(meta, {"synsets": synsets})
    with tarfile.open(root / archive.DEVKIT, "w:gz") as tar:
        add(tar, archive.META, meta.getvalue())
        add(tar, archive.TRUTH, b"1\n1\n2\n2\n3\n3\n")


def test_imagenet_is_the_same_from_archives_as_from_folders(tmp_path) -> None:
    """Byte-identical shards, for all classes and for a list of them."""
    imagenet_folders(tmp_path / "folders/imagenet")
    imagenet_archives(tmp_path / "folders/imagenet", tmp_path / "archives/imagenet")
    (tmp_path / "list.txt").write_text("n00000002\nn00000003\n")
    for kind, settings in (
        ("imagenet", {"classes": 3}),
        ("imagenet100", {"list": str(tmp_path / "list.txt")}),
    ):
        module = module_of("sources", kind)
        for name in ("folders", "archives"):
            found = module.splits(SimpleNamespace(**settings), tmp_path / name)
            write_shards(found, tmp_path / kind / name, 4)
        files = sorted(p.name for p in (tmp_path / kind / "folders").iterdir())
        assert files == sorted(p.name for p in (tmp_path / kind / "archives").iterdir())
        for file in files:
            assert (tmp_path / kind / "folders" / file).read_bytes() == (
                tmp_path / kind / "archives" / file
            ).read_bytes()


def test_wrong_imagenet_archives_are_named(tmp_path) -> None:
    imagenet_folders(tmp_path / "folders")
    root = tmp_path / "raw" / "imagenet"
    with pytest.raises(ValueError, match=r"no folder .*train, and no file .*ILSVRC2012_img_train.tar: put"):
        imagenet.splits(SimpleNamespace(classes=3), tmp_path / "raw")
    imagenet_archives(tmp_path / "folders", root)
    whole = (root / archive.TRAIN).read_bytes()
    (root / archive.TRAIN).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"ILSVRC2012_img_train.tar is no complete archive .*: get it again"):
        imagenet.splits(SimpleNamespace(classes=3), tmp_path / "raw")
    for bad in ("../n00000001.tar", "/n00000001.tar", "notes.txt"):
        with tarfile.open(root / archive.TRAIN, "w") as tar:
            add(tar, bad, b"")
        with pytest.raises(ValueError, match="which the official archive has not"):
            imagenet.splits(SimpleNamespace(classes=3), tmp_path / "raw")
    with tarfile.open(root / archive.TRAIN, "w") as tar:
        link = tarfile.TarInfo("n00000001.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(ValueError, match="which the official archive has not"):
        imagenet.splits(SimpleNamespace(classes=3), tmp_path / "raw")
    (root / archive.TRAIN).write_bytes(whole)
    with tarfile.open(root / archive.VAL, "w") as tar:
        add(tar, "ILSVRC2012_val_00000001.JPEG", b"")
    with pytest.raises(
        ValueError, match=r"ILSVRC2012_img_val.tar has 1 images, expected number 1 to 6, as the ground truth"
    ):
        imagenet.splits(SimpleNamespace(classes=3), tmp_path / "raw")
