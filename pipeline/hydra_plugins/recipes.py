"""A Hydra plugin that lists all recipes when one is unknown; Hydra alone does not look into their folders."""

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin

GROUP = "recipe"
CONF = Path(__file__).parent.parent / "conf"


class RecipeNames(ConfigSource):
    """A source of recipe names only; the files themselves come from Hydra's own source."""

    @staticmethod
    def scheme() -> str:
        return "recipes"

    def load_config(self, config_path: str) -> ConfigResult:
        raise ConfigLoadError(f"{config_path} must be read from its file")

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path == GROUP

    def is_config(self, config_path: str) -> bool:
        return False

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        root = Path(self.path) / GROUP
        return sorted(str(p.relative_to(root).with_suffix("")) for p in root.rglob("*.yaml"))


class RecipeNamesInSearchPath(SearchPathPlugin):
    """Appends `RecipeNames` to the search path, after the files."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("cl", f"{RecipeNames.scheme()}://{CONF}")
