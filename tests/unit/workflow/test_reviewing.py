"""A review, from the export of a sample to the rate that a gate reads."""

import json

import numpy as np
import pytest

from dptune.accounting.assumptions import Assumption
from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.planting import plant
from dptune.config import DataSettings
from dptune.configfile import load_train_config
from dptune.detection.recognizer import Tier
from dptune.errors import ArtifactError, ConfigError, DataError
from dptune.recipes import StageSettings
from dptune.redaction.engine import redact_dataset
from dptune.redaction.operators import Operator
from dptune.review.lists import ListKey, ReviewLists, extended
from dptune.review.rates import measured_rate
from dptune.review.sample import reread
from dptune.review.store import (
    ListsOfProject,
    ReviewRecord,
    ReviewStore,
)
from dptune.settings import ScreenedSettings
from dptune.workflow import review as reviewing
from dptune.workflow.detect import engine_of, label_corpus, marks_assume
from dptune.workflow.ingest import read_corpus
from dptune.workflow.review import export_sample, import_decisions
from dptune.workflow.token_weights import screened_units
from infra.workspace import REPOSITORY

KEY = ListKey(secret=bytes(range(32)))
CANARIES = CanarySpec(
    template="USR: my code is {secret}.",
    num_planted=2,
    num_held_out=2,
    insertions=1,
    length=4,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a private corpus that has no gold spans."""
    folder = tmp_path_factory.mktemp("data")
    rows = [
        {"id": f"r{i}", "text": f"{text} Visit number {i}. My pal frank rose came."}
        for i, text in enumerate(_texts())
    ]
    lines = "\n".join(json.dumps(row) for row in rows)
    (folder / "corpus.jsonl").write_text(lines + "\n")
    return folder


def _texts():
    names = ("Ann Lee", "Bo Kim", "Cy Young", "Di Ray")
    return [f"Hello, I am {names[i % 4]} from Berlin." for i in range(120)]


@pytest.fixture(scope="module")
def config():
    found = load_train_config(
        REPOSITORY / "tests" / "configs" / "tiny.yaml", configs=REPOSITORY / "configs"
    )
    data = found.data.model_dump(mode="json")
    data["source"] = {"kind": "jsonl", "path": "corpus.jsonl", "id_column": "id"}
    data["near_duplicate_threshold"] = None
    # the lexicon alone misses `frank rose` in every record: what there is to review
    detection = found.detection.model_copy(
        update={"recognizers": ("patterns", "lexicon")}
    )
    return found.model_copy(
        update={"data": DataSettings.model_validate(data), "detection": detection}
    )


@pytest.fixture
def store(tmp_path):
    return ReviewStore(tmp_path / "review")


def export(config, root, store, *, size=60):
    return drawn_and_kept(config, root, store, size=size)


def drawn_and_kept(config, root, store, **chosen):
    generator = np.random.default_rng(3)
    record, drawn = export_sample(
        config, data_root=root, store=store, key=KEY, generator=generator, **chosen
    )
    store.add_sample(record, KEY)
    return record, drawn


def answers(record, drawn, *, missed="frank rose", upto=None):
    """What a reviewer saves who finds one string."""
    decisions = []
    for excerpt in drawn.excerpts[:upto]:
        at = excerpt.text.find(missed)
        marks = excerpt.sentence.marks
        covered = any(m.start <= at < m.end for m in marks)
        place = {"start": at, "end": at + len(missed)}
        found = [] if at < 0 or covered else [place]
        decisions.append({"id": excerpt.sentence.id, "missed": found})
    values = {
        "format": "dptune-review-decisions",
        "version": 1,
        "sample": record.id,
        "decisions": decisions,
    }
    return json.dumps(values).encode()


def take(content, root, store, **more):
    return import_decisions(content, data_root=root, store=store, key=KEY, **more)


def label(config, root, state, *, data_set="default", **changes):
    corpus = read_corpus(config.data, data_root=root)
    canaries = draw_canaries(CANARIES, seed=1)
    planted = corpus.with_dataset(plant(corpus.dataset, canaries))
    settings = config.detection.model_copy(update=changes)
    return label_corpus(
        planted,
        canaries,
        settings,
        corpus_is_public=False,
        data_set=data_set,
        review=state,
    )


def test_review_measures_denies_and_reaches_the_report(config, root, store):
    _, before = label(config, root, None)
    assert (before.missing_rate, before.missing_rate_refusal) == (None, "")
    record, drawn = export(config, root, store)
    done = take(answers(record, drawn), root, store)
    assert done.found.rate > 0.05
    assert done.new_deny == 1
    labelled, after = label(config, root, store.read(KEY))
    assert after.missing_rate == done.found.rate
    assert after.missing_rate_interval == done.found.interval
    assert after.review == record.id
    assert record.id in after.missing_rate_source
    covered = [
        any(
            span["start"] <= row["text"].index("frank rose") < span["end"]
            for span in row["spans"]
        )
        for row in labelled.dataset
        if "frank rose" in row["text"]
    ]
    assert len(covered) == 120
    assert all(covered)


def test_nothing_on_disk_quotes_the_corpus(config, root, store, tmp_path):
    record, drawn = export(config, root, store)
    take(answers(record, drawn), root, store)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) == 4
    for file in files:
        content = file.read_text().lower()
        assert not any(w in content for w in ("frank", "rose", "berlin", "ann lee"))
        if file.suffix == ".json":
            assert file.stat().st_mode & 0o077 == 0
    assert (tmp_path / "review").stat().st_mode & 0o077 == 0


def test_unfinished_review_gives_no_rate_and_the_rest_completes_it(config, root, store):
    record, drawn = export(config, root, store)
    part = take(answers(record, drawn, upto=10), root, store)
    assert (part.num_decided, part.found, part.new_deny) == (10, None, 0)
    _, report = label(config, root, store.read(KEY))
    assert report.missing_rate is None
    assert "not finished: 50 of 60 open" in report.missing_rate_refusal
    done = take(answers(record, drawn), root, store)
    assert done.found is not None


def test_import_counts_what_it_says_otherwise_than_an_earlier_one(config, root, store):
    record, drawn = export(config, root, store)
    first = take(answers(record, drawn), root, store)
    again = take(answers(record, drawn), root, store)
    assert (first.num_changed, again.num_changed) == (0, 0)
    other = take(answers(record, drawn, missed="no such name"), root, store)
    missed = sum(bool(v.missed) for v in store.read(KEY).reviews[0].verdicts.values())
    assert missed == 0
    assert other.num_changed == sum("frank rose" in e.text for e in drawn.excerpts)


def test_last_import_counts_whatever_the_clock_says(
    config, root, store, monkeypatch, tmp_path
):
    """A clock that was set back left the rate of an earlier review in its place."""
    good, drawn = export(config, root, store)
    take(answers(good, drawn, missed="no such name"), root, store)
    bad, drawn = export(config, root, store)
    monkeypatch.setattr(reviewing, "_now", lambda: "2001-01-01T00:00:00+00:00")
    done = take(answers(bad, drawn), root, store)
    _, report = label(config, root, store.read(KEY))
    assert (report.review, report.missing_rate) == (bad.id, done.found.rate)


def test_rate_says_how_many_reviews_it_was_chosen_from(config, root, store):
    sources = []
    for _ in range(2):
        record, drawn = export(config, root, store)
        take(answers(record, drawn), root, store)
        _, report = label(config, root, store.read(KEY))
        sources.append(report.missing_rate_source)
        assert report.review == record.id
    assert "newest" not in sources[0]
    assert sources[1].endswith(f"(review {record.id}, the newest of 2 of this corpus)")


def test_rate_of_before_a_deleted_review_is_refused(config, root, store, tmp_path):
    """Deleting a bad review brought an older rate back to life without a word."""
    names = []
    for missed in ("no such name", "frank rose"):
        record, drawn = export(config, root, store)
        take(answers(record, drawn, missed=missed), root, store)
        names.append(record.id)
    (tmp_path / "review" / "reviews" / f"{names[1]}.json").unlink()
    _, report = label(config, root, store.read(KEY))
    assert report.missing_rate is None
    assert f"review {names[1]} was finished later and is" in report.missing_rate_refusal
    take(answers(record, drawn, upto=3), root, store)  # a part of it says nothing
    _, report = label(config, root, store.read(KEY))
    assert report.missing_rate is None
    (tmp_path / "review" / "samples" / f"{names[1]}.json").unlink()
    (tmp_path / "review" / "reviews" / f"{names[1]}.json").unlink()
    third, drawn = export(config, root, store)
    take(answers(third, drawn), root, store)
    _, report = label(config, root, store.read(KEY))
    assert report.review == third.id
    assert "the newest of 3 of this corpus" in report.missing_rate_source
    (tmp_path / "review" / "lists.json").unlink()
    with pytest.raises(ArtifactError, match=r"lists\.json must be there"):
        store.read(KEY)


def test_rate_of_another_detector_is_refused(config, root, store):
    record, drawn = export(config, root, store)
    take(answers(record, drawn), root, store)
    state = store.read(KEY)
    _, report = label(config, root, state, tier=Tier.HIGH_CONTEXTUAL)
    assert report.missing_rate is None
    assert f"review {record.id} is of another detector" in report.missing_rate_refusal


def test_rate_of_another_corpus_is_refused(config, root, store, tmp_path):
    record, drawn = export(config, root, store)
    take(answers(record, drawn), root, store)
    lines = (root / "corpus.jsonl").read_text().splitlines()
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    _, report = label(config, tmp_path, store.read(KEY))
    assert report.missing_rate is None
    assert f"review {record.id} is of another corpus" in report.missing_rate_refusal
    with pytest.raises(DataError, match="has changed since"):
        take(answers(record, drawn), tmp_path, store)


def test_rate_is_refused_once_more_is_allowed_and_stays_when_more_is_denied(
    config, root, store
):
    record, drawn = export(config, root, store)
    take(answers(record, drawn), root, store)
    state = store.read(KEY)
    where = {
        "corpus": record.corpus,
        "detector": engine_of(config.detection).fingerprint,
    }
    own = state.lists.acting_on("default")
    more = own.model_copy(update={"deny": (*own.deny, KEY.deny_entry("someone else"))})
    assert measured_rate(state, lists=more, **where).rate is not None
    looser = own.model_copy(update={"allow": (KEY.allow_name("Berlin"),)})
    refused = measured_rate(state, lists=looser, **where)
    assert refused.rate is None
    assert "allow list since" in refused.refusal


def test_rate_that_ignores_the_detector_is_caught(config, root, store, monkeypatch):
    record, drawn = export(config, root, store)
    take(answers(record, drawn), root, store)
    monkeypatch.setattr("dptune.review.rates._refusal", lambda *_: "")
    _, report = label(config, root, store.read(KEY), tier=Tier.HIGH_CONTEXTUAL)
    assert report.missing_rate is not None, "the broken twin would quote it"


def test_use_review_off_ignores_lists_and_rate(config, root, store):
    record, drawn = export(config, root, store)
    take(answers(record, drawn), root, store)
    _, report = label(config, root, store.read(KEY), use_review=False)
    assert (report.missing_rate, report.review) == (None, "")
    assert "deny_list" not in report.recognizers


def test_lists_other_than_the_planned_ones_are_refused(config, root, store):
    record, drawn = export(config, root, store)
    take(answers(record, drawn), root, store)
    with pytest.raises(ConfigError, match="review_lists"):
        label(config, root, store.read(KEY), review_lists="0" * 64)


def test_edited_rate_is_refused(config, root, store, tmp_path):
    record, drawn = export(config, root, store)
    take(answers(record, drawn), root, store)
    (file,) = (tmp_path / "review" / "reviews").iterdir()
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"rate": 0.0}))
    with pytest.raises(ArtifactError, match="seal"):
        store.read(KEY)


def test_declared_rate_is_called_declared(config, root):
    _, report = label(config, root, None, missing_rate=0.001, missing_rate_upper=0.002)
    assert report.missing_rate == 0.001
    assert "declaration in the configuration" in report.missing_rate_source


def test_import_of_nonsense_changes_nothing(config, root, store):
    export(config, root, store)
    before = store.digest
    with pytest.raises(DataError):
        take(b"{}", root, store)
    assert store.digest == before


def test_sentences_are_of_the_training_split(config, root, store):
    record, _ = export(config, root, store)
    corpus = read_corpus(config.data, data_root=root)
    assert reread(corpus.split("train"), record.sentences, KEY)


def test_screened_part_is_read_whole_and_says_nothing_of_the_rest(config, root, store):
    few = ScreenedSettings(share=0.001, at_least=3)
    plain = StageSettings(
        name="redacted",
        view="redacted",
        epochs=1,
        expected_batch_size=1,
        optimizer={"learning_rate": 0.1},
        screened=few,
    )
    recipe = config.recipe.model_copy(update={"stages": (plain,)})
    changed = config.model_copy(update={"recipe": recipe})
    record, drawn = drawn_and_kept(changed, root, store, screened=True)
    rows = read_corpus(config.data, data_root=root).split("train")
    chosen = screened_units(rows["unit_id"], few, num_drawn=3)
    read = {rows["unit_id"][e.sentence.row] for e in drawn.excerpts}
    assert read == chosen
    assert len(drawn.excerpts) == sum(record.sizes.values()) >= 2 * len(chosen)
    imported = take(answers(record, drawn), root, store)
    assert imported.new_deny == 1
    state = store.read(KEY)
    found = measured_rate(
        state,
        corpus=record.corpus,
        detector=record.detector,
        lists=state.lists.acting_on("default"),
    )
    assert found.rate is None
    assert "read by hand" in found.refusal


def test_screened_export_needs_a_screened_stage(config, root, store):
    with pytest.raises(ConfigError, match="jft_screened"):
        drawn_and_kept(config, root, store, screened=True)


def test_seals_of_samples_before_screening_stay_valid(config, root, store):
    record, _ = export(config, root, store)
    old = record.sealed(KEY)
    assert old.data_set == "default"
    old = old.model_copy(update={"data_set": ""}).sealed(KEY)
    newer = {"screened": True, "data_set": True, "sentences": {"__all__": {"language"}}}
    body = old.model_copy(update={"seal": ""}).model_dump_json(exclude=newer)
    assert old.seal == KEY.name("seal SampleRecord", body)
    with pytest.raises(ArtifactError):
        old.model_copy(update={"screened": True}).check_seal(KEY, "sample")


def others_changed(config, root, store, **where):
    """Count records whose masked text follows from a word that was read in one."""
    state = store.read(KEY)
    views = []
    for review in (None, state):
        labelled, _ = label(config, root, review, **where)
        masked = redact_dataset(labelled.dataset, operator=Operator.MASK)
        views.append(dict(zip(masked["id"], masked["text"], strict=True)))
    assumed = [Assumption(name) for name in labelled.report.marks_assume]
    return sum(views[0][name] != views[1][name] for name in views[0]), assumed


def test_word_that_was_read_in_one_record_reaches_others_and_is_named(
    config, root, store, monkeypatch
):
    """The attack of the issue: 120 texts follow from one unit, `certified` before."""
    record, drawn = export(config, root, store)
    assert record.data_set == "default"
    take(answers(record, drawn), root, store)
    changed, assumed = others_changed(config, root, store)
    assert changed == 120
    assert assumed == [Assumption.PRIVATE_REVIEW_LISTS]
    monkeypatch.setattr(ListsOfProject, "assumptions", lambda *_: ())
    assert others_changed(config, root, store) == (120, []), "the twin says nothing"


def test_lists_of_a_data_set_act_on_no_other(config, root, store, monkeypatch):
    record, drawn = export(config, root, store)
    take(answers(record, drawn), root, store)
    assert others_changed(config, root, store, data_set="other") == (0, [])
    monkeypatch.setattr(
        ListsOfProject,
        "acting_on",
        lambda self, _: next(iter(self.of_data_set.values())),
    )
    changed, _ = others_changed(config, root, store, data_set="other")
    assert changed == 120, "the twin is the rule of before"


def test_lists_that_are_declared_public_act_everywhere_and_weaken_nothing(
    config, root, store
):
    record, drawn = export(config, root, store)
    take(answers(record, drawn), root, store)
    done = take(answers(record, drawn), root, store, public=True)
    assert done.new_deny == 0  # it acted on this data set already
    for data_set in ("default", "other"):
        changed, assumed = others_changed(config, root, store, data_set=data_set)
        assert changed == 120
        assert assumed == [Assumption.PUBLIC_REVIEW_LISTS]
    (review,) = store.read(KEY).reviews
    assert review.public


def test_lists_of_before_they_belonged_to_a_data_set_are_refused(store, tmp_path):
    lists = extended(ReviewLists(), KEY, deny=[KEY.deny_entry("frank rose")])
    store.add_review(
        ReviewRecord(sample="0" * 16, verdicts={}, imported="2026"),
        KEY,
        lists=ListsOfProject(),
        finished={},
    )
    file = tmp_path / "review" / "lists.json"
    body = {"schema_version": 1, "seal": "", "lists": lists.model_dump(mode="json")}
    seal = KEY.name("seal _Lists", json.dumps(body, separators=(",", ":")))
    file.write_text(json.dumps(body | {"seal": seal}))
    with pytest.raises(ConfigError, match="Move the file and"):
        store.read(KEY)


def test_model_that_is_asked_is_taken_at_its_word_about_one_text(config, root):
    """Whether what it says of a text follows from that text alone nobody can see."""
    assert marks_assume(config.detection, None, "default") == []
    asks = config.detection.model_copy(update={"recognizers": ("patterns", "llm")})
    foreign = config.detection.model_copy(update={"recognizers": ("of_a_package",)})
    for settings in (asks, foreign):
        assert marks_assume(settings, None, "default") == ["marks_follow_one_text"]
