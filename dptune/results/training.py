"""How stages were trained. Losses, tokens and times are private diagnostics."""

from typing import Literal

from pydantic import ConfigDict

from dptune.results.base import Report


class StageCurvePoint(Report):
    """One point of a training curve. `loss` is private: it never reaches a card.

    Points from before may have an epsilon, which no run ever filled; it is dropped.
    """

    model_config = ConfigDict(extra="ignore")
    step: int
    loss: float


class TracePoint(Report):
    """A stage measured while it trained, on some held-out records.

    Args:
        step: of the stage, steps done.
        perplexity: of all tokens; None for a classifier.
        accuracy: of a classifier.
        sensitive_perplexity, ordinary_perplexity: of tokens that the detector marks,
            and of the others; None where there are none.
        exposure: mean of planted canaries, bits; None without canaries.
        held_out_exposure: mean of the controls.
    """

    stage: str
    step: int
    perplexity: float | None = None
    accuracy: float | None = None
    sensitive_perplexity: float | None = None
    ordinary_perplexity: float | None = None
    exposure: float | None = None
    held_out_exposure: float | None = None


class ControllerStep(Report):
    """What one step was clipped and noised with."""

    step: int
    noise_multiplier: float
    clip_norms: tuple[float, ...]


class ControllerReport(Report):
    """What a controller did in a stage. Released values, unless it read raw ones.

    Args:
        pairs: names of the layers whose adapters share a clip norm.
        num_actions: after the warm-up.
        start_noise: multiplier that it started at.
        rewards_from: `private_batch` voids every claim.
        trace: some of the steps.
    """

    stage: str
    pairs: tuple[str, ...]
    warmup_steps: int
    interval: int
    num_actions: int
    start_noise: float
    rewards_from: Literal["public_text", "released", "private_batch"]
    trace: tuple[ControllerStep, ...] = ()


class CutTurns(Report):
    """What the longest sequence cut off conversations. Counts of private records.

    Args:
        role: of the turns.
        num_turns: in the training split.
        num_cut: of which a part is missing, or all.
        num_lost: of which nothing is left.
    """

    role: str
    num_turns: int
    num_cut: int
    num_lost: int


class StageReport(Report):
    """How one training stage went.

    `peak_memory_bytes` is what training took above what was held before; None where the
    platform does not tell, or several processes trained; `trace` the measurements that
    were asked for on the way; `cut` is of conversations alone.
    """

    stage: str
    recipe: str
    num_steps: int
    num_units: int
    num_tokens: int
    seconds: float
    tokens_per_second: float
    resumed_from_step: int | None = None
    fixed_seed: bool = False
    peak_memory_bytes: int | None = None
    curve: tuple[StageCurvePoint, ...] = ()
    trace: tuple[TracePoint, ...] = ()
    controller: ControllerReport | None = None
    cut: tuple[CutTurns, ...] = ()


class TrainedCanaries(Report):
    """How often one stage trained on each planted canary, by tokens. Holds no secret.

    Args:
        stage: its name.
        copies: of each planted canary, in their order: how often that token of the
            secret was trained on that was trained on least, behind the tokens before
            it, after redaction, cutting and weighing.
    """

    stage: str
    copies: tuple[int, ...]
