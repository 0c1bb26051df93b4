"""The project that is tested, and its parameters at a tiny size."""

import copy
import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hydra._internal.config_repository import ConfigRepository
from hydra.plugins.config_source import ConfigResult

from pipeline.composition import compose as composition

ROOT = Path(__file__).parents[2]
TINY = [
    "dataset.train_patches=6",
    "dataset.val_patches=3",
    "dataset.shard_images=50",
    "optim.batch_size=32",
    "optim.epochs=2",
]


def compose(folder: Path, *overrides: str) -> dict[str, Any]:
    """The parameters that `-S` with these overrides gives, also as params.yaml in the folder."""
    values = _composed(overrides)
    (folder / "params.yaml").write_text(json.dumps(values))  # JSON is YAML too, and takes no time to write
    return copy.deepcopy(values)


def _reading_once(load: Callable[[ConfigRepository, str], ConfigResult | None]) -> Callable[..., Any]:
    """Hydra's way to load a file of pipeline/conf, without parsing it again for every composition."""
    loaded: dict[tuple[str, ...], bytes] = {}

    def load_config(self: ConfigRepository, config_path: str) -> ConfigResult | None:
        key = (config_path, *(source.path for source in self.get_sources()))
        if key not in loaded:
            loaded[key] = pickle.dumps(load(self, config_path))
        return pickle.loads(loaded[key])

    return load_config


ConfigRepository.load_config = _reading_once(ConfigRepository.load_config)  # type: ignore[method-assign]


@cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return composition.compose(list(overrides))
