"""Attack a sequence classifier and measure its accuracy."""

from collections import Counter
from collections.abc import Callable

from datasets import Dataset

from dptune.attacks.canaries import CanarySet
from dptune.attacks.classification import (
    LabelledSequences,
    classification_membership,
    classification_utility,
)
from dptune.attacks.roc import RocSettings
from dptune.config import AttackSettings, PerformanceSettings
from dptune.data.corpus import Corpus
from dptune.data.units import seeded_fraction
from dptune.errors import DataError
from dptune.models.bundle import ModelBundle
from dptune.models.classes import class_numbers, encode_classes
from dptune.models.loading import LoadedModel
from dptune.results import ExposureReport, MembershipReport, UtilityReport
from dptune.workflow.device import pick_device
from dptune.workflow.shadowing import shadow_training

HELD_OUT = "test"

NO_EXPOSURE = (
    "A classifier writes no text, so that no secret can be ranked among its "
    "candidates: exposure is not measurable, and membership is the only attack."
)


def unmeasurable_exposure(
    model: ModelBundle, base: ModelBundle, canaries: CanarySet
) -> ExposureReport:
    """Return a report without canaries that says why it has none."""
    return ExposureReport(
        model_digest=model.digest,
        base_model_digest=base.digest,
        canary_set_digest=canaries.digest,
        space_size=canaries.spec.space_size,
        scoring="sum",
        setting=canaries.spec.setting,
        exact=True,
        canaries=(),
        base_canaries=(),
        planted_found=0,
        planted_expected=canaries.num_expected,
        num_token_forwards=0,
        not_measurable=NO_EXPOSURE,
    )


def attack_membership(
    model: tuple[ModelBundle, LoadedModel],
    base: tuple[ModelBundle, LoadedModel],
    corpus: Corpus,
    *,
    max_tokens: int,
    attacks: AttackSettings,
    speed: PerformanceSettings,
    say: Callable[[str], None] = lambda _: None,
) -> MembershipReport:
    """Tell records of the training split from held-out ones by class losses.

    Raises:
        DataError: there is no test split to compare with.
    """
    groups = [
        labelled(
            sample_rows(corpus.split(split), attacks.num_members),
            model[1],
            max_tokens=max_tokens,
        )
        for split in ("train", HELD_OUT)
    ]
    if not groups[1].tokens:
        raise DataError(
            "the corpus must have a test split: without records that were not trained "
            "on, no attack has a control. Set data.splits.test."
        )
    shadows = shadow_training(
        base[1], attacks, max_tokens=max_tokens, performance=speed, say=say
    )
    return classification_membership(
        *groups,
        model=model[1].model,
        base_model=base[1].model,
        model_digest=model[0].digest,
        base_model_digest=base[0].digest,
        batch_size=speed.evaluation_batch_size,
        device=pick_device(speed.device),
        settings=RocSettings(num_resamples=attacks.num_bootstrap),
        train_shadow=shadows.train if shadows else None,
        num_shadows=shadows.settings.num_models if shadows else 0,
    )


def measure_accuracy(
    model: tuple[ModelBundle, LoadedModel],
    base: LoadedModel,
    corpus: Corpus,
    *,
    max_tokens: int,
    speed: PerformanceSettings,
) -> UtilityReport:
    """Measure accuracy on the held-out split, beside the base and a constant answer."""
    training = class_numbers(corpus.split("train"), class_names=model[1].class_names)
    return classification_utility(
        labelled(corpus.split(HELD_OUT), model[1], max_tokens=max_tokens),
        model=model[1].model,
        base_model=base.model,
        model_digest=model[0].digest,
        corpus_fingerprint=corpus.fingerprint,
        split=HELD_OUT,
        majority_class=Counter(training).most_common(1)[0][0],
        batch_size=speed.evaluation_batch_size,
        device=pick_device(speed.device),
    )


def labelled(
    rows: Dataset, loaded: LoadedModel, *, max_tokens: int
) -> LabelledSequences:
    """Encode records as training does."""
    encoded = encode_classes(
        rows, loaded.tokenizer, max_tokens=max_tokens, class_names=loaded.class_names
    )
    return LabelledSequences(
        tokens=list(encoded["input_ids"]),
        labels=list(encoded["labels"]),
        texts=list(rows["text"]),
    )


def sample_rows(rows: Dataset, count: int) -> Dataset:
    """Take `count` rows, chosen by a hash of their ids."""
    if len(rows) <= count:
        return rows
    ids = rows["id"]
    order = sorted(
        range(len(rows)),
        key=lambda i: seeded_fraction(ids[i], seed=0, purpose="attack"),
    )
    return rows.select(sorted(order[:count]))
