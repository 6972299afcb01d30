"""SA-ADP as a stage: what it charges, what it claims, and where it must not."""

import math
from dataclasses import replace

import pytest

from dptune.accounting.ledger import PrivacyLedger
from dptune.configfile import load_train_config
from dptune.detection.scoring import public_counts, score_entity_types
from dptune.errors import ConfigError, DataError, PrivacyError
from dptune.mechanisms import sa_adp
from dptune.models.encode import encode_corpus
from dptune.models.loading import load_model
from dptune.privacy import NeighboringRelation, Notion
from dptune.settings import TierSettings
from dptune.workflow import token_weights
from dptune.workflow.charging import stage_entry
from dptune.workflow.inputs import load_stage
from dptune.workflow.preflight import check_selective
from dptune.workflow.token_weights import count_leaks, in_tiers, tiers_for
from dptune.workflow.train_stage import run_stage
from dptune.workflow.whitebox import audit_stage
from infra.workspace import REPOSITORY

from .conftest import PERFORMANCE
from .test_training import EMPTY

TIERS = {"noise_ratio": 1.5}
NOMINAL = {"formula": "rdp_order", "order": 32, "reference": "SA-ADP"}
PUBLIC = score_entity_types(public_counts(), counts_are_public=True)
SELECTIVE, RECORD = Notion.SELECTIVE, Notion.RECORD


@pytest.fixture(scope="module")
def labelled(corpus):
    """The first eight letters of every record are a time, the next eight a name."""
    spans = [
        [
            {"start": 0, "end": 8, "entity_type": "TIME"},
            {"start": 8, "end": 16, "entity_type": "PERSON"},
        ]
        for _ in corpus.dataset
    ]
    return corpus.with_dataset(corpus.dataset.add_column("spans", spans))


@pytest.fixture
def inputs(make_inputs, labelled):
    made = make_inputs(corpus=labelled, tiers=TIERS, nominal=NOMINAL)
    return replace(made, sensitivity=PUBLIC)


def entry_of(inputs, **report):
    return stage_entry(
        inputs.corpus.report.model_copy(update=report),
        inputs.plan,
        recipe="r",
        first_step=0,
        num_steps=inputs.plan.num_steps,
        fixed_seed=False,
    )


def certificate(entry, notion):
    return PrivacyLedger(entries=(entry,)).certificate(notion, delta=1e-3)


def test_stage_claims_secrets_and_says_what_a_tier_is_worth(inputs, bundle, tmp_path):
    done = run_stage(inputs, EMPTY, folder=tmp_path, performance=PERFORMANCE)
    assert done.bundle.digest != bundle.digest
    assert done.report.num_steps == 5
    selective = done.ledger.certificate(SELECTIVE, delta=1e-3)
    assert selective.status == "conditional"
    assert selective.accounted_epsilon == pytest.approx(
        certificate(entry_of(inputs), SELECTIVE).epsilon
    )
    low, high = selective.tiers
    assert (low.tier, high.tier) == ("low", "high")
    assert 0 < high.epsilon < low.epsilon < selective.epsilon < math.inf
    assert "tier high alone" in selective.explanation
    assert selective.nominal_epsilon is not None
    for relation in NeighboringRelation:
        record = done.ledger.certificate(RECORD, delta=1e-3, relation=relation)
        assert (record.status, record.tiers) == ("none", ())


def test_corpus_without_secrets_is_told_so(inputs, corpus, tmp_path):
    """It was told that its training split was empty."""
    bare = corpus.with_dataset(
        corpus.dataset.add_column("spans", [[] for _ in corpus.dataset])
    )
    with pytest.raises(DataError, match="must hold secrets"):
        run_stage(
            replace(inputs, corpus=bare),
            EMPTY,
            folder=tmp_path,
            performance=PERFORMANCE,
        )


def test_paper_form_trains_and_claims_nothing(inputs, make_inputs, labelled, tmp_path):
    form = TIERS | {"form": "paper"}
    paper = replace(
        make_inputs(corpus=labelled, tiers=form, nominal=NOMINAL), sensitivity=PUBLIC
    )
    done = run_stage(paper, EMPTY, folder=tmp_path, performance=PERFORMANCE)
    claims = done.ledger.certificates(1e-3)
    assert {c.status for c in claims} == {"none"}
    nominal = {c.nominal_epsilon for c in claims}
    assert nominal == {inputs.plan.nominal_epsilon}
    assert paper.key() != inputs.key()
    loaded, _ = load_stage(paper, PERFORMANCE)
    assert loaded.tokenizer.mask_token_id is None


@pytest.mark.parametrize(
    "report", [{"deduplicated": True}, {"ids_are_content_hashes": True}]
)
def test_corpus_that_secrets_have_sorted_gets_no_claim(inputs, report):
    assert certificate(entry_of(inputs, **report), SELECTIVE).status == "none"


