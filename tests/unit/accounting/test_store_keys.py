"""Keyed names of privacy units."""

import hashlib
import hmac

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.accounting.store.reservations import NAME, UnitSet, distinct, locate
from dptune.errors import ConfigError

KEY = b"0123456789abcdef"


def units(ids, key=KEY, data_set="people"):
    return UnitSet.of(ids, key=key, data_set=data_set)


def hexadecimal(made):
    packed = made.names.tobytes().hex()
    return [packed[i : i + 32] for i in range(0, len(packed), 32)]


def test_known_answer_stays():
    # By openssl dgst -sha256 -hmac. A change would hand every unit a fresh budget.
    (name,) = hexadecimal(units(["customer-1"]))
    assert name == "1e21822134defbe4c3201b03622a1ca9"


def test_other_keys_and_other_data_sets_share_nothing():
    ids = [str(number) for number in range(100)]
    names = {*hexadecimal(units(ids))}
    assert len(names) == 100
    assert not names & {*hexadecimal(units(ids, key=KEY[::-1]))}
    assert not names & {*hexadecimal(units(ids, data_set="others"))}


def test_check_tells_keys_apart_without_being_a_name():
    assert units(["a"]).key_check == units(["b"]).key_check
    assert units(["a"]).key_check != units(["a"], key=KEY[::-1]).key_check
    assert units(["a"]).key_check not in hexadecimal(units(["a", "people"]))


def test_names_are_those_of_hmac_one_by_one_sorted_each_once():
    """Many of them: one name in 256 ends with a zero byte, which numpy hides."""
    ids = [f"customer-{number}" for number in range(3_000)]
    names = [
        hmac.digest(KEY, f"unit\x1fpeople\x1f{unit}".encode(), "sha256")[:16]
        for unit in ids
    ]
    assert any(name.endswith(b"\0") for name in names)
    made = units([*ids, *reversed(ids)])
    assert made.names.tobytes() == b"".join(sorted(names))
    assert made.digest == hashlib.sha256(b"".join(sorted(names))).hexdigest()
    check = hmac.digest(KEY, b"check\x1fpeople", "sha256")[:16]
    assert made.key_check == check.hex()


SOME = st.sampled_from([b"\0", b"\1", b"a", b"\xff"])
NAMES = st.lists(st.builds(lambda a, b: a + bytes(14) + b, SOME, SOME), max_size=20)


@given(known=NAMES, wanted=NAMES)
def test_names_are_located_as_python_does(known, wanted):
    """Few names, so that many are equal or neighbours, and zeros at their ends."""
    names = distinct(np.frombuffer(b"".join(known), NAME))
    assert names.tobytes() == b"".join(sorted({*known}))
    places, there = locate(names, np.frombuffer(b"".join(wanted), NAME))
    assert there.tolist() == [n in known for n in wanted]
    assert places.tolist() == [sum(k < n for k in {*known}) for n in wanted]


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 65])
def test_bad_key_is_refused_without_showing_it(key):
    with pytest.raises(ConfigError, match="16 to 64 bytes") as caught:
        units(["a"], key=key)
    assert "short" not in str(caught.value)


def test_names_are_not_in_the_repr():
    made = units(["a"])
    (name,) = hexadecimal(made)
    assert name not in repr(made)
    assert str(made.names[0]) not in repr(made)
