"""What a run says it touches the data for."""

from enum import StrEnum


class Purpose(StrEnum):
    """Why a run touches the data. Tuning spends like training, and is told apart."""

    TRAINING = "training"
    TUNING = "tuning"
