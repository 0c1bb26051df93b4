"""Any folder of class folders: `<raw>/<name>/train/<class>/<image>` and `<raw>/<name>/val/<class>/<image>`.

A class folder may have subfolders and may itself be a link. Hidden files, files without an image suffix and
files next to the class folders are left out and counted.
"""

from pathlib import Path
from typing import Literal

from cl.images.image import Splits
from cl.sources import OwnImages
from cl.sources._shared.class_folders import check_layout, class_folders


class Config(OwnImages):
    """Your own class folders."""

    kind: Literal["folder"]

    def check_present(self, raw: Path) -> None:
        check_layout(self.folder(raw))


def splits(config: Config, raw: Path) -> Splits:
    """List the images below `raw/<name>`; the classes are the folders of `train`, sorted by name."""
    return class_folders(config.folder(raw), suffixes=config.suffixes)