def test_tiers_from_private_counts_are_refused(inputs):
    private = score_entity_types({"PERSON": 3}, counts_are_public=False)
    released = score_entity_types(
        {"PERSON": 3}, counts_are_public=False, counts_are_released=True
    )
    for table in (private, None):
        with pytest.raises(PrivacyError, match="public or released"):
            load_stage(replace(inputs, sensitivity=table), PERFORMANCE)
    assert load_stage(replace(inputs, sensitivity=released), PERFORMANCE)


def encoded_of(corpus, bundle):
    tokenizer = load_model(bundle.path).tokenizer
    rows = corpus.split("train")
    return encode_corpus(rows, tokenizer, max_tokens=24, with_offsets=True), rows


def rows_by_part(encoded, rows, tier_of):
    data = in_tiers(encoded, rows, tier_of=tier_of, mask=1, max_sequences_per_unit=2)
    return data, {
        (int(kind), tuple(data.sequences[i].tolist()))
        for kind, owned in zip(data.kinds, data.units, strict=True)
        for i in owned
    }


def test_scores_from_the_corpus_let_neighbors_in(labelled, bundle):
    """The parts of one record must not depend on what others hold."""
    encoded, rows = encoded_of(labelled, bundle)
    less = rows.select(range(1, len(rows)))
    fewer = encoded.filter(lambda row: row["id"] != rows[0]["id"])

    def counted(records):
        """The broken twin: a table that was counted here."""
        names = [s["entity_type"] for spans in records["spans"] for s in spans]
        counts = {name: names.count(name) for name in set(names)} | {"SSN": 60}
        counts["TIME"] *= 10**6 if len(records) < len(rows) else 1
        table = score_entity_types(counts, counts_are_public=False)
        return sa_adp.tiers_of_types(table, spare=True)

    sound = sa_adp.tiers_of_types(PUBLIC)
    for tier_of, is_apart in ((lambda _: sound, True), (counted, False)):
        _, whole = rows_by_part(encoded, rows, tier_of(rows))
        _, rest = rows_by_part(fewer, less, tier_of(less))
        assert (rest <= whole and len(whole - rest) <= 4) is is_apart


def test_parts_hold_their_own_tier_and_the_rest_is_masked(labelled, bundle):
    encoded, rows = encoded_of(labelled, bundle)
    data, _ = rows_by_part(encoded, rows, sa_adp.tiers_of_types(PUBLIC))
    assert data.unnoised.num_units == len(set(rows["unit_id"]))
    assert set(data.kinds.tolist()) == {0, 1}
    weights = [
        sum(float(w.sum()) for w in part.loss_weights) for part in (data, data.unnoised)
    ]
    kept = {}
    for row in encoded:
        kept.setdefault(row["unit_id"], []).append(sum(row["loss_weights"]))
    assert sum(weights) == sum(sum(rows[:2]) for rows in kept.values())


def test_audit_finds_the_stage_sound_and_its_twins_not(inputs, monkeypatch):
    ledger = PrivacyLedger(entries=(entry_of(inputs),))

    def failed():
        audit = audit_stage(inputs, ledger, performance=PERFORMANCE)
        return {check.name for check in audit.checks if not check.passed}

    assert failed() == set()
    whole = sa_adp.group_view
    monkeypatch.setattr(
        token_weights, "group_view", lambda *a, **k: whole(*a, **(k | {"mask": None}))
    )
    (entry,) = ledger.entries
    low = entry.notion_events[1].model_copy(update={"tier": ""})
    ledger = PrivacyLedger(
        entries=(entry.model_copy(update={"notion_events": (low,)}),)
    )
    assert failed() == {"tiers_apart", "event", "event_of_high"}


def test_leaks_are_counted(labelled, bundle):
    encoded, rows = encoded_of(labelled, bundle)
    tier_of = tiers_for(TierSettings(), PUBLIC)
    assert count_leaks(encoded, rows, tier_of=tier_of, mask=1) == 0
    assert count_leaks(encoded, rows, tier_of=tier_of, mask=None) > 0


def test_several_processes_are_refused(inputs, tmp_path):
    several = PERFORMANCE.model_copy(update={"num_processes": 2})
    with pytest.raises(ConfigError, match="num_processes must be 1"):
        run_stage(inputs, EMPTY, folder=tmp_path, performance=several)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ((), []),
        (("scoring.counts=corpus",), ["scoring.counts"]),
        (("scoring.counts=corpus", "privacy.mode=paper"), []),
    ],
)
def test_private_counts_are_refused_before_anything_is_made(changes, refused, labelled):
    configs = REPOSITORY / "configs"
    run = load_train_config(
        REPOSITORY / "tests" / "configs" / "tiny.yaml",
        configs=configs,
        overrides=("recipe=sa_adp", *changes),
    )
    report = labelled.report.model_copy(update={"ids_are_content_hashes": False})
    if not refused:
        check_selective(run, report)
        return
    with pytest.raises(ConfigError) as caught:
        check_selective(run, report)
    assert [problem.path for problem in caught.value.problems] == refused
