"""What a version is held to: its utility, the champion, its place in registries."""

from pydantic import AwareDatetime

from dptune.results.base import Interval, Report


class UtilityReport(Report):
    """Loss of one model on held-out records; per-record values allow paired tests.

    A classifier has one token to predict per record, its class, and accuracies: its
    own, its base's, and that of always answering the most frequent training class. A
    language model has token accuracies: how often the next token is its first choice.
    `record_units` numbers the units that records are of, where one has several; it and
    `base_record_nll` are empty in reports from before they were kept.
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
    record_units: tuple[int, ...] = ()
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
