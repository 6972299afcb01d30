"""The number of privacy units that a plan may follow from: about how many there are."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def round_units(number: float) -> int:
    """Round to two significant digits, at least 1.

    >>> round_units(992), round_units(1049.7), round_units(-3)
    (990, 1000, 1)
    """
    return max(1, int(float(f"{number:.1e}")))


def _rounded(number: int) -> int:
    """Refuse a number of units that tells more than about how many there are."""
    if number != round_units(number):
        raise ValueError(
            "must have at most two significant digits: a finer number tells who "
            f"joined or left. Write {round_units(number)}."
        )
    return number


RoundedUnits = Annotated[int, Field(ge=1), AfterValidator(_rounded)]


class ReleasedUnits(BaseModel):
    """A number of units that `dptune budget count` released under noise.

    Args:
        number: as it was released, rounded.
        noise_multiplier: stddev of its noise, since one unit moves the count by 1.
            Every certificate covers the release.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    number: RoundedUnits
    noise_multiplier: float = Field(gt=0, le=1e6)
