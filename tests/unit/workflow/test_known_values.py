"""Known values from columns and files: marks, claims, and what a run must find."""

import json

import pytest

from dptune.accounting.assumptions import Assumption
from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.planting import plant
from dptune.config import DetectionSettings
from dptune.data.building import build_corpus, corpus_fingerprint
from dptune.data.duplicates import Duplicates
from dptune.data.source import JsonlSource
from dptune.detection.known_values import COLUMN, file_digest
from dptune.errors import ConfigError, DataError
from dptune.privacy import PrivacyUnit
from dptune.workflow.detect import label_corpus, marks_assume

COLUMNS = {"name": "PERSON", "account": "ACCOUNT_ID"}
CANARIES = CanarySpec(
    template="USR: my code is {secret}.",
    num_planted=2,
    num_held_out=2,
    insertions=1,
    length=4,
)


def rows(**changes):
    names = ("wanda zorn", "bo quell")
    return [
        {
            "id": f"r{i}",
            "user": f"u{i % 20}",
            "text": f"it was {names[i % 2].split()[1]} who came as number {i}",
            "name": names[i % 2],
            "account": 4471 if i % 3 else None,
        }
        | changes
        for i in range(60)
    ]


def built(tmp_path, lines, *, unit=PrivacyUnit.USER, **changes):
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    source = JsonlSource(
        path=file,
        id_column="id",
        unit_column="user" if unit is PrivacyUnit.USER else None,
        known_columns=COLUMNS,
    )
    return build_corpus(source, privacy_unit=unit, validate=False, **changes)


def labelled(corpus, canaries, **settings):
    return label_corpus(
        corpus.with_dataset(plant(corpus.dataset, canaries)),
        canaries,
        DetectionSettings.model_validate({"recognizers": ["patterns"], **settings}),
        corpus_is_public=False,
        data_set="default",
    )


def test_known_columns_are_read_marked_and_left_behind(tmp_path):
    corpus = built(tmp_path, rows())
    assert corpus.dataset[1][COLUMN] == [
        {"value": "bo quell", "entity_type": "PERSON"},
        {"value": "4471", "entity_type": "ACCOUNT_ID"},
    ]
    assert len(corpus.dataset[0][COLUMN]) == 1
    marked, report = labelled(corpus, draw_canaries(CANARIES))
    assert COLUMN not in marked.dataset.column_names
    assert report.recognizers == ("patterns", "known_values")
    for row in marked.dataset:
        if row["id"].startswith("r"):
            found = {row["text"][s["start"] : s["end"]] for s in row["spans"]}
            assert found & {"zorn", "quell"}
    assert marked.report.marks_assume == ()


def test_known_values_are_part_of_what_a_corpus_is(tmp_path):
    one = built(tmp_path, rows())
    other = built(tmp_path, rows(name="Other Name"))
    assert one.fingerprint != other.fingerprint
    plain = one.dataset.remove_columns(COLUMN)
    assert corpus_fingerprint(plain) != one.fingerprint


def test_values_tell_copies_apart_as_labels_do(tmp_path):
    """A copy that stays brings its own values: dropping it is not free."""
    lines = rows(text="the same words of rose")
    lines = [
        row | {"text": f"some words of rose, {max(i, 9)}"}
        for i, row in enumerate(lines)
    ]
    kept = built(tmp_path, lines, unit=PrivacyUnit.RECORD)
    assert sum(kept.report.num_records.values()) == len(lines)
    assert not kept.report.deduplicated
    dropped = built(
        tmp_path, lines, unit=PrivacyUnit.RECORD, duplicates=Duplicates.EXACT
    )
    assert dropped.report.deduplicated
    assert not dropped.report.duplicates_are_free


WRONG = [
    ({"name": ["Ann"]}, "string or whole number"),
    ({"name": True}, "string or whole number"),
    ({"name": 1.5}, "string or whole number"),
    ({"name": "x" * 301}, "at most 300"),
    ({"name": "\ud800"}, "at most 300"),
]


@pytest.mark.parametrize(("changes", "says"), WRONG)
def test_known_values_that_cannot_be_used_are_refused_without_their_text(
    tmp_path, changes, says
):
    with pytest.raises(DataError, match=says) as raised:
        built(tmp_path, rows(**changes))
    assert "xxx" not in str(raised.value)


def test_known_column_that_is_not_there_is_refused(tmp_path):
    lines = [{k: v for k, v in row.items() if k != "name"} for row in rows()]
    with pytest.raises(DataError, match="must have the column 'name'"):
        built(tmp_path, lines)


def test_file_of_values_is_named_by_every_claim_that_sees_marks(tmp_path):
    file = tmp_path / "values.txt"
    file.write_text("Wanda Zorn\n")

    def assumed(**changes):
        values = {"file": str(file), **changes}
        settings = DetectionSettings.model_validate({"known_values": values})
        return marks_assume(settings, None, "default")

    assert assumed() == [Assumption.PRIVATE_KNOWN_VALUES]
    assert assumed(public=True) == [Assumption.PUBLIC_KNOWN_VALUES]
    assert marks_assume(DetectionSettings(), None, "default") == []


def test_run_names_the_file_of_values_by_its_digest(tmp_path):
    from dptune.configfile import load_train_config  # noqa: PLC0415
    from infra.workspace import REPOSITORY  # noqa: PLC0415
    from steps._reviewing import with_review  # noqa: PLC0415

    file = tmp_path / "values.txt"
    file.write_text("Wanda Zorn\n")
    configs = REPOSITORY / "configs"
    changes = [
        f"detection.known_values={{file: {file}}}",
        "detection.use_review=false",
    ]
    config = load_train_config(
        configs / "train" / "quickstart.yaml", configs=configs, overrides=changes
    )
    named, _ = with_review(config)
    values = named.detection.known_values
    assert values.digest == file_digest(file)
    file.write_text("Another Name\n")
    assert with_review(named)[0].detection.known_values.digest == values.digest
    corpus = built(tmp_path, rows())
    with pytest.raises(ConfigError, match="planned with"):
        labelled(
            corpus, draw_canaries(CANARIES), known_values=values.model_dump(mode="json")
        )
