"""What attacks found: exposure of canaries, membership, extraction."""

import math
from typing import Literal, Self

from pydantic import AwareDatetime

from dptune.results.base import Interval, Report


class CanaryExposure(Report):
    """Rank of one canary among all candidates under one model. Holds no secret.

    Args:
        canary_id: public name such as `planted-3`.
        planted: False for a held-out control of the same law.
        rank: 1 is the most likely of `space_size` candidates; where the method is
            `interval` the smallest that it can be.
        exposure: `log2(space_size) - log2(rank)`, bits (Carlini et al. 2019, eq. 2).
        nll: total negative log likelihood of the tokens that are scored, nats.
        method: how the rank was found. `interval` is one end of it. Otherwise, unless
            `exact`, rank is an upper bound of it or a p-value times `space_size`: it
            may show a leak, never the absence of one.
        exposure_interval: where exposure lies, unless `exact`. Those of the method
            `interval` hold under a model and its base, of all canaries together.
        certified_exposure: exposure is at least this, whatever the sample.
        marked: whether its secret was marked for redaction, where the setting decided
            that; None where the detector did, and for controls.
        extrapolated_exposure: what a skew-normal law fitted to random candidates says;
            no evidence, kept for comparison with papers.
        trained: copies whose whole secret had a loss in some stage, see
            `TrainedCanaries`; None where nobody counted, and for controls.
    """

    canary_id: str
    planted: bool
    insertions: int
    rank: int
    exposure: float
    nll: float
    method: Literal[
        "exact", "interval", "certified_bound", "uniform_sample", "importance_sample"
    ] = "exact"
    exposure_interval: Interval | None = None
    certified_exposure: float | None = None
    extrapolated_exposure: float | None = None
    marked: bool | None = None
    trained: int | None = None


class ExposureReport(Report):
    """Exposure of every canary, planted and held out, under one model and its base.

    `not_measurable` says why a report holds no canary where there can be none.
    `drawn` says that the planted secrets were drawn at random. Those that were given,
    or of which nobody knows, follow no uniform law: no test of a leak, and no audit,
    uses them. `appended` says that canaries sit in records of others, so that one more
    changes a record and adds none. `scored` says which tokens of a candidate are, and
    `ties` where a canary comes among equals; reports from before scored those that
    overlap the secret, and put it first.
    """

    model_digest: str
    base_model_digest: str
    canary_set_digest: str
    space_size: int
    scoring: Literal["sum", "mean"]
    setting: Literal["as_detected", "missed", "not_missed", "partly_missed"]
    exact: bool
    canaries: tuple[CanaryExposure, ...]
    base_canaries: tuple[CanaryExposure, ...]
    planted_found: int
    planted_expected: int
    num_token_forwards: int
    not_measurable: str = ""
    drawn: bool = False
    appended: bool = False
    scored: str = ""
    ties: str = ""
    measured_at: AwareDatetime | None = None

    @property
    def is_bounded(self: Self) -> bool:
        """Whether no rank is smaller than it is said to be: counted, or a near end."""
        methods = {c.method for c in self.canaries}
        return self.exact or "interval" in methods <= {"exact", "interval"}

    @property
    def doubt(self: Self) -> float:
        """Chance that some interval does not hold its rank; 0 without any."""
        every = (*self.canaries, *self.base_canaries)
        found = [c.exposure_interval for c in every if c.method == "interval"]
        return max((1 - one.confidence for one in found if one), default=0.0)

    def farthest_rank(self: Self, canary: CanaryExposure) -> int:
        """Largest rank that a canary may have: its own, unless that is an interval."""
        if canary.method != "interval" or canary.exposure_interval is None:
            return canary.rank
        return round(self.space_size * math.exp2(-canary.exposure_interval.low))

    def planted(self: Self) -> tuple[CanaryExposure, ...]:
        """Canaries that were in the training data."""
        return tuple(c for c in self.canaries if c.planted)

    def trained(self: Self) -> tuple[CanaryExposure, ...]:
        """Planted canaries all of whose copies were trained on: those that measure."""
        return tuple(
            c for c in self.planted() if c.trained and c.trained >= c.insertions
        )

    def held_out(self: Self) -> tuple[CanaryExposure, ...]:
        """Controls of the same law that were not."""
        return tuple(c for c in self.canaries if not c.planted)

    def base_planted(self: Self) -> tuple[CanaryExposure, ...]:
        """The planted canaries under the model before fine-tuning."""
        return tuple(c for c in self.base_canaries if c.planted)


STRONGEST_ATTACK = "combined"
"""The membership attack that uses all others, learnt on shadow models."""


class RateAtFpr(Report):
    """True positives of one attack at one more false-positive rate.

    Args:
        fpr: the false-positive rate.
        needed: non-members that it takes to resolve it.
        tpr: None where there were fewer: not resolvable, which is no zero.
        interval: of `tpr`, None likewise.
    """

    fpr: float
    needed: int
    tpr: float | None = None
    interval: Interval | None = None

    @property
    def resolvable(self: Self) -> bool:
        """Whether there were enough non-members."""
        return self.tpr is not None


