"""check: refuse wrong parameters before DVC removes the outputs of the stages that would run again."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import click
from dvc.repo import Repo

from cl.config.params import Transfer
from cl.config.rules import check_data
from cl.console import launch
from cl.images import folders
from cl.runtime.stores import is_url
from pipeline.support import command, locations

CHECKED = Path("data/checked.txt")  # `prepare` runs again if it changes
DETECTION = Path("data/detection")  # a file for each transfer, which runs again if its own changes
PASSED = "params.yaml passed pipeline.check.\n"


@click.command()
@command.entry_point
def main() -> None:
    """Check params.yaml, and whether the raw data is there if `prepare` has to read it.

    If the shards are there, check also that they have enough images and labels. Summarise a folder of your
    own images and raw detection data, so that `prepare` and transfers run again if they change.
    """
    _write(CHECKED, PASSED)  # even if the check fails
    params, raw = command.params(), locations.raw()
    dataset = params.dataset
    folder = dataset.watched(raw)
    try:
        dataset.check_present(raw)
        if folder and not is_url(folder):
            table = locations.table_sha256(dataset)
            _write(CHECKED, f"{PASSED}{dataset.kind}: {folders.summary(folder)}, table {table}\n")
    except ValueError:
        _write(CHECKED, _of_last_run())
        if _inputs_of_prepare_changed():
            raise
    summarise_detection(params.transfers, Path(str(raw)))  # nothing is found below a URL
    if locations.SHARDS.is_dir() and not _inputs_of_prepare_changed():
        processes = 1 if "CL_LAUNCH" in os.environ else launch.processes()
        check_data(*locations.data(params), processes)


def summarise_detection(transfers: dict[str, Transfer], raw: Path) -> None:
    """Summarise the data of each transfer; what is not on this machine keeps its last summary."""
    for path in DETECTION.glob("*.txt"):
        if path.stem not in transfers and "DVC_STAGE" in os.environ:
            path.unlink()
    for name in transfers or ["none"]:  # DVC warns of an empty folder
        path, text = DETECTION / f"{name}.txt", "no raw data\n"
        if name in transfers and transfers[name].data == "raw":
            try:
                text = f"{_summary(transfers[name], raw)}\n"
            except OSError:
                with suppress(Exception), Repo() as repo:  # of many libraries, if DVC cannot fetch it
                    text = repo.dvcfs.read_text(path.as_posix())
        _write(path, text)


def _summary(transfer: Transfer, raw: Path) -> str:
    """A hash of the lists, the annotations and, as in `folders.summary`, the images of a transfer.

    Raises:
        OSError: a list is missing, or COCO's annotations.
    """
    sha = hashlib.sha256()
    for split in (*transfer.train, transfer.test):
        listed, images = raw / "coco" / "annotations" / f"instances_{split}.json", raw / "coco" / split
        if transfer.kind == "voc":
            year, name = split.split("/")
            folder = raw / "VOCdevkit" / f"VOC{year}"
            listed, images = folder / "ImageSets" / "Main" / f"{name}.txt", folder / "JPEGImages"
            for image in listed.read_text(encoding="utf-8-sig", errors="replace").splitlines():
                with suppress(OSError, ValueError):  # the transfer names what is missing
                    sha.update((folder / "Annotations" / f"{image.strip()}.xml").read_bytes())
        sha.update(listed.read_bytes())
        sha.update(folders.summary(images).encode())
    return sha.hexdigest()


def _write(path: Path, text: str) -> None:
    """Replace an output. A run by hand keeps an existing one, which may be a link into DVC's cache."""
    if "DVC_STAGE" in os.environ or not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _of_last_run() -> str:
    """The output of the last run, for a machine that has only the shards."""
    with Repo() as repo:
        outputs = repo.stage.load_one(name="check").outs
        output = next(each for each in outputs if each.def_path == CHECKED.as_posix())
        cached = output.hash_info.value and Path(repo.cache.local.oid_to_path(output.hash_info.value))
        return cached.read_text() if cached and cached.is_file() else PASSED


def _inputs_of_prepare_changed() -> bool:
    """Whether DVC would run `prepare`."""
    with Repo() as repo:
        return any(dependency.status() for dependency in repo.stage.load_one(name="prepare").deps)


if __name__ == "__main__":
    main()
