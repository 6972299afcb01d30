"""The schema of the YAML files under `configs/`: what may be set, in what range.

Every room of the library owns the settings of its own part; this module composes them.
`dptune.configfile` reads the files.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dptune.attacks.canaries import CanarySpec
from dptune.attacks.settings import AttackSettings
from dptune.data.duplicates import Duplicates
from dptune.data.public_units import ReleasedUnits, RoundedUnits
from dptune.data.source import DataSource, SyntheticSource, learnt_roles, shares_data
from dptune.detection.endpoint import JudgeSettings, LlmSettings
from dptune.detection.recognizer import DEFAULT_RECOGNIZERS, Tier
from dptune.detection.settings import (
    KnownValuesSettings,
    LanguageCode,
    LanguageSettings,
    OwnRules,
    TokenClassifierSettings,
)
from dptune.detection.third_party import GlinerSettings
from dptune.gates.policy import GatePolicy
from dptune.models.source import (
    Base,
    HubSource,
    ModelSource,
    PackageSource,
    PathSource,
    Task,
    reads_files,
)
from dptune.privacy import (
    Mode,
    NeighboringRelation,
    Notion,
    PrivacyUnit,
)
from dptune.recipes import Recipe
from dptune.redaction.operators import RedactionSettings
from dptune.settings import (
    BudgetSettings,
    RegistrySettings,
    Settings,
    SplitSettings,
    StepAuditSettings,
)


class DataSettings(Settings):
    """What is trained on, and what counts as one person's share of it.

    Args:
        public_units: about how many privacy units the training split has, canaries
            aside: declared, or released under noise. Rates, steps, batches, divisors
            and the check of delta follow from it. Without it they follow from the
            exact number, and a claim about who joins or leaves is conditional.
        sample_share: chance that a unit is taken, by a coin of its own.
        max_records: takes this many; one unit more may push out records of others, so
            that every claim becomes conditional on `sampled_corpus`.
        languages: the only ones whose records are taken; the others are dropped, each
            by what it says itself, and claims about replaced records become conditional
            on `language_is_public`. Records too short to tell stay.
        duplicates: which records go that repeat others, see `Duplicates`. `auto` drops
            across units where claims stay as they are (each unit is one record, without
            labels), else within units; other dropping across units makes them
            conditional on `deduplicated_corpus`.
        near_duplicate_threshold: Jaccard similarity from which records are counted as
            near duplicates; they are dropped only with `drop_near`.
        corpus_is_public: the corpus holds no personal data, so that a detector that
            finds nothing is no reason to stop.
        seed: public; decides the splits.
    """

    source: DataSource
    privacy_unit: PrivacyUnit
    public_units: RoundedUnits | ReleasedUnits | None = None
    splits: SplitSettings = SplitSettings()
    sample_share: float = Field(default=1.0, gt=0, le=1)
    max_records: int | None = Field(default=None, ge=10)
    languages: tuple[LanguageCode, ...] | None = Field(default=None, min_length=1)
    min_records: int = Field(default=100, ge=10)
    max_characters: int = Field(default=100_000, ge=10)
    duplicates: Duplicates = Duplicates.AUTO
    near_duplicate_threshold: float | None = Field(default=0.85, gt=0, le=1)
    allow_content_hash_ids: bool = False
    corpus_is_public: bool = False
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, values: object) -> object:
        old = ("drop_exact_duplicates", "drop_near_duplicates")
        named = [n for n in old if isinstance(values, dict) and n in values]
        if named:
            raise ValueError(
                f"{' and '.join(named)} must be written as duplicates. Instead of true "
                "write duplicates: drop_exact (drop_near for near ones as well), which "
                "makes claims conditional where units are not single records without "
                "labels; instead of false, duplicates: keep"
            )
        return values


RecognizerName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")]


class DetectionSettings(LanguageSettings, OwnRules):
    """Which recognizers mark personal data, and how widely.

    Args:
        recognizers: `patterns`, `lexicon`, `tagger` (the lexicon and a small network
            that judges and adds), `languages`, `spacy`, `presidio`, `gliner`,
            `token_classifier`, `llm`, or the entry point of another package; the
            preflight refuses names that nobody offers.
        spacy_pipeline, gliner, token_classifier, llm: exactly where the recognizer of
            the name is listed.
        own_patterns, deny_lists, allow_list, entity_types: see `OwnRules`.
        known_values: a file of values that are marked in every record. Values of the
            records' own units stand in `data.source.known_columns`.
        spacy_pipelines, known_languages, unknown_language: see `LanguageSettings`.
        use_review: apply the lists of imported reviews, and quote the missing rate of
            one that speaks of this corpus and this detector.
        review_lists: digest of the lists that the run must find; commands fill it in.
        missing_rate, missing_rate_upper: declared by hand, where nothing was measured.
    """

    tier: Tier = Tier.LOW_ENTITY
    recognizers: tuple[RecognizerName, ...] = Field(
        default=DEFAULT_RECOGNIZERS, min_length=1
    )
    spacy_pipeline: str | None = None
    gliner: GlinerSettings | None = None
    token_classifier: TokenClassifierSettings | None = None
    llm: LlmSettings | None = None
    known_values: KnownValuesSettings | None = None
    use_review: bool = True
    review_lists: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    missing_rate: float | None = Field(default=None, ge=0, le=1)
    missing_rate_upper: float | None = Field(default=None, ge=0, le=1)
    missing_rate_source: str = ""
    num_processes: int = Field(default=1, ge=1, le=64)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        needed = {
            "spacy": ("spacy_pipeline", self.spacy_pipeline),
            "gliner": ("gliner", self.gliner),
            "token_classifier": ("token_classifier", self.token_classifier),
            "llm": ("llm", self.llm),
        }
        for name, (setting, value) in needed.items():
            if (name in self.recognizers) != (value is not None):
                raise ValueError(
                    f"{setting} must be set exactly when recognizers lists {name!r}"
                )
        if set(self.recognizers) == {"llm"}:
            raise ValueError(
                "recognizers must list another one beside 'llm', which is sent only "
                "what the others did not mark; add 'patterns'"
            )
        if (self.missing_rate is None) != (self.missing_rate_upper is None):
            raise ValueError(
                "missing_rate and missing_rate_upper must be set together: an estimate "
                "without its upper confidence bound is not evidence"
            )
        return self


class ScoringSettings(Settings):
    """Where the counts behind the sensitivity scores come from.

    Args:
        counts: `table`, of public texts, built in; `released`, of this corpus with
            noise, which the budget pays for; `corpus`, of this corpus as it is, which
            marks the table as private unless the corpus is public.
        noise_multiplier: of the release: noise stddev / max_norm.
        max_norm: bound of the L2 norm of one privacy unit's counts, chosen without
            looking at the corpus.
        judge: a language model to ask about linkability and legal protection of types,
            beside the built-in table.
    """

    counts: Literal["table", "released", "corpus"] = "table"
    noise_multiplier: float | None = Field(default=None, gt=0, le=1e6)
    max_norm: float = Field(default=10.0, gt=0, le=1e6)
    judge: JudgeSettings | None = None

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if (self.counts == "released") != (self.noise_multiplier is not None):
            raise ValueError(
                "noise_multiplier must be set exactly when counts is 'released'"
            )
        return self


class ModelSettings(Base):
    """Where the weights come from, what they are for, how long a sequence may be.

    Args:
        task: `causal_lm` predicts the next token, `sequence_classification` the label
            of a record, which the source's `label_column` holds.
        labels: of a classifier, as they stand in the label column, in the order of its
            classes. They are public.
        public_text: what recipes may learn from without noise, such as the autoencoder
            of EW-FT.
        dtype, quantization, merged: see `Base`.
    """

    source: ModelSource
    task: Task = "causal_lm"
    labels: tuple[int | str, ...] = ()
    public_text: DataSource | None = None
    max_tokens: int = Field(ge=8, le=131_072)
    max_sequences_per_unit: int = Field(default=8, ge=1, le=4096)
    pretraining: "PretrainingSettings | None" = None

    def describe(self: Self) -> str:
        """Name the base model in one line, without machine paths."""
        match self.source:
            case HubSource():
                return f"{self.source.id}, revision {self.source.revision}"
            case PathSource():
                return f"directory {self.source.path}"
            case PackageSource():
                return f"{self.source.path} of the Python package {self.source.package}"
        public = "public text" if self.pretraining else "random weights"
        return f"GPT-2 architecture of {self.source.num_layers} layers, {public}"

    @property
    def reads_files(self: Self) -> bool:
        """Whether the base model follows from files that may change under their names.

        All public text counts but the one that is made of a seed.
        """
        shown = self.pretraining
        is_made = shown is None or isinstance(shown.source, SyntheticSource)
        return not is_made or reads_files(self.source)

    @property
    def class_names(self: Self) -> tuple[str, ...]:
        """Names of the classes; empty for a language model."""
        return tuple(map(str, self.labels))

    @model_validator(mode="after")
    def _check_task(self: Self) -> Self:
        classifies = self.task == "sequence_classification"
        if classifies != bool(self.labels):
            raise ValueError(
                "labels must be set exactly when task is sequence_classification"
            )
        if classifies and not 2 <= len(set(self.class_names)) == len(self.labels):
            raise ValueError("labels must be two or more, all different")
        if classifies and self.source.kind == "architecture":
            raise ValueError(
                "source.kind must not be architecture for sequence_classification: "
                "only language models are built from scratch"
            )
        return self

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if self.source.kind != "architecture":
            if self.pretraining is not None:
                raise ValueError(
                    "pretraining must be left out unless source.kind is architecture: "
                    "finished weights are not trained again on public text"
                )
        elif self.max_tokens > self.source.max_tokens:
            raise ValueError(
                f"max_tokens must be at most source.max_tokens "
                f"({self.source.max_tokens}), got {self.max_tokens}"
            )
        return self


class PretrainingSettings(Settings):
    """Training from scratch on public text, done once and cached."""

    source: DataSource
    epochs: float = Field(gt=0, le=1000)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0, le=1)


class PrivacySettings(Settings):
    """What is promised. There are no defaults: a default is a claim nobody made.

    Args:
        notion, relation: what the target speaks of.
        mode: whether the target is certified, or what the recipe's paper would print.
        target_epsilon: null when every noisy stage of the recipe gives its noise.
        target_delta: must be below 1 / number of units, the public one if there is one.
    """

    notion: Notion
    relation: NeighboringRelation
    mode: Mode = Mode.SOUND
    target_epsilon: float | None = Field(gt=0, le=1000)
    target_delta: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        replace = NeighboringRelation.REPLACE_ONE
        if self.notion is not Notion.RECORD and self.relation is not replace:
            raise ValueError(
                f"relation must be replace_one for the {self.notion} notion, because "
                "its neighbors differ by replacement (METHODS: notions)"
            )
        return self


class PerformanceSettings(Settings):
    """What changes speed and memory, and can never change the guarantee.

    Args:
        physical_batch_size: sequences in memory at once.
        block_size: steps that are charged, and stored, together.
        gradient_checkpointing: compute activations again in the backward pass, of which
            a private step then takes two: slower, in much less memory.
        dtype: of the forward and backward pass. Private stages in bfloat16 fill batches
            up to one shape, since kernels round by it.
        fixed_shapes: fill batches up to one shape, also for compilers and graphs. Null
            does so where the length of one record would move others by rounding: in
            private stages of models from 50 million weights.
        num_processes: of one machine that train a stage together; `auto` is one for
            each of its accelerators. Each holds `physical_batch_size` sequences.
        nodes: machines that train a stage together, with `num_processes` each. Only a
            profile of a cluster says so, where each is a pod.
        max_restarts: how often processes that were lost start again by themselves, from
            the last checkpoint. What they draw again is paid again, above what was
            planned, so that 0 leaves it to whoever starts the run again.
        detection_shards: parts of the corpus that are read by steps of their own, side
            by side where every step is a pod.
        sharding: `fsdp` spreads weights and optimizer over the processes, for models
            that fit on no single accelerator; `hsdp` over those of a machine, and
            copies them to all others; `none` gives each process a copy.
    """

    physical_batch_size: int = Field(default=32, ge=1)
    evaluation_batch_size: int = Field(default=64, ge=1)
    block_size: int = Field(default=20, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    fixed_shapes: bool | None = None
    num_processes: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = 1
    nodes: int = Field(default=1, ge=1, le=64)
    max_restarts: int = Field(default=0, ge=0, le=1000)
    detection_shards: int = Field(default=1, ge=1, le=256)
    sharding: Literal["none", "fsdp", "hsdp"] = "none"


class TrainConfig(Settings):
    """One training run, from raw text to a gate decision.

    Args:
        seed: fixes every draw, noise included. Only for tests: a claim made with a
            known seed is worth nothing, and the card says so. Leave it null.
        repetition: tells trainings of one configuration apart, each of which draws its
            canaries, batches and noise and is charged by itself; it seeds nothing.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,60}$")
    seed: int | None = Field(default=None, ge=0)
    repetition: int = Field(default=0, ge=0)
    data: DataSettings
    canaries: CanarySpec
    detection: DetectionSettings = DetectionSettings()
    scoring: ScoringSettings = ScoringSettings()
    redaction: RedactionSettings = RedactionSettings()
    model: ModelSettings
    recipe: Recipe
    privacy: PrivacySettings
    budget: BudgetSettings = BudgetSettings()
    attack: AttackSettings = AttackSettings()
    audit: StepAuditSettings = StepAuditSettings()
    gate: GatePolicy
    registry: RegistrySettings
    performance: PerformanceSettings = PerformanceSettings()

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        rows, clips = self.performance.physical_batch_size, self.recipe.stages
        is_whole = any(s.clipping and s.clipping.transform for s in clips)
        is_whole |= self.performance.sharding != "none"
        if is_whole and self.model.max_sequences_per_unit > rows:
            raise ValueError(
                "performance.physical_batch_size must be at least "
                f"model.max_sequences_per_unit ({self.model.max_sequences_per_unit}), "
                f"got {rows}: transforms and shards want a unit in one pass"
            )
        pretraining = self.model.pretraining
        sources = (pretraining and pretraining.source, self.model.public_text)
        if any(source and shares_data(source, self.data.source) for source in sources):
            raise ValueError(
                "model.pretraining.source and model.public_text must be public text, "
                "got the source of the private data, or a file of it: they would be "
                "learnt without noise"
            )
        return self

    @model_validator(mode="after")
    def _check_chat(self: Self) -> Self:
        learnt, model = learnt_roles(self.data.source), self.model
        shown = model.pretraining
        public = [model.public_text] + ([shown.source] if shown else [])
        has_canaries = self.canaries.num_planted + self.canaries.num_held_out
        fits = not learnt and self.canaries.role is None
        is_learnt = not has_canaries or self.canaries.role in learnt
        rules = {
            f"canaries.role must be one that is learnt ({', '.join(learnt) or 'none'}),"
            " so that a loss reaches every secret": fits or bool(learnt and is_learnt),
            "detection.role_tiers must be left out for plain text": bool(learnt)
            or not self.detection.role_tiers,
            "model must be a language model with a chat template for conversations: no "
            "classifier, no architecture": not learnt
            or (model.task == "causal_lm" and model.source.kind != "architecture"),
            "public text must be plain": not any(s and learnt_roles(s) for s in public),
        }
        if wrong := [rule for rule, holds in rules.items() if not holds]:
            raise ValueError("; ".join(wrong))
        return self

    @model_validator(mode="after")
    def _check_base(self: Self) -> Self:
        has_adapters = any(stage.lora for stage in self.recipe.stages)
        is_whole = self.performance.sharding == "none"
        if self.model.quantization and not (has_adapters and is_whole):
            raise ValueError(
                "model.quantization must be null unless a stage trains adapters "
                "(trains: lora) and performance.sharding is none: all other weights "
                "are float32"
            )
        return self

    @model_validator(mode="after")
    def _check_screened(self: Self) -> Self:
        stages = self.recipe.stages
        is_read = any(stage.screened and stage.screened.screened_by for stage in stages)
        if is_read and not self.detection.use_review:
            raise ValueError(
                "detection.use_review must be true where screened_by names a reader: "
                "what the reader put on the deny list would not be masked"
            )
        return self

    @model_validator(mode="after")
    def _check_units(self: Self) -> Self:
        released = isinstance(self.data.public_units, ReleasedUnits)
        if released and self.privacy.notion is Notion.LOCAL:
            raise ValueError(
                "data.public_units must be a declared number for the local notion, "
                "whose server sees how many send"
            )
        return self

    @model_validator(mode="after")
    def _check_classifier(self: Self) -> Self:
        if self.model.task != "sequence_classification":
            return self
        if getattr(self.data.source, "label_column", None) is None:
            raise ValueError(
                "data.source.label_column must be set for sequence_classification"
            )
        if self.canaries.num_planted or self.canaries.num_held_out:
            raise ValueError(
                "canaries.num_planted and canaries.num_held_out must be 0 for "
                "sequence_classification: a classifier writes no text, so that the "
                "rank of a secret cannot be measured"
            )
        return self


ModelSettings.model_rebuild()
