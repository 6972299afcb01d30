"""The choices of the attacks, as they stand in a configuration."""

import math
from typing import Final, Literal, Self

from pydantic import Field

from dptune.settings import Settings

FEWEST_TEXTS: Final = 5
"""Of members and of non-members: with fewer the blind baseline cannot be fitted."""


class DecodingSettings(Settings):
    """How text is drawn: temperature, then top-k, then top-p; RLDP's values.

    Args:
        top_k: 0 for every token.
    """

    temperature: float = Field(default=0.7, gt=0, le=10)
    top_k: int = Field(default=50, ge=0)
    top_p: float = Field(default=0.95, gt=0, le=1)


class PersonalDataAttackSettings(Settings):
    """Extraction, reconstruction and inference of what the detector marks."""

    num_texts: int = Field(default=500, ge=10)
    max_new_tokens: int = Field(default=64, ge=1)
    num_values: int = Field(default=100, ge=10)
    num_guesses: int = Field(default=16, ge=1)
    num_candidates: int = Field(default=10, ge=2)


class ExtractionSettings(Settings):
    """What is drawn out of the model by sampling.

    Args:
        num_trials: continuations of the canaries' template; 0 for none.
        max_new_tokens: of each; more where a secret has more tokens.
        ending_tokens: longest ending of a record that is to be drawn.
        personal_data: null leaves this slow attack out.
    """

    decoding: DecodingSettings = DecodingSettings()
    num_trials: int = Field(default=4000, ge=0)
    max_new_tokens: int = Field(default=10, ge=1)
    ending_tokens: int = Field(default=50, ge=1)
    personal_data: PersonalDataAttackSettings | None = None


class SampleSettings(Settings):
    """Completions of held-out prompts, to look at.

    Args:
        num_prompts: how many; 0 for none.
        max_new_tokens: of each completion.
        decoding: how tokens are drawn; null takes the likeliest every time.
    """

    num_prompts: int = Field(default=4, ge=0, le=20)
    max_new_tokens: int = Field(default=32, ge=1, le=256)
    decoding: DecodingSettings | None = None

    @property
    def words(self: Self) -> str:
        """How tokens are drawn."""
        if self.decoding is None:
            return "the likeliest token every time"
        return (
            f"temperature {self.decoding.temperature:g}, top-k "
            f"{self.decoding.top_k}, top-p {self.decoding.top_p:g}, seeded"
        )


class ShadowSettings(Settings):
    """Shadow models for the strongest membership attacks.

    They are trained without protection, on random halves of the attacked records,
    members or not, and dropped: no release, and in no epsilon. Each ends when it knows
    its records as well as the model knows its members: after one pass beside a model
    that memorised nothing. All of them together take no more than
    `num_models * epochs * num_members / batch_size` steps.

    Args:
        num_models: how many, in pairs that share the records.
        epochs: passes of each over its half of the records, at most.
        batch_size: records of a step.
        learning_rate: of AdamW; null is by the width of the model.
    """

    num_models: int = Field(default=4, ge=4, le=64, multiple_of=2)
    epochs: float = Field(default=8.0, gt=0)
    batch_size: int = Field(default=8, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)

    def num_steps(self: Self, num_attacked: int) -> int:
        """Most steps of one shadow where so many records are attacked."""
        records = num_attacked // 2
        return max(1, math.ceil(self.epochs * records / self.batch_size))


class AttackSettings(Settings):
    """How the trained model is attacked.

    Args:
        num_members: records of each side that membership is tried on, at most.
        num_bootstrap: draws behind intervals.
        scoring: what canaries are ranked by: the `sum` of the secret's nats, or the
            `mean` per token, as JFT does.
        max_candidates: larger canary spaces are searched, not enumerated.
        max_nodes: how far that search may go.
        sampled_candidates: with how many candidates canaries are compared, so that a
            rank is an interval, but for the most exposed ones, which are ranked among
            all; null ranks every canary among all. Gates take the interval's near end.
        extraction: what is drawn by sampling; null leaves it out.
        samples: completions that people look at, masked.
        shadows: null leaves out the attacks that train models of their own, which are
            the strongest, and which a gate asks for unless its policy says otherwise.
        num_checkpoints: how often each stage is measured while it trains; null is three
            times, and before, for a stage that weighs tokens, and never for others.
    """

    num_members: int = Field(default=1000, ge=50)
    num_bootstrap: int = Field(default=1000, ge=100)
    scoring: Literal["sum", "mean"] = "sum"
    max_candidates: int = Field(default=10_000_000, ge=100, le=20_000_000)
    max_nodes: int = Field(default=20_000, ge=100)
    sampled_candidates: int | None = Field(default=None, ge=1000)
    extraction: ExtractionSettings | None = ExtractionSettings()
    samples: SampleSettings = SampleSettings()
    shadows: ShadowSettings | None = ShadowSettings()
    num_checkpoints: int | None = Field(default=None, ge=0, le=50)
