"""Any folder of class folders: `<raw>/<name>/train/<class>/<image>` and `<raw>/<name>/val/<class>/<image>`.

The images of a class may lie in folders below its own, and the class folder may be a link. What is hidden, lies beside the
class folders, or has no suffix of an image is left out and counted.
"""

from pathlib import Path
from typing import Literal

from cl.sources import Source, Splits
from cl.sources._shared.class_folders import class_folders


class Config(Source):
    """An own data set by the name of its folder."""

    kind: Literal["folder"]
    name: str


def splits(config: Config, raw: Path) -> Splits:
    """The images below `raw/<name>`; the classes are the folders of `train`, sorted by name.

    Raises:
        ValueError: a folder is missing, a class has no image, `val` has a class that `train` has not, a name is not in
            UTF-8, or a folder below a class folder is a link.
    """
    return class_folders(raw / config.name)
