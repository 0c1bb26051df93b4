"""The base of every configuration class."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def _ascending(pair: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= pair[0] <= pair[1]:
        raise ValueError(f"{list(pair)} is no range from a smaller to a larger number, both not below 0")
    return pair


def _different(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds={seeds}: each once")
    return seeds


Range = Annotated[tuple[float, float], AfterValidator(_ascending)]
Sizes = Annotated[tuple[int, int], AfterValidator(_ascending)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_different)]


class BaseConfig(BaseModel):
    """Immutable, and no key that is not declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict) and (
            unknown := [str(key) for key in values if key not in cls.model_fields]
        ):
            raise ValueError(f"unknown key {', '.join(unknown)}; there are {', '.join(cls.model_fields)}")
        return values
