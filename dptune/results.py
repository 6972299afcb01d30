"""Plain reports: what attacks and checks write, and gates, cards and pages read.

Every report is frozen, versioned JSON, holds no record text, and says which model and
corpus it speaks of. Those of attacks say when they ran (`measured_at`), so that an
answer from a cache keeps its age. Infinite and NaN floats survive a round trip as
strings.
"""

from typing import Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

MissingRateOrigin = Literal["", "gold", "review", "declared"]


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


class Expectation(Report):
    """Verdict of one data expectation: booleans and counts, never a value."""

    name: str
    success: bool
    detail: str = ""


class ValidationReport(Report):
    """What Great Expectations said of one corpus view."""

    view: str
    success: bool
    expectations: tuple[Expectation, ...]


class CorpusReport(Report):
    """Counts of one ingested corpus.

    `num_duplicates_across_units` counts dropped records whose kept copy belongs to
    another privacy unit: a dependence between units that a claim has to name. `sampled`
    is another: whether a limit on the number of records may leave some out.

    Args:
        deduplicated: whether original text decided which records stay, within units
            or across them.
        duplicates_are_free: whether dropping them keeps every claim as it is; see
            `dptune.data.deduplication`. Reports of before do not know.
        assumes: names of what else makes one unit's data depend on another's.
        marks_assume: the same of what was marked, for stages that see marks.
    """

    source: str
    fingerprint: str
    num_read: int
    num_records: dict[str, int]
    num_units: dict[str, int]
    num_exact_duplicates: int
    num_near_duplicates: int
    num_duplicates_across_units: int = 0
    num_characters: int
    privacy_unit: str
    ids_are_content_hashes: bool = False
    units_are_content_hashes: bool = False
    deduplicated: bool = True
    duplicates_are_free: bool = False
    sampled: bool = False
    assumes: tuple[str, ...] = ()
    marks_assume: tuple[str, ...] = ()
    redaction: str = ""
    validation: ValidationReport


class DetectionReport(Report):
    """What the detector marked in one corpus.

    `num_canaries_detected` counts planted canaries all of whose copies have their whole
    secret marked, once their setting was applied; None where nobody looked.

    Args:
        missing_rate: missed sensitive words / all words, if it was measured.
        missing_rate_source: how it was measured, as a card quotes it.
        missing_rate_origin: what it was measured by, or that somebody declared it;
            empty in reports from before, and without a rate.
        missing_rate_texts: records or sentences that it was measured on.
        missing_rate_refusal: why an imported rate does not hold here.
        review: id of the reviewed sample, if the rate comes from one.
    """

    fingerprint: str
    tier: str
    recognizers: tuple[str, ...]
    num_records: int
    num_records_with_spans: int
    num_spans: dict[str, int]
    masked_character_share: float
    missing_rate: float | None = None
    missing_rate_interval: Interval | None = None
    num_canaries_detected: int | None = None
    missing_rate_source: str = ""
    missing_rate_origin: MissingRateOrigin = ""
    missing_rate_texts: int = 0
    missing_rate_refusal: str = ""
    review: str = ""


class RedactionReport(Report):
    """What redaction left behind.

    Args:
        residual_values: by entity type, values found in one place of a record that
            stand elsewhere in it still.
    """

    operator: str
    masked_character_share: float
    validation: ValidationReport
    residual_values: dict[str, int] = {}


class StageCurvePoint(Report):
    """One point of a training curve. `loss` is private: it never reaches a card."""

    step: int
    loss: float
    epsilon: float | None = None


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


