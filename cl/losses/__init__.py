"""Losses, one file each: a pydantic `Config` and `loss(contrast, config, progress)`."""

from typing import ClassVar

from cl.runtime.base_config import BaseConfig


class LossConfig(BaseConfig):
    """What every loss says of itself."""

    needs_negatives: ClassVar[bool]
    needs_several_positives: ClassVar[bool] = False
    kind: str
