"""What is known of a run's cost before it trains: values only, all of them public."""

from dptune.privacy import CertificateStatus, NeighboringRelation, Notion, UnitsFrom
from dptune.results.base import Report


class NoiseCost(Report):
    """The noise of one stage, as a share of C in the mean that the optimizer sees.

    Args:
        noise_multiplier: noise stddev / C.
        num_bands: steps over which the noise is correlated; 1 is independent.
        step_noise: stddev of the noise in the mean of one step, over C; root mean
            square over the steps. Bands raise it.
        run_noise: stddev of the independent noise per step that would leave as much
            noise in the sums of the steps so far, over C. Equal to `step_noise`
            without bands, below it with them: compare stages by this one.
        signal_to_noise: sqrt(steps) / `run_noise`: what the run could add up in one
            direction if all clipped gradients agreed, over the noise there. No run
            comes near; it ranks plans.
    """

    noise_multiplier: float
    num_bands: int
    step_noise: float
    run_noise: float
    signal_to_noise: float


class StageCost(Report):
    """One stage of the plan.

    Args:
        sampling: who joins a step; `shuffled` without noise.
        noise: None in a stage without noise.
    """

    stage: str
    view: str
    sampling: str
    epochs: float
    num_steps: int
    expected_batch_size: int
    max_batch_size: int | None
    sample_rate: float
    max_grad_norm: float | None
    noise: NoiseCost | None


class Promise(Report):
    """One claim about the whole run.

    Args:
        noisy_epsilon: of the noisy stages alone; None without any.
        epsilon: of the run, with its stages that add no noise.
        assumptions: names of what a conditional one rests on.
        is_target: whether the configuration promises this one.
    """

    notion: Notion
    relation: NeighboringRelation
    noisy_epsilon: float | None
    epsilon: float
    status: CertificateStatus
    assumptions: tuple[str, ...] = ()
    is_target: bool


class TargetChoice(Report):
    """What one target would need under either relation; None is impossible."""

    target_epsilon: float
    is_planned: bool
    add_or_remove: NoiseCost | None
    replace: NoiseCost | None


class BatchChoice(Report):
    """Another batch size at the same target and the same epochs.

    Args:
        noise: None where no noise reaches the target.
    """

    expected_batch_size: int
    num_steps: int
    is_planned: bool
    noise: NoiseCost | None


class EpsilonGrid(Report):
    """Epsilon of the run under the promised relation, over two choices.

    Args:
        rows: batch sizes or noise multipliers.
        epochs: columns.
        num_steps: `(rows, columns)`.
        epsilon: `(rows, columns)`.
        planned: row and column of the plan.
    """

    rows: tuple[float, ...]
    epochs: tuple[float, ...]
    num_steps: tuple[tuple[int, ...], ...]
    epsilon: tuple[tuple[float, ...], ...]
    planned: tuple[int, int]


class WhatIf(Report):
    """Choices around the plan of one noisy stage, the others left as planned.

    Args:
        stage: the one that is varied.
        by_batch: batch size against epochs, at the planned noise.
        by_noise: noise multiplier against epochs, at the planned batch size.
        batches: noise that other batch sizes need; empty where the noise is given.
        hint: what the batches say, in one or two sentences.
    """

    stage: str
    targets: tuple[TargetChoice, ...]
    batches: tuple[BatchChoice, ...]
    by_batch: EpsilonGrid
    by_noise: EpsilonGrid
    hint: str


class PowerLine(Report):
    """One thing that the gate will ask of the evidence.

    Args:
        planned: what the configuration will give.
        needed: what the policy asks for; None where it asks for nothing.
        enough: whether the first is at least the second.
        meaning: one sentence.
    """

    name: str
    planned: float
    needed: float | None
    enough: bool
    meaning: str


class AuditPower(Report):
    """Whether the gate will be able to decide on a run, before it trains.

    Args:
        policy: name and version.
        lines: one for each demand.
    """

    policy: str
    lines: tuple[PowerLine, ...]

    @property
    def enough(self) -> bool:
        """Whether nothing planned makes a pass impossible or unlikely."""
        return all(line.enough for line in self.lines)


class AttackCost(Report):
    """What one attack takes on the machine where it was asked.

    Args:
        attack: its name.
        num_tokens: that go through a model, at most.
        seconds: that this takes.
    """

    attack: str
    num_tokens: int
    seconds: float


class Calibration(Report):
    """A run's plan, its promises, and what other choices would cost.

    Args:
        epsilon: of all noisy stages under the promised relation.
        what_if: None where no stage adds noise.
        power: of the planned audit under the run's policy; None where nobody asked.
        attacks: what they take on this machine; empty where nobody measured.
    """

    config: str
    recipe: str
    notion: Notion
    relation: NeighboringRelation
    target_epsilon: float | None
    target_delta: float
    epsilon: float
    num_units: int
    units_from: UnitsFrom = UnitsFrom.EXACT
    stages: tuple[StageCost, ...]
    promises: tuple[Promise, ...]
    what_if: WhatIf | None
    power: AuditPower | None = None
    attacks: tuple[AttackCost, ...] = ()
