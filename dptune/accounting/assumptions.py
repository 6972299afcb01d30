"""What a claim takes for granted, in words that end on the privacy card.

An assumption either *weakens* a claim (`conditional`: a theorem that needs something
the code cannot enforce), or says *what was taken as public* (the claim is then about
everything else). The table is closed: a card can explain every name it prints.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dptune.privacy import NeighboringRelation, Notion


class Assumption(StrEnum):
    """Names of all assumptions that a ledger entry may make."""

    DETECTOR_RECALL_IS_ONE = "detector_recall_is_one"
    REDACTED_VIEW_IDENTICAL_FOR_NEIGHBORS = "redacted_view_identical_for_neighbors"
    DEDUPLICATION_SAW_REDACTED_TEXT_ONLY = "deduplication_saw_redacted_text_only"
    SCREENED_BY_HAND = "screened_by_hand"
    LENGTHS_AND_TYPES_ARE_PUBLIC = "lengths_and_types_are_public"
    PUBLIC_HYPERPARAMETERS = "public_hyperparameters"
    NUM_UNITS_IS_PUBLIC = "num_units_is_public"
    NUM_UNITS_WAS_DECLARED = "num_units_was_declared"
    NUM_UNITS_WAS_RELEASED = "num_units_was_released"
    PUBLIC_WORD_LIST = "public_word_list"
    DEDUPLICATED_CORPUS = "deduplicated_corpus"
    SAMPLED_CORPUS = "sampled_corpus"
    POSITIONS_NAME_RECORDS = "positions_name_records"
    CANARY_HOSTS_ARE_FIXED = "canary_hosts_are_fixed"
    REPLACEMENT_KEEPS_NUM_UNITS = "replacement_keeps_num_units"
    PRIVATE_REVIEW_LISTS = "private_review_lists"
    PUBLIC_REVIEW_LISTS = "public_review_lists"
    PRIVATE_KNOWN_VALUES = "private_known_values"
    PUBLIC_KNOWN_VALUES = "public_known_values"
    MARKS_FOLLOW_ONE_TEXT = "marks_follow_one_text"
    UNREAD_LANGUAGES = "unread_languages"
    LANGUAGE_IS_PUBLIC = "language_is_public"
    BASE_MODEL_IS_PUBLIC = "base_model_is_public"
    LABELS_ARE_SENT = "labels_are_sent"
    END_IS_PUBLIC = "end_is_public"
    FIXED_SEED_RANDOMNESS = "fixed_seed_randomness"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What one assumption means.

    Args:
        sentence: one sentence for a reader who knows no privacy theory.
        weakens: claims that become conditional on it, by notion and relation.
    """

    sentence: str
    weakens: frozenset[tuple[Notion, NeighboringRelation]] = frozenset()


_SELECTIVE: Final = frozenset({(Notion.SELECTIVE, NeighboringRelation.REPLACE_ONE)})
_PRESENCE: Final = frozenset({(Notion.RECORD, NeighboringRelation.ADD_OR_REMOVE_ONE)})
"""Neighbors of all other claims have equally many units, or say otherwise."""
_REPLACED: Final = frozenset((n, NeighboringRelation.REPLACE_ONE) for n in Notion)
_ALL: Final = frozenset((n, r) for n in Notion for r in NeighboringRelation)