class StageReport(Report):
    """How one training stage went.

    `peak_memory_bytes` is what training took above what was held before; None where the
    platform does not tell, or several processes trained; `trace` the measurements that
    were asked for on the way.
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


class CanaryExposure(Report):
    """Rank of one canary among all candidates under one model. Holds no secret.

    Args:
        canary_id: public name such as `planted-3`.
        planted: False for a held-out control of the same law.
        rank: 1 is the most likely of `space_size` candidates.
        exposure: `log2(space_size) - log2(rank)`, bits (Carlini et al. 2019, eq. 2).
        nll: total negative log likelihood of the tokens that are scored, nats.
        method: how the rank was found. Unless `exact`, rank is an upper bound of it or
            a p-value times `space_size`: it may show a leak, never the absence of one.
        exposure_interval: where exposure lies, unless `exact`.
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
        "exact", "certified_bound", "uniform_sample", "importance_sample"
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
    uses them. `scored` says which tokens of a candidate are, and `ties` where a canary
    comes among equals; reports from before scored those that overlap the secret, and
    put it first.
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
    scored: str = ""
    ties: str = ""
    measured_at: AwareDatetime | None = None

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
    """

    num_models: int
    num_records: int


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


class UtilityReport(Report):
    """Loss of one model on held-out records; per-record values allow paired tests.

    A classifier has one token to predict per record, its class, and accuracies: its
    own, its base's, and that of always answering the most frequent training class. A
    language model has token accuracies: how often the next token is its first choice.
    `base_record_nll` is empty in reports from before it was kept.
    """

    model_digest: str
    corpus_fingerprint: str
    split: str
    num_records: int
    num_tokens: int
    nll_per_token: float
    perplexity: float
    base_perplexity: float
    record_nll: tuple[float, ...]
    record_tokens: tuple[int, ...]
    accuracy: float | None = None
    accuracy_interval: Interval | None = None
    base_accuracy: float | None = None
    majority_accuracy: float | None = None
    token_accuracy: float | None = None
    base_token_accuracy: float | None = None
    base_record_nll: tuple[float, ...] = ()
    measured_at: AwareDatetime | None = None


class ChampionReport(Report):
    """The version in production, measured on this run's held-out records.

    Args:
        model_digest: its weights; None where there is no champion.
        utility: its loss; None where there is no champion.
    """

    model_digest: str | None = None
    utility: UtilityReport | None = None


class RegisteredVersion(Report):
    """One model version as both registries know it.

    Args:
        version: the number in MLflow; ZenML's model version is called `v` + number.
        model_uri: where MLflow keeps the logged model.
    """

    model_name: str
    version: str
    model_digest: str
    model_uri: str
    recipe: str


class BudgetReservation(Report):
    """What a run holds of a data set's budget, as its training steps need it.

    Args:
        id: of the reservation in the budget store.
        data_set: whose budget it is.
        num_units: source units that the run reads; canaries are none.
        head_sequence: entries of the store's log after it was made.
        head_hash: of the last of them.
    """

    id: str
    data_set: str
    num_units: int
    head_sequence: int
    head_hash: str


class BudgetLine(Report):
    """What a data set's worst cohort has spent under one notion. Never add two lines.

    Args:
        notion: `Notion` of the line.
        relation: `NeighboringRelation` of the line.
        allowance: granted epsilon; None where nothing was granted.
        spent: epsilon of everything drawn, composed.
        committed: the same with all that open reservations may still draw.
        tuning: epsilon of the trials of sweeps alone, composed.
        worst_cohort_units: how many units have spent that much.
    """

    notion: str
    relation: str
    delta: float
    allowance: float | None
    spent: float
    committed: float
    tuning: float
    worst_cohort_units: int

    @property
    def left(self: Self) -> float | None:
        """Allowance less what is committed: a guide, since epsilons do not add."""
        if self.allowance is None:
            return None
        return max(self.allowance - self.committed, 0.0)


class LedgerCurve(Report):
    """Epsilon so far over the steps of one stage, under one notion.

    Args:
        stage: name of the stage.
        notion: `Notion` of every epsilon.
        relation: `NeighboringRelation` of every epsilon.
        delta: of every epsilon.
        steps: charged so far, counted from the start of the run.
        epsilon: of everything up to there, composed.
    """

    stage: str
    notion: str
    relation: str
    delta: float
    steps: tuple[int, ...]
    epsilon: tuple[float, ...]


class BudgetReport(Report):
    """What one data set has spent over all runs, as the budget store knows it.

    Args:
        sweeps: how many trials each sweep drew.
        head_sequence: entries of the store's log when this was read.
        head_hash: of the last of them; kept here, it betrays a store that is rewritten.
        curves: how the run that made this report spent; none outside a run.
        reservation: of that run; empty outside one.
    """

    data_set: str
    privacy_unit: str
    num_units: int
    num_cohorts: int
    num_runs: int
    num_open: int
    sweeps: dict[str, int]
    lines: tuple[BudgetLine, ...]
    head_sequence: int
    head_hash: str
    curves: tuple[LedgerCurve, ...] = ()
    reservation: str = ""
