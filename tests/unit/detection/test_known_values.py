"""Values of a unit are found in its own records alone, those of a file in all."""

import hashlib
import pickle

import datasets
import pytest

from dptune.detection import known_values
from dptune.detection.engine import build_engine
from dptune.detection.known_values import (
    COLUMN,
    KnownValuesRecognizer,
    UnitValues,
    read_values,
)
from dptune.detection.labelling import (
    detect_dataset,
    detect_shard,
    detection_report,
    merge_shards,
)
from dptune.detection.recognizer import Tier
from dptune.detection.settings import KnownValuesSettings
from dptune.errors import ArtifactError, ConfigError
from dptune.spellings import KnownValue

ROWS = [
    # unit, values of the record, text
    ("u1", [("Wanda Zorn", "PERSON")], "wanda zorn called"),
    ("u1", [("4471", "ACCOUNT_ID")], "it was zorn, about 44 71 and 4471"),
    ("u2", [("Rose Quell", "PERSON")], "quell and zorn met; 4471 again"),
    ("u2", [], "a rose for mrs quell"),
    ("u3", None, "wanda zorn and rose quell, 4471"),
]


def corpus(rows=ROWS):
    units, values, texts = zip(*rows, strict=True)
    named = [
        None if row is None else [{"value": v, "entity_type": k} for v, k in row]
        for row in values
    ]
    kind = datasets.List(
        {"value": datasets.Value("string"), "entity_type": datasets.Value("string")}
    )
    return datasets.Dataset.from_dict(
        {
            "id": [str(i) for i in range(len(rows))],
            "text": list(texts),
            "unit_id": list(units),
            "split": ["train"] * len(rows),
            COLUMN: named,
        },
        features=datasets.Features(
            {n: datasets.Value("string") for n in ("id", "text", "unit_id", "split")}
            | {COLUMN: kind}
        ),
    )


@pytest.fixture(scope="module")
def engine():
    class Nothing:
        name = "nothing"
        fingerprint = "nothing"

        def recognize(self, texts):
            return [[] for _ in texts]

    from dptune.detection.engine import DetectionEngine  # noqa: PLC0415

    return DetectionEngine(tier=Tier.LOW_ENTITY, recognizers=[Nothing()])


def marks(rows, engine):
    labelled = detect_dataset(corpus(rows), engine)
    return [
        [row["text"][s["start"] : s["end"]] for s in row["spans"]] for row in labelled
    ]


WANTED = [["wanda zorn"], ["zorn", "4471"], ["quell"], ["rose", "quell"], []]


def test_values_of_a_unit_are_found_in_its_own_records_only(engine):
    assert marks(ROWS, engine) == WANTED


def changed_elsewhere(engine, rows=ROWS):
    """Count records of other units that are marked otherwise where one unit changes."""
    before, wrong = marks(rows, engine), 0
    for unit in {row[0] for row in rows}:
        others = [
            (u, [("Quell Zorn", "PERSON"), ("again", "ID")] if u == unit else v, t)
            for u, v, t in rows
        ]
        after = marks(others, engine)
        wrong += sum(
            old != new
            for (owner, *_), old, new in zip(rows, before, after, strict=True)
            if owner != unit
        )
    return wrong


def test_values_of_one_unit_change_no_marks_of_another(engine, monkeypatch):
    assert changed_elsewhere(engine) == 0
    own = UnitValues.of

    def shared(dataset):
        every = own(dataset).by_unit.values()
        pool = tuple(value for values in every for value in values)
        return UnitValues(by_unit=dict.fromkeys(dataset["unit_id"], pool))

    monkeypatch.setattr(UnitValues, "of", staticmethod(shared))
    assert changed_elsewhere(engine) > 0, "the twin pools the values of all units"


def test_shards_mark_with_values_of_the_whole_corpus(engine):
    whole = corpus()
    for num_shards in (1, 2, 5):
        parts = [
            detect_shard(whole, engine, index=i, num_shards=num_shards)
            for i in range(num_shards)
        ]
        merged = merge_shards(whole, engine, parts)
        assert merged["spans"][:] == detect_dataset(whole, engine)["spans"][:]
    other = corpus([(u, [("Other Name", "PERSON")], t) for u, _, t in ROWS])
    with pytest.raises(ArtifactError, match="of this corpus"):
        merge_shards(other, engine, parts)


