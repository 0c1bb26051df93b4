"""The base class of every configuration, and types that several configurations share."""

import difflib
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def _ascending(pair: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= pair[0] <= pair[1]:
        raise ValueError(f"{list(pair)} must be an ascending pair of non-negative numbers")
    return pair


def _distinct(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds={seeds} contains duplicates; list each seed once")
    return seeds


def check_crop(resize: int, crop: int) -> None:
    """Raises ValueError if the side of a centre crop exceeds the short side of the resized image."""
    if crop > resize:
        raise ValueError(f"crop={crop} is larger than resize={resize}; choose a smaller crop")


Range = Annotated[tuple[float, float], AfterValidator(_ascending)]
Sizes = Annotated[tuple[int, int], AfterValidator(_ascending)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_distinct)]


class BaseConfig(BaseModel):
    """Immutable; refuses keys that are not declared, and numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            unknown = [str(key) for key in values if key not in cls.model_fields]
            if unknown:
                raise ValueError(f"unknown key {unknown[0]}{suggestion(unknown[0], list(cls.model_fields))}")
        return values


def suggestion(name: str, known: list[str]) -> str:
    """The end of a message about an unknown name: the known names, and the closest if one is close."""
    near = difflib.get_close_matches(name, known, n=1)
    choices = ", ".join(known)
    return f"; did you mean {near[0]}? Choices: {choices}" if near else f"; choose one of {choices}"
