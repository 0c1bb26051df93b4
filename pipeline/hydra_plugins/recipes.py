"""A Hydra plugin: an unknown recipe is answered with all recipes, which lie in folders that Hydra does not look into."""

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin

GROUP = "recipe"
CONF = Path(__file__).parent.parent / "conf"


class RecipeNames(ConfigSource):
    """Offers no file of its own, only the names of the recipes in all folders."""

    @staticmethod
    def scheme() -> str:
        return "recipes"

    def load_config(self, config_path: str) -> ConfigResult:
        raise ConfigLoadError(f"{config_path} is not kept here")

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
    """Puts `RecipeNames` behind the files themselves."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("cl", f"{RecipeNames.scheme()}://{CONF}")