def test_report_names_known_values_and_repr_hides_them(engine):
    labelled = detect_dataset(corpus(), engine)
    report = detection_report(labelled, engine, "f")
    assert report.recognizers == ("nothing", "known_values")
    values = UnitValues.of(corpus())
    assert "Zorn" not in repr(values)
    assert values.fingerprint != UnitValues.of(corpus(ROWS[:2])).fingerprint
    plain = corpus().remove_columns(COLUMN)
    assert UnitValues.of(plain) is None
    assert detection_report(detect_dataset(plain, engine), engine, "f").recognizers == (
        "nothing",
    )


def test_values_of_a_record_without_rows_and_an_empty_corpus_are_fine(engine):
    empty = corpus().select([])
    assert len(detect_dataset(empty, engine)) == 0


def settings(tmp_path, content, **changes):
    file = tmp_path / "values.txt"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return KnownValuesSettings(file=file, **changes)


def test_values_of_a_file_are_found_in_every_text(tmp_path):
    chosen = settings(tmp_path, "\ufeffWanda Zorn\n\n4471\tACCOUNT_ID\nWanda Zorn\n")
    assert read_values(chosen) == (
        KnownValue(value="Wanda Zorn", entity_type="PERSON"),
        KnownValue(value="4471", entity_type="ACCOUNT_ID"),
    )
    engine = build_engine(
        tier=Tier.LOW_ENTITY, recognizers=("patterns",), known_values=chosen
    )
    text = "ask zorn, wanda about no. 4471"
    kinds = {s.entity_type for s in engine.detect([text])[0]}
    assert kinds == {"PERSON", "ACCOUNT_ID"}
    assert engine.recognizers[-1] == "known_values"
    recognizer = engine.parts[-1]
    copy = pickle.loads(pickle.dumps(recognizer))  # noqa: S301
    assert copy.recognize([text]) == recognizer.recognize([text])
    other = settings(tmp_path, "Wanda Zorn\n")
    assert (
        recognizer.fingerprint != KnownValuesRecognizer(read_values(other)).fingerprint
    )


BAD_FILES = [
    (b"\xff\xfe", "UTF-8"),
    ("", "has none"),
    (" \n\t\n", "has none"),
    ("a" * 301, "line 1"),
    ("Ann\n---\n", "line 2"),
    ("Ann\tperson\n", "line 1"),
    ("Ann\t1A\n", "line 1"),
]


@pytest.mark.parametrize(("content", "says"), BAD_FILES)
def test_file_of_values_that_cannot_be_used_is_refused_without_its_text(
    tmp_path, content, says
):
    with pytest.raises(ConfigError, match=says) as raised:
        read_values(settings(tmp_path, content))
    assert "Ann" not in str(raised.value)


def test_all_bad_lines_are_told_at_once_and_counted(tmp_path):
    with pytest.raises(ConfigError) as raised:
        read_values(settings(tmp_path, "--\n" * 30))
    assert len(raised.value.problems) == 21
    assert "10 problems more" in str(raised.value)


def test_file_that_changed_or_went_is_refused(tmp_path):
    chosen = settings(tmp_path, "Ann Lee\n")
    named = chosen.model_copy(update={"digest": known_values.file_digest(chosen.file)})
    assert named.digest == hashlib.sha256(b"Ann Lee\n").hexdigest()
    read_values(named)
    chosen.file.write_text("Ann Lee\nBo\n")
    with pytest.raises(ConfigError, match="planned with"):
        read_values(named)
    chosen.file.unlink()
    with pytest.raises(ConfigError, match="readable file"):
        read_values(chosen)


def test_ordinary_words_stay_in_texts_of_others():
    will = KnownValue(value="Will Young", entity_type="PERSON")
    finder = KnownValuesRecognizer([will])
    assert finder.recognize(["it will do, they are young"]) == [[]]
    found = finder.recognize(["ask will young, Will or Young"])[0]
    assert {(s.start, s.end) for s in found} >= {(4, 14), (16, 20), (24, 29)}
    own = UnitValues(by_unit={"u": (will,)})
    assert len(own.spans("they are young, mr young; it will do", "u")) == 2
