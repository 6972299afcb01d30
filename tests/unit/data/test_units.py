"""Seeded fractions of ids."""

from dptune.data.draws import seeded_fractions


def test_seeded_fraction_is_uniform_and_independent():
    ids = [str(i) for i in range(20_000)]
    one = seeded_fractions(ids, seed=0, purpose="split")
    two = seeded_fractions(ids, seed=0, purpose="sample")
    # Mean of n uniforms: stddev (12 n)^-1/2 = 0.002; 6 of them.
    assert abs(sum(one) / len(one) - 0.5) < 0.0123
    # Joint tail of independent halves: 1/4, stddev 0.0031.
    both = sum(a < 0.5 and b < 0.5 for a, b in zip(one, two, strict=True)) / len(one)
    assert abs(both - 0.25) < 0.0184
    assert max(one) < 1
