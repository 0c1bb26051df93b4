"""CIFAR-10 and CIFAR-100 from tiny archives, and CIFAR-10 from the real one if this machine has it."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.support.archives import splits_of, write_and_read


@pytest.mark.parametrize(("kind", "batch"), [("cifar10", "data_batch_3"), ("cifar100", "train")])
def test_cifar_keeps_pixels_and_labels(kind, batch, source, tmp_path) -> None:
    train, _ = write_and_read(splits_of(source(kind), tmp_path / "raw"), tmp_path / "shards")
    stored = {key.decode(): position for position, key in enumerate(train.keys)}
    (file,) = (tmp_path / "raw").glob(f"*/{batch}")
    rows = pickle.loads(file.read_bytes())["data"]
    first = 16 if kind == "cifar10" else 0
    for number, row in enumerate(rows):
        position = stored[f"train/{first + number:06d}"]
        image = train.pixels(position)
        for channel in range(3):  # a row holds red, then green, then blue, each line by line
            assert np.array_equal(
                image[:, :, channel].reshape(-1), row[1024 * channel : 1024 * (channel + 1)]
            )
        assert train.labels(position) == [3, 2, 1, 0][number % 4]


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
def test_only_the_first_images_of_each_split_are_used_on_request(kind, source, tmp_path) -> None:
    settings = source(kind)
    whole = splits_of(settings, tmp_path / "raw")
    part = splits_of(settings.model_copy(update={"first": 3}), tmp_path / "raw")
    for some, every in ((part.train, whole.train), (part.val, whole.val)):
        assert [image.read() for image in some] == [image.read() for image in every[:3]]
        assert [image.label for image in some] == [image.label for image in every[:3]]


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
    file.write_bytes(pickle.dumps(Trap()))
    archive = {
        "cifar10": "cifar-10-python.tar.gz .md5 c58f30108f",
        "cifar100": "cifar-100-python.tar.gz .md5 eb9058c3a3",
    }[kind]
    remedy = f"remove .*, and the next run will create it again from {archive}"
    with pytest.raises(ValueError, match=f"{name} is missing or has another md5 .*; {remedy}"):
        splits_of(settings, tmp_path / "raw")
    assert not Path("trap").exists()
