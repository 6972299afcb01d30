"""Ids that come back in another spelling are charged as those of before."""

import csv
import gzip
import json
import uuid
from dataclasses import replace

import pytest

from dptune.accounting.store.allowances import Grant
from dptune.accounting.store.cohorts import cohort_sizes
from dptune.accounting.store.reservations import UnitSet
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.verify import verify
from dptune.config import TrainConfig
from dptune.configfile import load_train_config
from dptune.data.building import build_corpus
from dptune.data.source import JsonlSource
from dptune.data.splitting import SplitSettings
from dptune.errors import BudgetExceededError
from dptune.privacy import NeighboringRelation, Notion
from dptune.workflow import respelled
from dptune.workflow.budget import check_budget, reserve_budget
from dptune.workflow.naming import known_elsewhere
from dptune.workflow.planned_units import units_for
from dptune.workflow.preflight import plan_for
from dptune.workflow.respelled import spelt_twice
from infra.workspace import REPOSITORY

from .conftest import KEY

NUMBERS = range(1, 31)
A_RUN = Grant(
    data_set="people",
    notion=Notion.RECORD,
    relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    epsilon=9.0,
    delta=1e-5,
)
GUIDS = [str(uuid.UUID(int=(number << 100) + 0xABCDEF)) for number in NUMBERS]


@pytest.fixture
def url(sqlite_budget):
    made = sqlite_budget()
    yield made
    with BudgetStore.open(made) as store:
        assert verify(store).success


@pytest.fixture
def months(tmp_path, url):
    """Run on sources month by month: units charged, and all that the store knows."""
    configs = REPOSITORY / "configs"
    path = configs / "train" / "own_text.yaml"
    known = load_train_config(path, configs=configs).model_dump(mode="json")

    def read(source, unit="record", *, data_set="people"):
        known["budget"] = {"data_set": data_set}
        known["data"] |= {"source": source, "privacy_unit": unit, "min_records": 10}
        config = TrainConfig.model_validate(known)
        corpus = build_corpus(
            config.data.source,
            privacy_unit=config.data.privacy_unit,
            splits=SplitSettings(validation=0.0, test=0.0),
            data_root=tmp_path,
            validate=False,
        )
        return config, corpus

    def run(source, unit="record", *, settles=True):
        config, corpus = read(source, unit)
        units = units_for(config.data, config.canaries, corpus.report)
        plan = plan_for(config.recipe, config.privacy, units=units)
        check_budget(config, corpus, plan, url=url, key=KEY)
        held = reserve_budget(config, corpus, plan, url=url, key=KEY)
        with BudgetStore.open(url) as store:
            if settles:
                store.settle(held.id)
            with store.engine.connect() as connection:
                sizes = cohort_sizes(connection, "people")
        return held.num_units, sum(sizes.values())

    run.read = read
    return run


def rows(ids, *, edited=""):
    return [{"id": name, "text": f"text {n}{edited}"} for n, name in enumerate(ids)]


def jsonl(folder, ids, **changes):
    lines = map(json.dumps, rows(ids, **changes))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return {"kind": "jsonl", "path": "rows.jsonl", "id_column": "id"}


def as_csv(folder, ids, **changes):
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"])
        writer.writeheader()
        writer.writerows(rows(ids, **changes))
    return {"kind": "csv", "path": "rows.csv", "id_column": "id"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NUMBERS, [f"{n}.0" for n in NUMBERS]),
        ([f"{n}.0" for n in NUMBERS], NUMBERS),
        ([f"{n:06d}" for n in NUMBERS], NUMBERS),
        (NUMBERS, [f"{n:06d}" for n in NUMBERS]),
        (GUIDS, [guid.upper() for guid in GUIDS]),
        (GUIDS, [guid.replace("-", "") for guid in GUIDS]),
        (GUIDS, [f"{{{guid}}}" for guid in GUIDS]),
        ([guid.upper() for guid in GUIDS], GUIDS),
    ],
    ids=[
        "pandas",
        "and back",
        "spreadsheet",
        "padded",
        "GUID",
        "hex",
        "braces",
        "guid",
    ],
)
def test_ids_that_are_written_otherwise_are_the_same_units(
    months, tmp_path, before, after
):
    assert months(jsonl(tmp_path, before)) == (30, 30)
    assert months(as_csv(tmp_path, after, edited="!")) == (30, 30)
    assert months(as_csv(tmp_path, after)) == (30, 30)  # texts of before, ids too
    more = [f"new {n}" for n in range(3)]
    assert months(as_csv(tmp_path, [*after, *more], edited="?")) == (33, 33)


def files(folder, *names, edited=""):
    for n, name in enumerate(names):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"text {n}{edited}")


NAMES = [f"{n}.txt" for n in NUMBERS]


@pytest.mark.parametrize(
    ("before", "after"),
    [({"path": "d/n"}, {"train": "d/n"}), ({"train": "d/n"}, {"path": "d/n"}),
     ({"path": "d/n"}, {"path": "d"}), ({"path": "d"}, {"path": "d/n"}),
     ({"path": "d/n"}, {"train": "d"}), ({"train": "d"}, {"path": "d/n"})],
)  # fmt: skip
def test_files_under_another_folder_or_split_are_the_same_units(
    months, tmp_path, before, after
):
    files(tmp_path / "d" / "n", *NAMES)
    assert months({"kind": "folder"} | before, unit="document") == (30, 30)
    files(tmp_path / "d" / "n", *NAMES, edited="!")
    assert months({"kind": "folder"} | after, unit="document") == (30, 30)