class MembershipSignal(Report):
    """One membership attack: area, true positives at a low false-positive rate, ROC.

    `rates` holds the true positives at other false-positive rates; `hits` the members
    strictly above the highest non-member, the second highest, and so on, from which an
    interval of any confidence follows (`dptune.statistics.hit_rate_interval`).
    """

    name: str
    auc: float
    auc_interval: Interval
    tpr_at_low_fpr: float
    tpr_at_low_fpr_interval: Interval
    low_fpr: float = 0.01
    hits: tuple[int, ...] = ()
    rates: tuple[RateAtFpr, ...] = ()
    roc_fpr: tuple[float, ...] = ()
    roc_tpr: tuple[float, ...] = ()


class BlindSignal(MembershipSignal):
    """The attack that sees no model.

    Args:
        p_value: of texts so uneven by luck; None in reports from before it was taken.
    """

    p_value: float | None = None


class ShadowReport(Report):
    """The shadow models behind some attacks: dropped, and outside any epsilon.

    Args:
        num_models: shadows that were trained.
        num_records: attacked records, members or not, that each was trained on.
        effect: mean over records of how much better the shadows that saw one know it
            than those that did not, in the unit of their statistic.
        model_effect: how much better the attacked model knows members than others, less
            two standard errors. Both are None in reports from before.
    """

    num_models: int
    num_records: int
    effect: float | None = None
    model_effect: float | None = None


class MembershipReport(Report):
    """All membership attacks on one model, and a blind baseline that sees no model.

    `shadows` is None where no shadow model was trained.
    """

    model_digest: str
    base_model_digest: str
    num_members: int
    num_non_members: int
    signals: tuple[MembershipSignal, ...]
    blind: BlindSignal
    shadows: ShadowReport | None = None
    measured_at: AwareDatetime | None = None

    def strongest(self: Self) -> MembershipSignal:
        """The attack with the most true positives at the low false-positive rate."""
        return max(self.signals, key=lambda s: (s.tpr_at_low_fpr, s.auc))


class NgramSimilarity(Report):
    """How alike valid continuations are to planted canaries, and to controls.

    Args:
        size: characters of an n-gram.
        planted: mean Jaccard similarity over all pairs, and its standard deviation.
        held_out: the same to controls, which no model saw.
        difference: what is left of it, with an interval over canaries.
    """

    size: int
    planted: float
    planted_stddev: float
    held_out: float
    held_out_stddev: float
    difference: float
    difference_interval: Interval


class CanarySampling(Report):
    """Trials that ask the model for a canary. Holds no continuation.

    Args:
        num_trials: continuations drawn.
        num_valid: those of nothing but symbols of a secret.
        planted_hits: trials that begin with a planted secret.
        held_out_hits: trials that begin with a control.
        planted_found: planted secrets that some trial begins with.
        held_out_found: controls likewise.
        similarities: empty where nothing was valid, or there was no control.
    """

    num_trials: int
    num_valid: int
    planted_hits: int
    held_out_hits: int
    planted_found: int
    held_out_found: int
    similarities: tuple[NgramSimilarity, ...] = ()


class DiscoverableShare(Report):
    """Shares of texts that `trials` trials draw with at least this chance.

    None where a group is empty.
    """

    trials: int
    chance: float
    members: float | None
    members_interval: Interval | None
    controls: float | None
    controls_interval: Interval | None


class PersonalDataShare(Report):
    """How often one attack on personal data was right, and how often on controls.

    Args:
        attack: `extraction`, `reconstruction` or `inference`.
        members: right answers on values of the training data.
        num_members: attempts.
        controls: right answers on values of held-out records.
        num_controls: attempts.
        chance: share that guessing gets right; None where it is not known.
    """

    attack: str
    members: int
    num_members: int
    members_interval: Interval
    controls: int
    num_controls: int
    controls_interval: Interval
    chance: float | None = None


class ExtractionReport(Report):
    """What sampling draws out of one model, beside controls and its base.

    Args:
        temperature, top_k, top_p: the decoding.
        sampling: trials that ask for a canary; None where there is none.
        base_sampling: the same of the base model.
        canaries: discoverable secrets, held-out ones as controls.
        records: discoverable endings of training records, test records as controls.
        personal_data: values that the project's own detectors mark; None where this
            attack was not asked for.
        base_personal_data: the same of the base model.
    """

    model_digest: str
    base_model_digest: str
    temperature: float
    top_k: int
    top_p: float
    num_planted: int
    num_held_out: int
    num_members: int
    num_non_members: int
    sampling: CanarySampling | None = None
    base_sampling: CanarySampling | None = None
    canaries: tuple[DiscoverableShare, ...] = ()
    records: tuple[DiscoverableShare, ...] = ()
    personal_data: tuple[PersonalDataShare, ...] | None = None
    base_personal_data: tuple[PersonalDataShare, ...] | None = None
    measured_at: AwareDatetime | None = None
