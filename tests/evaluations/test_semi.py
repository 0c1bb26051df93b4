"""Fixed lists of labels: SimCLR's 1 % and 10 % of ImageNet, here for a tiny ImageNet."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from cl import config
from cl.data.reader import Reader
from cl.evaluations import semi
from cl.runtime.registry import module_of
from tests.support.archives import write_and_read, write_imagenet_folders
from tests.support.project import compose
from tests.support.tiny import evaluated

URL = "https://example.org/1percent.txt"
NAMES = ["n00000002_0.JPEG", "n00000003_2.JPEG", "n00000001_1.JPEG", "n00000003_0.JPEG"]


def shards(tmp_path: Path, kind: str, **settings: object) -> tuple[Reader, Reader]:
    if not (tmp_path / "raw").exists():
        write_imagenet_folders(tmp_path / "raw/imagenet")
    return write_and_read(
        module_of("sources", kind).splits(SimpleNamespace(**settings), tmp_path / "raw"),
        tmp_path / f"{kind} shards",
    )


@pytest.fixture
def readers(tmp_path) -> tuple[Reader, Reader]:
    return shards(tmp_path, "imagenet", classes=3)


def shipped(tmp_path: Path, name: str = "semi_1_fastmoco") -> semi.Config:
    return config.check(compose(tmp_path, f"evaluation=[{name}]")).evaluations[name]


def listing(tmp_path: Path, names: list[str], **changes: object) -> semi.Config:
    """The shipped settings with a list of these names."""
    path = tmp_path / "list.txt"
    path.write_text("".join(f"{name}\n" for name in names))
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    named = {"list": str(path), "list_md5": md5, "list_url": URL}
    return shipped(tmp_path).model_copy(update=named | changes)


def keys(reader: Reader, positions) -> list[str]:  # type: ignore[no-untyped-def]
    return sorted(reader.keys[position].decode() for position in positions)


@pytest.mark.parametrize(("rate", "said"), [(0, "training a linear classifier"), (0.1, "fine-tuning")])
def test_the_report_says_what_was_trained(rate, said, tmp_path) -> None:
    numbers = shipped(tmp_path).model_copy(update={"backbone_lr": rate}).numbers()
    assert said in numbers["top1"].meaning


def test_a_list_names_the_labels(tmp_path, readers) -> None:
    chosen = semi.listed(listing(tmp_path, [*NAMES, NAMES[0]]), readers[0])
    assert keys(readers[0], chosen) == sorted(f"{name.split('_')[0]}/{name[:-5]}" for name in NAMES)
    assert list(chosen) == sorted(chosen)


def test_listed_classes_that_the_split_lacks_are_ignored(tmp_path) -> None:
    (tmp_path / "classes.txt").write_text("n00000003\nn00000001\n")
    train, _ = shards(tmp_path, "imagenet100", list=str(tmp_path / "classes.txt"))
    chosen = semi.listed(listing(tmp_path, NAMES), train)
    assert keys(train, chosen) == ["n00000001/n00000001_1", "n00000003/n00000003_0", "n00000003/n00000003_2"]
    with pytest.raises(ValueError, match="list.txt names 1 image missing .* example n00000002_0.JPEG"):
        semi.listed(listing(tmp_path, ["n00000002_0.JPEG"]), train)


def test_listed_images_that_are_missing_are_named(tmp_path, readers) -> None:
    wrong = [*NAMES, "n00000001_8.JPEG", "n00000001_7.JPEG"]
    with pytest.raises(ValueError, match=r"names 2 images .* n00000001_7.JPEG: .*=\[semi_1,semi_10\]"):
        semi.listed(listing(tmp_path, wrong), readers[0])


def test_a_list_with_another_hash_is_refused(tmp_path, readers) -> None:
    settings = listing(tmp_path, NAMES)
    found = settings.list_md5
    command = f"dvc import-url {URL} {tmp_path}/list.txt"
    with pytest.raises(ValueError, match=f"list.txt has md5 {found}, expected {'0' * 32}: .*`{command}`"):
        semi.listed(settings.model_copy(update={"list_md5": "0" * 32}), readers[0])
    (tmp_path / "list.txt").unlink()
    with pytest.raises(ValueError, match=rf"list.txt \(md5 {found}\) is missing: .*`{command}`"):
        semi.listed(settings, readers[0])
    with pytest.raises(ValueError, match="list.txt .* is missing: put it there"):
        semi.listed(settings.model_copy(update={"list_url": None}), readers[0])


def test_evaluation_trains_on_the_listed_labels_only(tmp_path, readers, here, quiet, tiny_backbone) -> None:
    params = config.check(compose(tmp_path, "dataset.resize=32", "dataset.crop=32"))
    context = evaluated(*readers, params, tiny_backbone, tmp_path)
    optim = params.evaluations["semi_1"].optim.model_copy(update={"epochs": 2})
    settings = listing(tmp_path, NAMES, optim=optim)
    assert semi.evaluate(settings, context)["backbone"]["labels"] == 4
    assert sorted((tmp_path / "labels.txt").read_text().split()) == sorted(
        f"{n.split('_')[0]}/{n[:-5]}" for n in NAMES
    )
