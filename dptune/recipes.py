"""A recipe is data: a list of stages, each a few choices. One YAML file per system.

Stages are frozen pydantic values read from `configs/recipes/`; `dptune.stages` fills in
their numbers, `dptune.planning` those of a whole run.
"""

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, model_validator

from dptune.privacy import Notion
from dptune.settings import (
    ClippingSettings,
    ControllerSettings,
    LocalSettings,
    LoraSettings,
    LossSettings,
    NoiseSettings,
    NominalSettings,
    OptimizerSettings,
    RelativeBatchSettings,
    SamplingSettings,
    ScreenedSettings,
    Settings,
    TierSettings,
    TokenWeightSettings,
)


class View(StrEnum):
    """Which form of the text a stage reads."""

    ORIGINAL = "original"
    REDACTED = "redacted"


class StageSettings(Settings):
    """One training stage.

    Args:
        view: the text it reads.
        trains: all weights, or LoRA adapters that are merged at the end.
        epochs: passes over the units, in expectation where sampling is Poisson.
        expected_batch_size, relative_batch: exactly one: units per noisy step, which
            are the public divisor; or how to choose them for the corpus at hand.
        loss: what the loss of a sequence is divided by.
        clipping, noise: both or neither; neither means ordinary training.
        sampling: of a noisy stage.
        token_weights: losses of sensitive tokens count more; None weighs all alike.
        tiers: sensitive tokens alone are clipped and noised, tier by tier; None
            protects records as a whole.
        nominal: what the paper would claim for the stage, beside the certificate.
        local: noise in the forward pass, in the place of clipping and noise.
        screened: train on a small part of the redacted text, which people can read.
        mask_token: give the vocabulary the mask token although no text is redacted:
            what that change of the start alone costs a noisy run.
        controller: steers clip norms of LoRA pairs, and noise (RLDP).
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")
    view: View
    trains: Literal["full", "lora"] = "full"
    lora: LoraSettings | None = None
    epochs: float = Field(gt=0, le=1000)
    expected_batch_size: int | None = Field(default=None, ge=1, le=1_000_000)
    relative_batch: RelativeBatchSettings | None = None
    optimizer: OptimizerSettings
    loss: LossSettings = LossSettings()
    clipping: ClippingSettings | None = None
    noise: NoiseSettings | None = None
    sampling: SamplingSettings = SamplingSettings()
    token_weights: TokenWeightSettings | None = None
    tiers: TierSettings | None = None
    nominal: NominalSettings | None = None
    local: LocalSettings | None = None
    screened: ScreenedSettings | None = None
    mask_token: bool = False
    controller: ControllerSettings | None = None

    @property
    def private(self: Self) -> bool:
        """Whether the stage clips and adds noise, to gradients or to hidden states."""
        return self.noise is not None or self.local is not None

    def trained_units(self: Self, num_units: int) -> int:
        """Return how many privacy units of a corpus the stage trains on."""
        return (
            num_units if self.screened is None else self.screened.num_units(num_units)
        )

    def batch_size(self: Self, num_units: int) -> int:
        """Return the expected batch size for a corpus of `num_units` privacy units."""
        if self.relative_batch is None:
            return self.expected_batch_size or 1
        wanted = max(1, round(self.relative_batch.share * num_units))
        return min(wanted, self.relative_batch.at_most)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if (self.expected_batch_size is None) == (self.relative_batch is None):
            raise ValueError(
                "exactly one of expected_batch_size and relative_batch must be set; "
                "set the other to null"
            )
        if (self.clipping is None) != (self.noise is None):
            raise ValueError(
                "clipping and noise must both be set or both be null: noise without a "
                "clip has no sensitivity, a clip without noise has no guarantee"
            )
        if (self.trains == "lora") != (self.lora is not None):
            raise ValueError("lora must be set exactly when trains is 'lora'")
        if self.clipping and self.clipping.kind == "per_lora_pair" and not self.lora:
            raise ValueError("clipping.kind must be per_lora_pair only with lora")
        _check_tokens(self)
        if self.local is not None:
            _check_local(self)
        elif self.nominal is not None and self.nominal.formula == "sampled":
            raise ValueError("nominal.formula must be sampled only with local")
        if self.nominal is not None and not self.private:
            raise ValueError("nominal must be null in a stage without noise")
        banded = self.noise is not None and self.noise.correlation != "independent"
        if (
            self.clipping
            and banded
            and (self.clipping.moving or self.clipping.transform)
        ):
            raise ValueError(
                "noise.correlation must be 'independent' where clipping.moving or "
                "clipping.transform is set"
            )
        cap = self.sampling.max_batch_size
        if cap is not None and self.noise is None:
            raise ValueError("sampling must be poisson in a stage without noise")
        if cap is not None and self.noise and self.noise.correlation == "banded":
            raise ValueError(
                "sampling must be poisson when noise.correlation is 'banded': no "
                "guarantee is known for truncated batches with correlated noise"
            )
        relative = self.relative_batch
        largest = relative.at_most if relative else self.expected_batch_size
        if cap is not None and cap < (largest or 1):
            raise ValueError(
                "sampling.max_batch_size must be at least expected_batch_size, or "
                "relative_batch.at_most"
            )
        return self

    @model_validator(mode="after")
    def _check_controller(self: Self) -> Self:
        if self.controller is not None:
            _check_controlled(self)
        return self


def _check_controlled(stage: StageSettings) -> None:
    """Refuse what a stage with a controller cannot have.

    Raises:
        ValueError: with the rule.
    """
    clipping, noise = stage.clipping, stage.noise
    if clipping is None or noise is None:
        raise ValueError("controller must be null in a stage without noise")
    is_plain = clipping.rule == "threshold" and clipping.moving is None
    if clipping.kind != "per_lora_pair" or not is_plain:
        raise ValueError(
            "clipping must be of kind per_lora_pair, rule threshold and not moving "
            "beside a controller, which steers it"
        )
    if noise.schedule != "constant" or noise.correlation != "independent":
        raise ValueError(
            "noise must be constant and independent beside a controller, which asks "
            "for the noise of every step"
        )
    if stage.sampling.kind != "poisson" or stage.tiers is not None:
        raise ValueError("sampling must be poisson and tiers null beside a controller")


def _check_tokens(stage: StageSettings) -> None:
    """Refuse what a stage that tells tokens apart cannot have.

    Raises:
        ValueError: with one fault.
    """
    if stage.token_weights is not None and stage.view is View.REDACTED:
        raise ValueError(
            "token_weights must be null in a stage that reads the redacted text: "
            "it has no sensitive tokens left"
        )
    if stage.screened is not None and (stage.view is not View.REDACTED or stage.noise):
        raise ValueError(
            "screened must be null unless the stage reads the redacted text without "
            "noise: noise would protect what was missed anyway"
        )
    if stage.tiers is None:
        return
    if stage.view is not View.ORIGINAL or stage.noise is None or stage.token_weights:
        raise ValueError(
            "view must be original, noise set and token_weights null beside tiers: "
            "the stage hides secrets from itself"
        )
    banded = stage.noise.correlation != "independent"
    moving = stage.clipping is not None and stage.clipping.moving is not None
    if banded or moving or stage.sampling.kind != "poisson":
        raise ValueError(
            "noise.correlation must be independent, sampling poisson and "
            "clipping.moving null beside tiers, whose parts are sampled one by one"
        )


def _check_local(stage: StageSettings) -> None:
    """Refuse what a stage with forward noise cannot have.

    Raises:
        ValueError: with one fault.
    """
    weighed = stage.token_weights or stage.tiers
    if stage.noise is not None or stage.trains == "lora" or weighed:
        raise ValueError(
            "clipping, noise, lora, token_weights and tiers must be null beside local: "
            "the noise is in the forward pass, all of the server's part is trained"
        )
    if stage.view is not View.ORIGINAL or stage.optimizer.schedule != "constant":
        raise ValueError(
            "view must be original and optimizer.schedule constant beside local"
        )
    if stage.epochs != round(stage.epochs):
        raise ValueError(
            "epochs must be a whole number beside local: every sequence takes part "
            "once in each"
        )
    if stage.nominal is not None and stage.nominal.formula != "sampled":
        raise ValueError("nominal.formula must be sampled beside local")


class Recipe(Settings):
    """A system: its stages, in order, and the notion its papers claim."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")
    title: str
    reference: str = ""
    notion: Notion | None = None
    stages: tuple[StageSettings, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError("stage names must be unique within a recipe")
        return self

    @property
    def private(self: Self) -> bool:
        """Whether any stage adds noise."""
        return any(stage.private for stage in self.stages)

    @property
    def uses_redacted_view(self: Self) -> bool:
        """Whether any stage reads the redacted text."""
        return any(stage.view is View.REDACTED for stage in self.stages)

    @property
    def uses_tiers(self: Self) -> bool:
        """Whether any stage tells secrets apart by their sensitivity."""
        return any(stage.tiers is not None for stage in self.stages)
