"""Keyed names of privacy units."""

import pytest

from dptune.data.units import seeded_fraction, unit_keys
from dptune.errors import ConfigError

KEY = b"0123456789abcdef"


def test_unit_keys_equal_ids_share_a_name():
    names = unit_keys(["a", "b", "a"], KEY)
    assert names[0] == names[2] != names[1]
    assert all(len(name) == 32 for name in names)


def test_unit_keys_known_answer_stays():
    # A change of this name would hand every unit a fresh budget.
    assert unit_keys(["customer-1"], KEY) == ["2afd9c087694ce2c63773b37089a3893"]


def test_unit_keys_of_another_key_share_nothing():
    ids = [str(i) for i in range(100)]
    assert not {*unit_keys(ids, KEY)} & {*unit_keys(ids, KEY[::-1])}


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 65])
def test_unit_keys_with_bad_key_is_refused_without_it(key):
    with pytest.raises(ConfigError, match="16 to 64 bytes") as caught:
        unit_keys(["a"], key)
    assert "short" not in str(caught.value)


def test_seeded_fraction_is_uniform_and_independent():
    ids = [str(i) for i in range(20_000)]
    one = [seeded_fraction(name, seed=0, purpose="split") for name in ids]
    two = [seeded_fraction(name, seed=0, purpose="sample") for name in ids]
    # Mean of n uniforms: stddev (12 n)^-1/2 = 0.002; 6 of them.
    assert abs(sum(one) / len(one) - 0.5) < 0.0123
    # Joint tail of independent halves: 1/4, stddev 0.0031.
    both = sum(a < 0.5 and b < 0.5 for a, b in zip(one, two, strict=True)) / len(one)
    assert abs(both - 0.25) < 0.0184
    assert max(one) < 1