def test_file_that_moves_from_test_to_train_is_the_same_unit(months, tmp_path):
    source = {"kind": "folder", "train": "a", "test": "b"}
    files(tmp_path / "a", *NAMES[:20])
    files(tmp_path / "b", *NAMES[20:], edited=" held out")
    assert months(source, unit="document") == (30, 30)
    (tmp_path / "b" / NAMES[20]).rename(tmp_path / "a" / NAMES[20])
    files(tmp_path / "a", "more.txt", edited="!")
    assert months(source, unit="document") == (31, 31)


def test_lines_of_a_file_that_is_packed_or_moved_up_are_the_same_units(
    months, tmp_path
):
    source = {"kind": "text", "path": "a.txt", "position_ids": True}
    lines = [f"line {n}" for n in NUMBERS]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    assert months(source) == (30, 30)
    (tmp_path / "n").mkdir()
    with gzip.open(tmp_path / "n" / "a.txt.gz", "wt") as file:
        file.write("\n".join([*lines, "one more"]))
    assert months(source | {"path": "n/a.txt.gz"}) == (31, 31)


def test_owners_that_a_script_names_are_found_too(months, tmp_path, url):
    months(jsonl(tmp_path, NUMBERS))
    ids = [f"{n}.0" for n in (*NUMBERS, 99)]
    units = UnitSet.of(ids, key=KEY, data_set="people")
    known = UnitSet.of([*map(str, NUMBERS), "99.0"], key=KEY, data_set="people")
    assert respelled.as_known(url, units, ids, key=KEY).digest == known.digest


def test_ids_that_differ_otherwise_are_other_units(months, tmp_path):
    """So are two spellings in a first source."""
    both = [*NUMBERS, *(f"{n}.0" for n in NUMBERS)]
    assert months(jsonl(tmp_path, both)) == (60, 60)
    assert months(jsonl(tmp_path, both, edited="!")) == (60, 60)
    assert months(jsonl(tmp_path, range(100, 130))) == (30, 90)
    assert months(jsonl(tmp_path, [f"u{n}" for n in NUMBERS], edited="?")) == (30, 120)


def test_unit_is_charged_as_every_one_that_it_may_have_been(months, tmp_path):
    """Which of them comes first must not decide whose past it has."""
    others = [f"x{n}" for n in range(20)]
    assert months(jsonl(tmp_path, [*others, "7", "07"])) == (22, 22)
    assert months(jsonl(tmp_path, [*others, "007.0"], edited="!")) == (22, 22)


def test_people_of_a_new_name_that_another_one_has_charged_are_told(
    months, tmp_path, url
):
    """A name that was mistyped gave a corpus that had grown a fresh budget, unsaid."""
    months(jsonl(tmp_path, NUMBERS))

    def told(ids, name, key=KEY):
        source = jsonl(tmp_path, ids, edited="!")
        return known_elsewhere(url, *months.read(source, data_set=name), key=key)

    assert "budget.data_set to 'people'" in told([*NUMBERS, *range(50, 75)], "peopel")
    assert told([*NUMBERS, 50], "people") == ""
    assert told(range(30, 60), "others") == ""
    with BudgetStore.open(url) as store:
        store.grant(replace(A_RUN, data_set="other-numbers"))
    assert told(NUMBERS, "other-numbers") == ""
    another = told(NUMBERS, "peopel", key=KEY[::-1] + b"x")
    assert "the units of people were named by another key" in another
    assert "fresh budget" in another


def test_copies_under_respelled_ids_are_copies(months, tmp_path):
    source = jsonl(tmp_path, NUMBERS)
    assert months(source) == (30, 30)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('\n{"id": "7.0", "text": "text 6"}')
    assert months(source) == (30, 30)


def spend_twice(months, tmp_path, url):
    """One run holds all of a grant; the next has the same people, in other words."""
    with BudgetStore.open(url) as store:
        store.grant(A_RUN)
    months(jsonl(tmp_path, NUMBERS), settles=False)
    months(as_csv(tmp_path, [f"{n}.0" for n in NUMBERS], edited="!"))


def test_respelled_ids_buy_no_budget(months, tmp_path, url):
    with pytest.raises(BudgetExceededError):
        spend_twice(months, tmp_path, url)


def test_twin_that_knows_one_spelling_lets_a_budget_begin_anew(
    months, tmp_path, url, monkeypatch
):
    monkeypatch.setattr(respelled, "_otherwise", lambda unit: {unit})
    spend_twice(months, tmp_path, url)


BY_USER = JsonlSource(path="rows.jsonl", unit_column="user")


@pytest.mark.parametrize(
    ("ids", "number"),
    [
        (["Ann@x.org", "ann@x.org", "bob@x.org"], "1 of 3"),
        (["7", "007", "7.0", "8", "8"], "2 of 4"),
        ([GUIDS[0], GUIDS[0].replace("-", ""), f"{{{GUIDS[0].upper()}}}"], "2"),
    ],
)
def test_person_in_two_spellings_of_one_corpus_is_told(ids, number):
    (said,) = spelt_twice(BY_USER, ids)
    assert said.startswith(f"{number} ")
    assert not any(unit in said for unit in ids if len(unit) > 3)


def test_people_in_one_spelling_are_nothing_to_tell():
    assert spelt_twice(BY_USER, ["ann", "ann", "bob", "7", "17", "7.5"]) == ()
    records = JsonlSource(path="rows.jsonl", id_column="id")
    assert spelt_twice(records, ["a", "A"]) == ()
