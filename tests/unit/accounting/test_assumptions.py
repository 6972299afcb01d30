"""Each weakening assumption makes a claim conditional by itself, whoever stands by."""

import dp_accounting
import pytest

from dptune.accounting.assumptions import Assumption
from dptune.accounting.certificates import issue_certificate
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
SELECTIVE, RECORD = (Notion.SELECTIVE, REPLACE), (Notion.RECORD, ADD)
WEAKENED = {
    Assumption.DETECTOR_RECALL_IS_ONE: SELECTIVE,
    Assumption.REDACTED_VIEW_IDENTICAL_FOR_NEIGHBORS: SELECTIVE,
    Assumption.DEDUPLICATION_SAW_REDACTED_TEXT_ONLY: SELECTIVE,
    Assumption.SCREENED_BY_HAND: SELECTIVE,
    Assumption.LENGTHS_AND_TYPES_ARE_PUBLIC: SELECTIVE,
    Assumption.NUM_UNITS_IS_PUBLIC: RECORD,
    Assumption.DEDUPLICATED_CORPUS: RECORD,
    Assumption.SAMPLED_CORPUS: RECORD,
    Assumption.PRIVATE_REVIEW_LISTS: RECORD,
    Assumption.PRIVATE_KNOWN_VALUES: RECORD,
}


@pytest.mark.parametrize("assumption", WEAKENED)
def test_weakening_assumption_alone_makes_a_claim_conditional(assumption):
    notion, relation = WEAKENED[assumption]
    claim = issue_certificate(
        dp_accounting.GaussianDpEvent(2.0),
        notion=notion,
        relation=relation,
        privacy_unit=PrivacyUnit.RECORD,
        delta=1e-5,
        assumptions=(Assumption.PUBLIC_HYPERPARAMETERS, assumption),
    )
    assert claim.status == "conditional"
