"""The base of every configuration class."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Strict(BaseModel):
    """Immutable, and no key that is not declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict) and (unknown := [str(key) for key in values if key not in cls.model_fields]):
            raise ValueError(f"unknown key {', '.join(unknown)}; there are {', '.join(cls.model_fields)}")
        return values
