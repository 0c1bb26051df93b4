"""Any tree of images without labels: `<raw>/<name>/<any folders>/<image>`.

Hidden files and files without an image suffix are left out and counted.
"""

from collections import Counter
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from pydantic import Field

from cl.console.wording import counted
from cl.images.folders import images_below
from cl.images.holdout import FEW, held_out, share_of_few
from cl.images.image import Splits
from cl.images.listing import Keys, Listing
from cl.sources import OwnImages


class Config(OwnImages):
    """Your own images without labels."""

    kind: Literal["unlabelled"]
    labels: Literal["none"]
    holdout: float = Field(gt=0, lt=1, description="share of the images held out for validation")

    def check_present(self, raw: Path) -> None:
        if not (root := self.folder(raw)).is_dir():
            raise ValueError(
                f"no folder {root}; put the images there, or set dataset.name to the path of your folder (or "
                "CL_RAW to its parent)"
            )


def splits(config: Config, raw: Path) -> Splits:
    """List the images below `raw/<name>`; a hash of an image's path decides whether it is held out."""
    config.check_present(raw)
    root = config.folder(raw)
    keys, left_out = Keys(), Counter[str]()
    train, val = Listing(root, keys), Listing(root, keys)
    images = images_below(root, "", left_out, config.suffixes)
    first = list(islice(images, FEW))
    holdout = share_of_few([name for name, _ in first], config.holdout)
    for name, status in chain(first, images):
        (val if held_out(name, holdout) else train).add(name, status)
    if not train or not val:
        count = len(train) + len(val)
        raise ValueError(
            f"dataset.holdout={config.holdout} of the {counted(count, 'images')} in {root} leaves "
            f"{len(train)} training and {len(val)} validation images, expected at least one of each"
        )
    found = Splits([], train, val, left_out)
    if (root / "train").is_dir() and (root / "val").is_dir():
        found.remarks.append("images of train/ and val/ are mixed; dataset=folder keeps splits and classes")
    return found
