"""The choices of a stage, as they stand in a recipe's file."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dptune.privacy import Purpose


class Settings(BaseModel):
    """A frozen value that refuses keys that it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )


class OptimizerSettings(Settings):
    """What turns gradients into steps.

    Args:
        name: `adamw` or `sgd`. DP-Adam is AdamW on private gradients (Li et al. 2022).
        learning_rate: peak rate.
        warmup_share: share of the steps with a linearly rising rate.
        schedule: shape of the rate after the warm-up.
    """

    name: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = Field(gt=0, le=10)
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    warmup_share: float = Field(default=0.0, ge=0, lt=1)
    schedule: Literal["constant", "linear", "cosine"] = "constant"


class LossSettings(Settings):
    """What the summed loss of a sequence is divided by, before its clip.

    Args:
        normalizer: `public` is `model.max_tokens`, so that long sequences weigh more;
            `record` the number of the sequence's own targets. Either is private record
            by record, and sensitivity and accounting are the same.
    """

    normalizer: Literal["public", "record"] = "public"


class LoraSettings(Settings):
    """Low-rank adapters (Hu et al. 2022).

    Args:
        target_modules: endings of layer names; none means all linear layers below the
            head.
        last_layers: adapters on the last so many layers only; null takes them all.
            Fewer weights have less noise in all, and the passes back are shorter.
        use_rslora: scale by alpha / sqrt(rank) (Kalajdzievski 2023), not alpha / rank.
    """

    rank: int = Field(ge=1, le=1024)
    alpha: float = Field(gt=0)
    target_modules: tuple[str, ...] = ()
    last_layers: int | None = Field(
        default=None, ge=1, le=1000, exclude_if=lambda count: count is None
    )
    use_rslora: bool = False


class MovingClipSettings(Settings):
    """A clip norm that follows the gradients, by counts of norms.

    Args:
        rule: `quantile` (Andrew et al. 2021), `dc_sgd_percentile` or `dc_sgd_error`
            (Wei et al. 2025).
        count_share: share of the budget that the counts get. 0 releases them raw: then
            nothing is certified.
        quantile: of the units, for `quantile` and `dc_sgd_percentile`.
        rate: of the update of `quantile`.
    """

    rule: Literal["quantile", "dc_sgd_percentile", "dc_sgd_error"]
    count_share: float = Field(default=0.05, ge=0, lt=1)
    quantile: float = Field(default=0.5, gt=0, lt=1)
    rate: float = Field(default=0.2, gt=0, le=10)


class TransformSettings(Settings):
    """A space to clip in that follows the noisy gradients of earlier steps.

    Args:
        rule: `adaclip` scales every coordinate (Pichapati et al. 2019), `geoclip` the
            leading axes of the covariance (Gilani et al. 2025).
        mean_decay: of the running mean that gradients are centred at.
        spread_decay: of the running variance or covariance.
        floor, ceiling: of variances, in units of the first one.
        rank: axes of `geoclip`, and exactly for it. Memory holds as many copies of the
            trained parameters.
    """

    rule: Literal["adaclip", "geoclip"]
    mean_decay: float = Field(ge=0, lt=1)
    spread_decay: float = Field(ge=0, lt=1)
    floor: float = Field(gt=0, le=1)
    ceiling: float = Field(ge=1, le=1e12)
    rank: int | None = Field(default=None, ge=1, le=1024)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if (self.rank is not None) != (self.rule == "geoclip"):
            raise ValueError("rank must be set exactly when rule is 'geoclip'")
        return self


