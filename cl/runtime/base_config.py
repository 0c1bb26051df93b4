"""The base class of every configuration, and types that several configurations share."""

import difflib
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def ascending(pair: tuple[float, float]) -> tuple[float, float]:
    """Raises ValueError unless 0 <= first <= second."""
    if not 0 <= pair[0] <= pair[1]:
        raise ValueError(f"{list(pair)} must be an ascending pair of non-negative numbers")
    return pair


def distinct(values: list[Any]) -> list[Any]:
    """Raises ValueError if two are equal."""
    if len(set(values)) < len(values):
        raise ValueError(f"{values} contains duplicates; list each once")
    return values


def check_crop(resize: int, crop: int) -> None:
    """Raises ValueError if the side of a centre crop exceeds the short side of the resized image."""
    if crop > resize:
        raise ValueError(f"crop={crop} is larger than resize={resize}; choose a smaller crop")


LISTED = 20  # a longer list of names is only given if none is close and no folder has them all

Range = Annotated[tuple[float, float], AfterValidator(ascending)]
Sizes = Annotated[tuple[int, int], AfterValidator(ascending)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(distinct)]


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


def suggestion(name: str, known: list[str], place: str = "") -> str:
    """The end of a message on an unknown name: those that are close, and all, or `place`, which has all."""
    alike = near(name, known)
    guess = f"; did you mean {one_of(alike)}?" if alike else ""
    if len(known) > LISTED and place:
        nearest = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0))
        return f"{guess or f'; the nearest are {nearest}.'} {place} has all {len(known)}"
    if len(known) > LISTED and alike:
        return guess
    choices = ", ".join(known)
    return f"{guess} Choices: {choices}" if alike else f"; choose one of {choices}"


def near(name: str, known: list[str]) -> list[str]:
    """Up to three names: those that begin with this one or begin it, else end with it; then those alike."""
    lower = {each.lower(): each for each in known}
    name = name.lower()
    begun = [each for each in lower if name.startswith(each) or (len(name) > 2 and each.startswith(name))]
    begun += [each for each in lower if each.endswith(f"/{name}")]
    begun = begun or [each for each in lower if each.endswith(f"_{name}")]
    begun = sorted(begun, key=lambda each: abs(len(each) - len(name)))[:3]
    close = difflib.get_close_matches(name, lower, n=1, cutoff=0.67)  # lr is not lars
    return [lower[each] for each in dict.fromkeys([*begun, *close])][:3]


def one_of(names: list[str]) -> str:
    """The names as alternatives: "a, b or c"."""
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
