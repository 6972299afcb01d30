"""Why a run spends; apart from the rest, since configurations need no accountant."""

from enum import StrEnum


class Purpose(StrEnum):
    """Why a run touches the data. Tuning spends like training, and is told apart."""

    TRAINING = "training"
    TUNING = "tuning"