class ClippingSettings(Settings):
    """How one unit's gradient is bounded.

    Args:
        kind: `flat` clips the whole gradient to `max_grad_norm`; `per_layer` and
            `per_lora_pair` clip groups of parameters, each to an equal share of it.
        rule: `threshold` leaves small gradients as they are; `automatic` and `psac`
            bring them near `max_grad_norm` too.
        moving: lets the clip norm follow the gradients, from `max_grad_norm` on.
        transform: clips and adds noise in another space; at first it is the gradients'
            own. Gradients of single units are held in memory.
        regularizer: gamma of `automatic`, r of `psac`; None takes the paper's.
    """

    kind: Literal["flat", "per_layer", "per_lora_pair"] = "flat"
    max_grad_norm: float = Field(gt=0, le=1e6)
    rule: Literal["threshold", "automatic", "psac"] = "threshold"
    regularizer: float | None = Field(default=None, gt=0, le=1e3)
    moving: MovingClipSettings | None = None
    transform: TransformSettings | None = None

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if self.transform and (self.moving or self.kind != "flat"):
            raise ValueError(
                "moving must be null and kind 'flat' where transform is set: one bound "
                "holds in one space"
            )
        if self.regularizer is not None and self.rule == "threshold":
            raise ValueError("regularizer must be null when rule is 'threshold'")
        return self


class RelativeBatchSettings(Settings):
    """A batch in proportion to the data, for a recipe that must fit any corpus.

    Args:
        share: of the privacy units that are trained on.
        at_most: units. From there on more data bring more steps, not larger batches.
    """

    share: float = Field(gt=0, le=1)
    at_most: int = Field(ge=1, le=1_000_000)


class RiseResetSettings(Settings):
    """Noise that grows epoch by epoch and falls back to its start (ATDP, algorithm 1).

    Args:
        growth: factor of an epoch, gamma.
        jitter: range around 1 of another factor, drawn for every epoch.
        ceiling: sigma_max / sigma_0; above it the noise starts again.
        public_seed: of the draws, which are made before training and are public.
    """

    growth: float = Field(gt=1, le=100)
    jitter: tuple[float, float] = (0.9, 1.1)
    ceiling: float = Field(ge=1, le=1e6)
    public_seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        low, high = self.jitter
        if not 0 < low < 1 < high:
            raise ValueError("jitter must be [low, high] with 0 < low < 1 < high")
        return self


class NoiseSettings(Settings):
    """How much Gaussian noise. Without `noise_multiplier` it is calibrated.

    Args:
        schedule: `constant`, or `rise_reset`, where every epoch has its own multiple
            of `noise_multiplier`.
        rise_reset: exactly for `rise_reset`.
        correlation: `independent` over steps, `banded` (matrix factorisation, which
            takes back some of the last steps' noise and brings cyclic sampling), or
            `auto`: banded if that is clearly better for the planned run, see
            `choose_banding`. `auto` stays independent where the noise is given, where
            batches are truncated, and where several noisy stages share one target.
        num_bands: for `banded`; None takes the best of 2, 4, 8, ... Memory holds
            `num_bands` - 1 copies of the trained parameters.
    """

    schedule: Literal["constant", "rise_reset"] = "constant"
    rise_reset: RiseResetSettings | None = None
    noise_multiplier: float | None = Field(default=None, gt=0, le=1e6)
    correlation: Literal["auto", "independent", "banded"] = "independent"
    num_bands: int | None = Field(default=None, ge=2, le=1024)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if self.num_bands is not None and self.correlation != "banded":
            raise ValueError("num_bands must be set only when correlation is 'banded'")
        if (self.rise_reset is None) != (self.schedule == "constant"):
            raise ValueError(
                "rise_reset must be set exactly when schedule is 'rise_reset'"
            )
        if self.rise_reset is not None and self.correlation != "independent":
            raise ValueError(
                "correlation must be 'independent' unless schedule is 'constant': "
                "correlated noise has no guarantee under a changing multiplier"
            )
        return self


