"""Keyed names of privacy units."""

import pytest

from dptune.accounting.store.reservations import UnitSet, unpack
from dptune.errors import ArtifactError, ConfigError

KEY = b"0123456789abcdef"


def units(ids, key=KEY, data_set="people"):
    return UnitSet.of(ids, key=key, data_set=data_set)


def test_known_answer_stays():
    # By openssl dgst -sha256 -hmac. A change would hand every unit a fresh budget.
    assert units(["customer-1"]).names == ("1e21822134defbe4c3201b03622a1ca9",)


def test_other_keys_and_other_data_sets_share_nothing():
    ids = [str(number) for number in range(100)]
    names = {*units(ids).names}
    assert len(names) == 100
    assert not names & {*units(ids, key=KEY[::-1]).names}
    assert not names & {*units(ids, data_set="others").names}


def test_check_tells_keys_apart_without_being_a_name():
    assert units(["a"]).key_check == units(["b"]).key_check
    assert units(["a"]).key_check != units(["a"], key=KEY[::-1]).key_check
    assert units(["a"]).key_check not in units(["a", "people"]).names


def test_packed_names_read_back():
    made = units(["a", "b", "c"])
    assert tuple(unpack(made.packed)) == made.names


def test_torn_names_are_refused():
    with pytest.raises(ArtifactError, match="whole names"):
        unpack(b"x" * 17)


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 65])
def test_bad_key_is_refused_without_showing_it(key):
    with pytest.raises(ConfigError, match="16 to 64 bytes") as caught:
        units(["a"], key=key)
    assert "short" not in str(caught.value)


def test_names_are_not_in_the_repr():
    made = units(["a"])
    assert made.names[0] not in repr(made)
