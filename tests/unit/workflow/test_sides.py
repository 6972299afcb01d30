"""Which texts an attack on a model from elsewhere counts as drawn by themselves."""

import json

import pytest

import dptune
from dptune.errors import ConfigError, DataError
from dptune.testing import tiny_model, tiny_tokenizer
from dptune.workflow.external_audit import ForeignModel, read_texts, sides_of
from dptune.workflow.sides import one_of_each

MEMBERS = [f"call {number} on day {number % 7}" for number in range(60)]
OTHERS = [f"meet {number} in room {number % 5}" for number in range(60)]
FIVE = [number // 5 for number in range(60)]


def named(owners, prefix=""):
    return [f"{prefix}{owner}" for owner in owners]


def test_one_text_of_each_owner_is_attacked_in_whatever_order():
    owners = named(FIVE)
    members, others = one_of_each(MEMBERS, OTHERS, member_owners=owners)
    assert (len(members), others) == (12, OTHERS)
    assert {FIVE[MEMBERS.index(text)] for text in members} == set(range(12))
    order = [7 * i % 60 for i in range(60)]
    again, _ = one_of_each(
        [MEMBERS[i] for i in order], OTHERS, member_owners=[owners[i] for i in order]
    )
    assert sorted(again) == sorted(members)
    assert members != MEMBERS[::5]  # what stands first is not what is taken


def test_copies_count_once_and_texts_of_both_sides_not_at_all():
    members, others = one_of_each([*MEMBERS, *MEMBERS[:9]], [*OTHERS, *MEMBERS[:5]])
    assert (sorted(members), others) == (sorted(MEMBERS[5:]), OTHERS)
    with pytest.raises(DataError, match="got 0 and 0 of them"):
        one_of_each(MEMBERS, MEMBERS)


def test_texts_of_several_owners_of_one_side_are_not_attacked():
    """One copy tells of the next, and none is on the other side."""
    texts, owners = [*MEMBERS, *MEMBERS[:9]], [f"m{n}" for n in range(69)]
    members, others = one_of_each(texts, OTHERS, member_owners=owners)
    assert (members, others) == (MEMBERS[9:], OTHERS)
    again = [*owners[:60], *owners[:9]]  # of one owner each
    assert len(one_of_each(texts, OTHERS, member_owners=again)[0]) == 60


def test_owner_of_both_sides_is_refused_without_a_name():
    with pytest.raises(DataError, match="on one side alone, got 1 on both") as caught:
        one_of_each(["a"], ["b"], member_owners=["grace"], non_member_owners=["grace"])
    assert "grace" not in str(caught.value)


@pytest.mark.parametrize("twin", ["ann\u00e9 ", "anne\u0301", "ann\u200b\u00e9"])
@pytest.mark.parametrize("side", ["members", "others"])
def test_owners_that_look_alike_are_refused_without_a_name(tmp_path, twin, side):
    """They were attacked as two people, or one was a member and none."""
    rows = {
        "members": [{"text": t, "owner": f"m{i}"} for i, t in enumerate(MEMBERS)],
        "others": [{"text": t, "owner": f"n{i}"} for i, t in enumerate(OTHERS)],
    }
    rows["members"][0]["owner"] = "ann\u00e9"
    rows[side][1]["owner"] = twin
    with pytest.raises(
        DataError, match="owners: must name each owner in one"
    ) as caught:
        sides_of(foreign(tmp_path, **rows))
    assert "ann" not in str(caught.value)


def attacked(**changes):
    return dptune.membership(
        tiny_model(),
        tiny_model(),
        tiny_tokenizer(),
        members=MEMBERS,
        non_members=OTHERS,
        max_tokens=8,
        **changes,
    )


def test_library_attacks_one_text_of_each_owner():
    report = attacked(member_owners=FIVE, non_member_owners=named(FIVE, "other "))
    assert (report.num_members, report.num_non_members) == (12, 12)
    assert attacked().num_members == 60


def test_owners_that_name_nobody_are_refused():
    with pytest.raises(ConfigError) as caught:
        attacked(member_owners=FIVE[1:], non_member_owners=[None, *FIVE[1:]])
    assert [problem.path for problem in caught.value.problems] == [
        "member_owners",
        "non_member_owners",
    ]


def foreign(tmp_path, members, others):
    for name, rows in {"members": members, "others": others}.items():
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return ForeignModel(
        model=tmp_path,
        base=tmp_path,
        members=tmp_path / "members.jsonl",
        non_members=tmp_path / "others.jsonl",
    )


def test_files_name_owners(tmp_path):
    others = [{"text": text} for text in OTHERS]
    members = [
        {"text": f"{text} {number}", "owner": number // 2}
        for number, text in enumerate(MEMBERS * 2)
    ]
    one, other = sides_of(foreign(tmp_path, members, others))
    assert (len(one), other) == (60, OTHERS)
    for row in members:
        row["owner"] = 7
    with pytest.raises(DataError, match="of at least 50 owners, got 1"):
        sides_of(foreign(tmp_path, members, others))
    del members[3]["owner"]
    with pytest.raises(DataError, match="in every row or in none, got 119 of 120"):
        sides_of(foreign(tmp_path, members, others))
    members[3]["owner"] = ["grace"]
    with pytest.raises(DataError, match="line 4: must have an owner") as caught:
        sides_of(foreign(tmp_path, members, others))
    assert "grace" not in str(caught.value)


def test_line_of_json_ends_at_a_line_feed_alone(tmp_path):
    texts = [f"a\u2028b\x85 {number}" for number in range(50)]
    rows = [{"text": text} for text in texts]
    assert read_texts(foreign(tmp_path, rows, rows).members) == texts
