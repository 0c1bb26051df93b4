"""The contents of shards: copied, re-encoded and skipped images, as the webdataset library reads them too."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image as Picture

from cl.data.reader import Reader
from cl.images import decoding
from cl.shards import packing
from cl.shards.encoding import encode
from cl.sources import Storage
from cl.sources._shared.class_folders import class_folders
from tests.support.pictures import UNREADABLE, odd_tree, picture_file, tree
from tests.support.tiny import STORAGE, write_shards


@pytest.mark.parametrize("shard_images", [1, 4, 1000])
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_skipped_images_do_not_shift_keys_labels_or_pixels(tmp_path, shard_images) -> None:
    root = odd_tree(tmp_path / "own")
    write_shards(class_folders(root), tmp_path / "shards", shard_images, workers=2)
    reader = Reader(tmp_path / "shards", "train")
    files = {image.key: image for image in class_folders(root).train}
    assert {key.decode() for key in reader.keys} == files.keys() - UNREADABLE
    for position, (key, label) in enumerate(zip(reader.keys, reader.labels(), strict=True)):
        image = files[key.decode()]
        assert label == image.label
        assert reader.read(position) == image.read()
        assert np.array_equal(
            reader.pixels(position), decoding.decode(image.read(), levels=reader.manifest.levels)
        )
    shards = [shard.name for split in reader.manifest.splits.values() for shard in split.shards]
    assert shards == sorted(path.name for path in (tmp_path / "shards").glob("*.tar"))
    assert min(shard.images for shard in reader.manifest.splits["train"].shards) > 0


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_what_cannot_be_read_is_left_out_with_a_reason(tmp_path) -> None:
    """By every pass: to compare files, sample deep images, cut them and pack them. Reasons name no path."""
    root = odd_tree(tmp_path / "own")
    for seed, name in enumerate(("cat", "dog")):
        picture_file(root / "val" / name / "other.jpg", 300 + seed)  # `tree` has equal images in both splits
    for name, target in (("loop", "loop.png"), ("file", "0.jpg/1.png"), ("long", "long" * 100)):
        (root / "train" / "cat" / f"{name}.png").symlink_to(target)
    manifest = write_shards(class_folders(root), tmp_path / "shards", 10, deduplicate=True, tile=20)
    assert manifest.splits["train"].skipped == {
        "cat/truncated": "OSError: image file is truncated (28 bytes not processed)",
        "cat/empty": "ValueError: the file is empty",
        "cat/text": "ValueError: not an image, or an unsupported format",
        "cat/nowhere": "FileNotFoundError: No such file or directory",
        "cat/loop": "OSError: Too many levels of symbolic links",
        "cat/file": "NotADirectoryError: Not a directory",
        "cat/long": "OSError: File name too long",
    }


def test_reencoded_and_turned_images_are_counted(tmp_path) -> None:
    root = tree(tmp_path / "own")
    exif = Picture.Exif()
    exif[decoding.ORIENTATION] = 6
    for number, size in enumerate(((40, 50), (50, 40), (20, 30))):
        Picture.new("RGB", size).save(root / "train" / "cat" / f"turned {number}.jpg", exif=exif)
    splits = class_folders(root)
    shrunk = write_shards(splits, tmp_path / "shrunk", 2, shrink=30, upright=True).splits["train"]
    assert (shrunk.images, shrunk.reencoded, shrunk.turned) == (9, 2, 3)
    reader = Reader(tmp_path / "shrunk", "train")
    shapes = {key.decode(): reader.pixels(position).shape for position, key in enumerate(reader.keys)}
    assert [shapes[f"cat/turned {number}"] for number in range(3)] == [(30, 38, 3), (38, 30, 3), (20, 30, 3)]
    plain = write_shards(splits, tmp_path / "plain", 2).splits["train"]
    assert (plain.reencoded, plain.turned) == (0, 0)
    every = write_shards(splits, tmp_path / "every", 2, encode="jpeg").splits["train"]
    assert (every.reencoded, every.turned) == (9, 0)


def by_webdataset(folder: Path, split: str, *how: str) -> Iterator[dict]:
    urls = sorted(str(path) for path in folder.glob(f"{split}-*.tar"))
    return iter(webdataset.WebDataset(urls, shardshuffle=False).decode(*how))


def assert_same_samples(reader: Reader, samples: Iterator[dict], extension: str) -> None:
    """Compare the library's samples with our reader's."""
    number = -1
    for number, sample in enumerate(samples):
        assert sample["__key__"].encode() == reader.keys[number]
        assert sample["cls"] == reader.labels()[number]
        assert np.array_equal(np.asarray(sample[extension]), reader.pixels(number))
    assert number + 1 == len(reader) > 0


def test_the_webdataset_library_reads_the_shards(shard_folder) -> None:
    assert_same_samples(Reader(shard_folder, "train"), by_webdataset(shard_folder, "train", "pil"), "jpg")


def test_the_webdataset_library_reads_raw_pixels(tmp_path) -> None:
    write_shards(class_folders(tree(tmp_path / "own")), tmp_path / "shards", 4, encode="raw", shrink=10)
    reader = Reader(tmp_path / "shards", "train")
    assert_same_samples(reader, by_webdataset(tmp_path / "shards", "train"), "npy")
    assert reader.pixels(0).shape == (10, 15, 3)


def test_images_are_stored_in_the_order_of_the_list(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(packing, "THREADS", 1)  # more images than are read ahead
    listed = class_folders(tree(tmp_path / "own", 6)).train[::-1]
    storage = Storage(shard_images=12, **STORAGE)
    packed = packing.pack(listed, lambda content, samples: [encode(content, storage)], tmp_path / "a.tar")
    assert packed.keys.tolist() == [image.key.encode() for image in listed]
