"""Read parameter files, and check all values before anything else is read or written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from ruamel.yaml.resolver import implicit_resolvers

from cl.config import rules
from cl.config.params import Params

Kind = TypeVar("Kind", bound=BaseModel)


class _Loader(yaml.CSafeLoader):
    """libyaml with the types of YAML 1.2, in which DVC and `pipeline.compose` write: `1e-3` is a number."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {}


for _versions, _tag, _pattern, _first in implicit_resolvers:
    if (1, 2) in _versions:
        _Loader.add_implicit_resolver(_tag, _pattern, _first)


def read(path: Path) -> dict[str, Any]:
    """A parameter file."""
    return parse(path.read_text(), str(path))


def parse(text: str, name: str) -> dict[str, Any]:
    """The same from a string; errors call it `name`."""
    try:
        values = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{name} must contain keys and values, found {str(values)[:40]!r}")
    return values


def load(path: Path) -> Params:
    """The checked parameters of a file; ValueError names each wrong value, and the choices."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: run this from the top folder of the project")
    values = read(path)
    try:
        return check(values)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def check(values: dict[str, Any]) -> Params:
    """The same from a mapping."""
    params = validated(Params, values)
    rules.check(params)
    for number, changes in enumerate(params.arms):
        try:
            with_arm(params, changes)
        except ValueError as error:
            raise ValueError(f"arms.{number}: {error}") from None
    return params


def with_arm(params: Params, changes: Mapping[Any, Any]) -> Params:
    """The parameters with the changes of an arm, and without arms."""
    return check(_merged(params.model_dump(), changes) | {"arms": []})


def _merged(values: dict[str, Any], changes: Mapping[Any, Any]) -> dict[str, Any]:
    both = {key: _merged(values[key], changes[key]) for key in changes if isinstance(values.get(key), dict)}
    return {**values, **changes, **both}


def validated(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """A mapping as a model of this kind; ValueError names each wrong value, and the choices."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ValueError("; ".join(_sentence(e, values) for e in error.errors())) from None


def _sentence(error: Any, values: Any) -> str:
    place = _place(error["loc"], values)
    if error["type"] == "missing":
        return f"{place}.{error['loc'][-1]} is missing".lstrip(".")
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{place}: {message}" if place else message
    return f"{place}={error['input']!r}: {message[0].lower()}{message[1:]}"


def _place(parts: tuple[int | str, ...], values: Any) -> str:
    """The name of a value, without the alternatives of its type that pydantic tried, such as `int`."""
    found = []
    for part in parts:
        keys = values if isinstance(values, dict) else range(len(values)) if isinstance(values, list) else ()
        if part in keys:
            found.append(str(part))
            values = values[part]
    return ".".join(found)