EXPLANATIONS: Final[dict[Assumption, Explanation]] = {
    Assumption.DETECTOR_RECALL_IS_ONE: Explanation(
        sentence="The detector found every sensitive token; one that it missed was "
        "trained on in the clear and has no protection.",
        weakens=_SELECTIVE,
    ),
    Assumption.REDACTED_VIEW_IDENTICAL_FOR_NEIGHBORS: Explanation(
        sentence="The redacted text does not depend on the values of secrets: another "
        "name in the same place leaves the same mask and changes nothing else.",
        weakens=_SELECTIVE,
    ),
    Assumption.DEDUPLICATION_SAW_REDACTED_TEXT_ONLY: Explanation(
        sentence="Which records were dropped as duplicates was decided on redacted "
        "text, so that it does not depend on secrets.",
        weakens=_SELECTIVE,
    ),
    Assumption.SCREENED_BY_HAND: Explanation(
        sentence="A person read every record of the small redacted part that was "
        "trained on without noise, and marked what the detector had missed in it.",
        weakens=_SELECTIVE,
    ),
    Assumption.LENGTHS_AND_TYPES_ARE_PUBLIC: Explanation(
        sentence="How many tokens each secret has, and of which type it is, is not "
        "hidden: only what it says is. The tokens around it stay as they are.",
        weakens=_SELECTIVE,
    ),
    Assumption.PUBLIC_HYPERPARAMETERS: Explanation(
        sentence="Learning rates, clipping norms and other settings were chosen "
        "without looking at this data; tuning on it would cost extra.",
    ),
    Assumption.NUM_UNITS_IS_PUBLIC: Explanation(
        sentence="How many privacy units the data has is public: rates, steps and "
        "divisors follow from the exact number, so that whoever joins or leaves "
        "changes them. Only who the units are and what they hold is protected.",
        weakens=_PRESENCE,
    ),
    Assumption.NUM_UNITS_WAS_DECLARED: Explanation(
        sentence="The number of privacy units that rates, steps and divisors follow "
        "from was declared, to two digits; nothing was counted for it.",
    ),
    Assumption.NUM_UNITS_WAS_RELEASED: Explanation(
        sentence="The number of privacy units that rates, steps and divisors follow "
        "from was counted under noise, which is part of this claim. That it is what "
        "came out, and the noise what was drawn, is the word of the configuration.",
    ),
    Assumption.PUBLIC_WORD_LIST: Explanation(
        sentence="Word lists and token weights come from public sources, not from "
        "this data.",
    ),
    Assumption.DEDUPLICATED_CORPUS: Explanation(
        sentence="The claim is about the data set after deduplication: whether two "
        "records were duplicates of each other is not protected.",
        weakens=_ALL,
    ),
    Assumption.SAMPLED_CORPUS: Explanation(
        sentence="The claim is about the records that were drawn from a larger data "
        "set: that a record kept another one out of the draw is not protected.",
        weakens=_ALL,
    ),
    Assumption.POSITIONS_NAME_RECORDS: Explanation(
        sentence="Records are known by their place in a file: one that is put in or "
        "taken out renames all behind it, and moves them between splits.",
        weakens=_PRESENCE,
    ),
    Assumption.CANARY_HOSTS_ARE_FIXED: Explanation(
        sentence="Which records carry a canary is given: one that is put in or taken "
        "out would move canaries from record to record.",
        weakens=_ALL,
    ),
    Assumption.REPLACEMENT_KEEPS_NUM_UNITS: Explanation(
        sentence="The number of units stays as it is where one of them holds something "
        "else: here another text may repeat one that is there, fall into another "
        "split or leave nothing to learn, and rates and steps follow from the number.",
        weakens=_REPLACED,
    ),
    Assumption.PRIVATE_REVIEW_LISTS: Explanation(
        sentence="Phrases that reviewers read in some records of this data set are "
        "marked, or left unmarked, in all of them; what this tells of the records that "
        "were read is not protected.",
        weakens=_ALL,
    ),
    Assumption.PUBLIC_REVIEW_LISTS: Explanation(
        sentence="Phrases on the review lists were declared public: that they are "
        "listed tells nothing of a record.",
    ),
    Assumption.PRIVATE_KNOWN_VALUES: Explanation(
        sentence="Values of a file, such as the names of all customers, are marked in "
        "every record; what this tells of those who are on it is not protected.",
        weakens=_ALL,
    ),
    Assumption.PUBLIC_KNOWN_VALUES: Explanation(
        sentence="The file of values that are marked in every record was declared "
        "public: who is on it tells nothing of a record.",
    ),
    Assumption.MARKS_FOLLOW_ONE_TEXT: Explanation(
        sentence="The language model or foreign program that marks personal data looks "
        "at one text alone, and remembers no other; no text that is computed beside "
        "others is marked otherwise for it.",
        weakens=_ALL,
    ),
    Assumption.UNREAD_LANGUAGES: Explanation(
        sentence="Records in languages that no recognizer reads were left as they are: "
        "what is personal in them was trained on in the clear.",
        weakens=_SELECTIVE,
    ),
    Assumption.LANGUAGE_IS_PUBLIC: Explanation(
        sentence="In which language a record is written is public: records in other "
        "languages were dropped, so that another text may leave the data set.",
        weakens=_REPLACED,
    ),
    Assumption.BASE_MODEL_IS_PUBLIC: Explanation(
        sentence="The model that training started from knew nothing of this data.",
    ),
    Assumption.LABELS_ARE_SENT: Explanation(
        sentence="The class of each text was sent to the server in the clear; only the "
        "text is protected, its length included.",
    ),
    Assumption.END_IS_PUBLIC: Explanation(
        sentence="Training ended before its last planned step. What ended it, such as "
        "a callback, followed neither the training loss nor anything else that is "
        "private, which the number of steps would tell.",
        weakens=_ALL,
    ),
    Assumption.FIXED_SEED_RANDOMNESS: Explanation(
        sentence="The noise came from a fixed seed that others may know, and can "
        "subtract; the guarantee needs secret randomness, so there is none.",
    ),
}

REDACTED_VIEW_ASSUMPTIONS: Final = (
    Assumption.DETECTOR_RECALL_IS_ONE,
    Assumption.REDACTED_VIEW_IDENTICAL_FOR_NEIGHBORS,
    Assumption.DEDUPLICATION_SAW_REDACTED_TEXT_ONLY,
)
"""Without all three, a redacted view is charged like the original one."""


ABOUT_REDACTION: Final = frozenset(
    {
        *REDACTED_VIEW_ASSUMPTIONS,
        Assumption.SCREENED_BY_HAND,
        Assumption.LENGTHS_AND_TYPES_ARE_PUBLIC,
    }
)
"""What only selective claims rest on, and a measured missing rate speaks of."""


def hides_secrets(assumptions: Iterable[Assumption]) -> bool:
    """Whether a redacted view hides secrets, if these assumptions hold.

    Reading every record by hand may take the place of a detector that misses nothing.
    """
    recall = Assumption.DETECTOR_RECALL_IS_ONE
    named = {recall if a is Assumption.SCREENED_BY_HAND else a for a in assumptions}
    return set(REDACTED_VIEW_ASSUMPTIONS) <= named


def weakens(
    assumption: Assumption, notion: Notion, relation: NeighboringRelation
) -> bool:
    """Whether a claim of this kind is only conditional on the assumption."""
    return (notion, relation) in EXPLANATIONS[assumption].weakens