class ControllerSettings(Settings):
    """RLDP's controller: clip norms of LoRA pairs, and noise, while a stage trains.

    Args:
        count_share: share of the budget that the controller's statistics get. 0 shows
            it the private batch as it is, as the paper does: then nothing is certified.
        noise_range: the deck of noise multipliers lies between the calibrated one
            divided by this, and times this. A wide deck is dear: 1.25 raised the middle
            by 5 % in a run of 40 steps, 1.1 by 1 %. In a raw run there is no deck.
        clip_span: largest factor between a clip norm and the median that it follows;
            null sets it as equation 10 does, min(exp(a), 1).
        interval: steps between two actions; null takes `longest_interval`, or as many
            as leave `min_actions` in a shorter run.
        longest_interval: of runs that are long enough.
        min_actions: after the warm-up; fewer are refused.
        warmup_steps: before the first action; null takes 50, or a tenth of the run.
        discount, temperature, polyak: of the Soft Actor-Critic, see
            `dptune.mechanisms.sac`.
        actor_rate, critic_rate, batch_size, num_updates, replay_capacity: likewise.
        largest_loss: lower bound of rewards, negated; the paper gives no figure.
    """

    count_share: float = Field(default=0.02, ge=0, lt=1)
    noise_range: float = Field(default=1.1, ge=1, le=2)
    clip_span: float | None = Field(default=2.0, ge=1, le=1000)
    interval: int | None = Field(default=None, ge=1, le=1_000_000)
    longest_interval: int = Field(default=112, ge=1, le=1_000_000)
    min_actions: int = Field(default=20, ge=20, le=1_000_000)
    warmup_steps: int | None = Field(default=None, ge=0, le=1_000_000)
    discount: float = Field(default=0.99, ge=0, lt=1)
    temperature: float = Field(default=0.04, ge=0, le=100)
    polyak: float = Field(default=0.01, gt=0, le=1)
    actor_rate: float = Field(default=2.0e-4, gt=0, le=1)
    critic_rate: float = Field(default=1.0e-4, gt=0, le=1)
    batch_size: int = Field(default=4, ge=1, le=10_000)
    num_updates: int = Field(default=2, ge=1, le=1000)
    replay_capacity: int = Field(default=10_000, ge=1, le=1_000_000)
    largest_loss: float = Field(default=5.0, gt=0, le=1000)


class TokenWeightSettings(Settings):
    """Weights of a record's token losses (ATDP, section 4.3).

    Sensitive tokens and function words weigh 1, all others one smaller weight.

    Args:
        sensitive_share: alpha, the share of tokens that are sensitive. It must be
            public: an estimate for texts of this kind, never a count over this corpus.
        target_share: r, the share of all weight that sensitive tokens shall have.
    """

    sensitive_share: float = Field(gt=0, lt=1)
    target_share: float = Field(default=0.5, gt=0, lt=1)


class ScreenedSettings(Settings):
    """A small part of the redacted text, for people to read (JFT, section 3.1).

    The part is drawn from the ids of privacy units by public coins, whatever the texts
    say.

    Args:
        share: of the privacy units.
        at_least: units, where there are as many.
        public_seed: of the draw.
        screened_by: who read every one of these records and put what the detector had
            missed on the deny list. Without it the claim rests on the detector.
    """

    share: float = Field(gt=0, le=1)
    at_least: int = Field(default=10, ge=1)
    public_seed: int = Field(default=0, ge=0)
    screened_by: str = Field(default="", max_length=200, pattern=r"^$|\w")

    def num_units(self: Self, num_units: int) -> int:
        """Return how many of `num_units` are drawn."""
        return min(num_units, max(self.at_least, round(self.share * num_units)))


class TierSettings(Settings):
    """Groups of a record's tokens, by the sensitivity of what they spell (SA-ADP).

    Args:
        noise_ratio: noise multiplier of the tier `high` over that of `low`, which is
            the stage's own.
        form: `sound` hides each tier from all that another one trains on; `paper`
            trains on whole texts, where nothing is certified. `privacy.mode` sets it.
    """

    noise_ratio: float = Field(default=1.5, ge=1, le=100)
    form: Literal["sound", "paper"] = "sound"


