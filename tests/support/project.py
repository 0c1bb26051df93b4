"""The project that is tested, and its parameters at a tiny size."""

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig

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


def copy_product(project: Path, folder: Path) -> Path:
    """A copy of the project without what no stage reads."""
    return Path(
        shutil.copytree(project, folder, ignore=shutil.ignore_patterns("benchmarks", "docs", "tests"))
    )


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


def _choosing_once(load: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    """Hydra's way to compose, without merging the same files again where overrides differ in values alone."""
    merged: dict[tuple[str, ...], bytes] = {}

    def load_configuration(self: ConfigLoaderImpl, *, overrides: list[str], **options: Any) -> DictConfig:
        choices: list[str] = []
        values: list[Override] = []
        for override in OverridesParser.create().parse_overrides(overrides):
            is_choice = override.is_sweep_override() or (
                self.repository.group_exists(override.key_or_group) and not isinstance(override.value(), dict)
            )
            choices.append(str(override.input_line)) if is_choice else values.append(override)
        if (key := tuple(choices)) not in merged:
            merged[key] = pickle.dumps(load(self, overrides=choices, **options))
        found: DictConfig = pickle.loads(merged[key])
        self._apply_overrides_to_config(values, found)
        return found

    return load_configuration


ConfigLoaderImpl._load_configuration_impl = _choosing_once(  # type: ignore[method-assign]
    ConfigLoaderImpl._load_configuration_impl
)


@cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return composition.compose(list(overrides))
