"""The kinds of losses, methods and so on: the modules of their packages; a new file adds a kind."""

import importlib
import pkgutil
from typing import Any

from pydantic import BaseModel, BeforeValidator


def kinds(package: str) -> list[str]:
    """The modules of `cl.<package>`, sorted; names that begin with `_` are helpers."""
    modules = pkgutil.iter_modules(importlib.import_module(f"cl.{package}").__path__)
    return sorted(module.name for module in modules if not module.name.startswith("_"))


def module_of(package: str, kind: str):  # type: ignore[no-untyped-def]
    """The module `cl.<package>.<kind>`."""
    return importlib.import_module(f"cl.{package}.{kind}")


def config_of(package: str) -> BeforeValidator:
    """A validator that turns a mapping with the key `kind` into the `Config` of that module."""

    def parse(value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind not in kinds(package):
            raise ValueError(f"kind={kind} is unknown; choose one of {', '.join(kinds(package))}")
        return module_of(package, kind).Config.model_validate(value)

    return BeforeValidator(parse)
