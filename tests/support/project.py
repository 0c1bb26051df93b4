"""The project that is tested, and its parameters at a tiny size."""

import copy
import json
import pickle
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

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


def _merging_on(merge: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    """Hydra's way to merge files, which goes on from what an earlier list of files began with."""
    merged: dict[tuple[tuple[str | None, ...], ...], bytes] = {}
    lists: set[tuple[tuple[str | None, ...], ...]] = set()

    def merge_from(self: ConfigLoaderImpl, defaults: list[Any], repo: Any) -> DictConfig:
        names = tuple((file.config_path, file.package) for file in defaults)
        common = max((_common(names, other) for other in lists), default=0)
        lists.add(names)
        if not 0 < common < len(defaults):
            return merge(self, defaults, repo)
        if names[:common] not in merged:
            merged[names[:common]] = pickle.dumps(merge_from(self, defaults[:common], repo))
        begun = SimpleNamespace(config_path=None, config=pickle.loads(merged[names[:common]]))
        return merge(self, [begun, *defaults[common:]], repo)

    return merge_from


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many entries two sequences have in common at the beginning."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _placing_once(load: Callable[..., Any]) -> Callable[..., Any]:
    """Hydra's way to load a file below its key, or what is merged already."""
    placed: dict[tuple[str, str | None], bytes] = {}

    def load_single(self: ConfigLoaderImpl, default: Any, repo: Any) -> Any:
        if hasattr(default, "config"):
            return default
        key = (default.config_path, default.package)
        if key not in placed:
            placed[key] = pickle.dumps(load(self, default, repo))
        return pickle.loads(placed[key])

    return load_single


ConfigLoaderImpl._compose_config_from_defaults_list = _merging_on(  # type: ignore[method-assign]
    ConfigLoaderImpl._compose_config_from_defaults_list
)
ConfigLoaderImpl._load_single_config = _placing_once(  # type: ignore[method-assign]
    ConfigLoaderImpl._load_single_config
)


def _if_interpolated(create: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    """Hydra's map of what is chosen so far, where a name in a list of defaults contains a choice."""

    def create_map(overrides: Any, defaults: list[Any], self_added: bool) -> DictConfig:
        needed = any(default.is_interpolation() for default in defaults if not default.is_self())
        return create(overrides, defaults, self_added) if needed else OmegaConf.create()

    return create_map


defaults_list._create_interpolation_map = _if_interpolated(defaults_list._create_interpolation_map)


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