class LocalSettings(Settings):
    """Noise on hidden states, against the server that trains (DP-Forward, EW-FT).

    Args:
        layer: encoder layers of the user, before the noise.
        max_norm: C, Frobenius norm of a sequence's hidden state.
        step_distance: S of EWPBA, whose noise falls from epoch to epoch; null keeps it
            constant.
        autoencoder: features behind the hidden state's own, such as [64]; none without
            an autoencoder. It is trained on `model.public_text`.
        autoencoder_steps: of its training.
    """

    layer: int = Field(ge=1, le=200)
    max_norm: float = Field(default=1.0, ge=1e-12, le=1e6)
    step_distance: float | None = Field(default=None, gt=0, le=100)
    autoencoder: tuple[int, ...] = ()
    autoencoder_steps: int = Field(default=1500, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if any(size < 1 for size in self.autoencoder):
            raise ValueError("autoencoder must list sizes of at least 1")
        return self


class NominalSettings(Settings):
    """What a paper's own formula yields for a stage. Shown, never relied on.

    Args:
        formula: see `dptune.mechanisms.nominal`; `gdp` is its central-limit figure;
            `sampled` is that of EW-FT, see `dptune.mechanisms.ewpba`, for stages with
            forward noise and only them.
        reference: where the paper says so.
        order: of `rdp_order`.
        rate_factor: factor of the sampling rate that the paper allows itself.
    """

    formula: Literal["rdp", "rdp_order", "gdp", "sampled"]
    reference: str
    order: float | None = Field(default=None, gt=1)
    rate_factor: float = Field(default=1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if (self.order is None) != (self.formula != "rdp_order"):
            raise ValueError("order must be set exactly when formula is 'rdp_order'")
        return self


class SamplingSettings(Settings):
    """Who joins a noisy step. Banded noise brings cyclic Poisson sampling of its own.

    Args:
        kind: `poisson`, or `truncated_poisson` for batches that never exceed a cap.
        max_batch_size: the cap, public. Near `expected_batch_size` it is dear: 1.6
            times as much is nearly free from an expected batch of about 256.
    """

    kind: Literal["poisson", "truncated_poisson"] = "poisson"
    max_batch_size: int | None = Field(default=None, ge=1, le=10_000_000)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if (self.max_batch_size is None) != (self.kind == "poisson"):
            raise ValueError(
                "max_batch_size must be set exactly when kind is 'truncated_poisson'"
            )
        return self


class StepAuditSettings(Settings):
    """How a stage with noise is audited after it trained; see docs/AUDITS.md.

    Args:
        num_steps: of the training that is run again; 0 leaves the audit out, and a gate
            that asks for it is inconclusive.
    """

    num_steps: int = Field(default=6, ge=0, le=100)


class RegistrySettings(Settings):
    """The name under which versions are registered in MLflow and ZenML."""

    model_name: str = Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,80}$")


class SplitSettings(Settings):
    """Shares of the units that are kept from training, where files do not say."""

    validation: float = Field(default=0.1, ge=0, lt=0.5)
    test: float = Field(default=0.1, gt=0, lt=0.5)


class BudgetSettings(Settings):
    """Whose budget a run draws on.

    Args:
        data_set: names the people whose data these are, not a file or a run: runs of
            one name share a budget, and an id means the same unit in all of them.
        required: refuse to train on a data set to which no budget was granted.
        purpose: `tuning` for a trial of a sweep, which spends like any run and is told
            apart.
        sweep: name of the sweep; exactly for `tuning`.
    """

    data_set: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9_.-]{0,60}$")
    required: bool = False
    purpose: Purpose = Purpose.TRAINING
    sweep: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9_.-]{0,60})?$")

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if (self.purpose is Purpose.TUNING) != bool(self.sweep):
            raise ValueError(
                "sweep must be named exactly when purpose is tuning, so that its "
                "trials are added up"
            )
        return self
