"""What every report is: frozen, closed, versioned."""

from pydantic import BaseModel, ConfigDict, Field


class Report(BaseModel):
    """Base of everything that is measured: frozen, closed, versioned."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
        hide_input_in_errors=True,
    )
    schema_version: int = 1


class Interval(Report):
    """A two-sided confidence interval `[low, high]`."""

    low: float
    high: float
    confidence: float = Field(gt=0, lt=1)
