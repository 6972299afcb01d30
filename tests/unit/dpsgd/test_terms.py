"""Factored forms against gradients that are written down."""

import pytest
import torch

from dptune.dpsgd.terms import (
    Dense,
    Outer,
    Scatter,
    inner_product,
    merge,
    norm_of_sum,
)

UNITS, TIME, M, N = 3, 5, 7, 4


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def outer(seed=0, time=TIME):
    return Outer(
        normal(UNITS, time, M, seed=seed), normal(UNITS, time, N, seed=seed + 1)
    )


def scatter(seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 3, (UNITS, TIME), generator=generator)
    return Scatter(ids, normal(UNITS, TIME, N, seed=seed), M)


def written(term):
    dense = torch.zeros(UNITS, M, N)
    term.add_into(dense)
    return dense


def per_step(term):
    """The slow way: one outer product or one row at a time."""
    dense = torch.zeros(UNITS, M, N)
    for unit in range(UNITS):
        for step in range(TIME):
            if isinstance(term, Outer):
                dense[unit] += torch.outer(
                    term.left[unit, step], term.right[unit, step]
                )
            else:
                dense[unit, term.ids[unit, step]] += term.values[unit, step]
    return dense


@pytest.mark.parametrize("term", [outer(), scatter()], ids=["outer", "scatter"])
def test_every_view_of_a_term_agrees(term):
    dense = per_step(term)
    torch.testing.assert_close(written(term), dense)
    torch.testing.assert_close(
        term.size().square.float(), dense.flatten(1).square().sum(1)
    )
    factors = torch.tensor([0.5, 0.0, 2.0])
    total = torch.ones(M, N)
    term.add_weighted_sum(factors, total)
    torch.testing.assert_close(total, 1 + torch.einsum("u,umn->mn", factors, dense))


@pytest.mark.parametrize("time", [1, 2, 40])
def test_norm_from_gram_matrices_equals_norm_of_the_dense_form(time):
    term = outer(time=time)
    assert (term.ghost_cost <= time * M * N) is (time == 2 or time == 1)
    expected = written(term).flatten(1).square().sum(1)
    torch.testing.assert_close(term.size().square.float(), expected)


@pytest.mark.parametrize(("width", "time"), [(140, 2), (140, 200), (20, 200)])
def test_sizes_of_factors_in_double_precision_are_the_same(width, time):
    left, right = normal(UNITS, time, width), normal(UNITS, time, width, seed=1)
    found = Outer(left, right).size()
    exact = Outer(left.double(), right.double()).size()
    torch.testing.assert_close(exact.square, found.square, rtol=1e-5, atol=0)
    torch.testing.assert_close(exact.spread, found.spread, rtol=1e-4, atol=0)


def test_wide_and_narrow_factors_are_weighted_alike():
    factors = torch.tensor([0.5, 0.0, 2.0])
    term = outer()
    swapped = Outer(term.right, term.left)
    total, transposed = torch.zeros(M, N), torch.zeros(N, M)
    term.add_weighted_sum(factors, total)
    swapped.add_weighted_sum(factors, transposed)
    torch.testing.assert_close(total, transposed.t())


def test_inner_product_is_that_of_the_dense_forms():
    expected = (written(outer()) * written(scatter())).sum((1, 2))
    torch.testing.assert_close(inner_product(outer(), scatter()).float(), expected)


@pytest.mark.parametrize("with_dense", [False, True])
def test_norm_of_sum_includes_every_cross_term(with_dense):
    def terms():
        parts = [outer(1), scatter(2), outer(3), scatter(4)]
        dense = [Dense(normal(UNITS, M, N)), Dense(normal(UNITS, M, N, seed=9))]
        return parts + (dense if with_dense else [])

    parts = terms()
    dense = sum(t.values if isinstance(t, Dense) else per_step(t) for t in parts)
    expected = dense.flatten(1).square().sum(1)
    merged = merge(terms())
    assert len(merged) == (1 if with_dense else 2)
    bound = norm_of_sum(merged)
    slack = sum(t.size().rounding * t.size().spread for t in merged)
    torch.testing.assert_close((bound - slack).square().float(), expected)
    assert (bound >= expected.double().sqrt() * (1 - 1e-7)).all()
    apart = torch.stack([term.size().square.float() for term in terms()]).sum(0)
    assert not torch.allclose(apart, expected, rtol=0.01)  # the twin without them


@pytest.mark.parametrize(
    "term",
    [outer(), scatter(), Dense(normal(UNITS, M, N))],
    ids=lambda t: type(t).__name__,
)
def test_rows_of_a_unit_are_summed(term):
    rows = torch.tensor([[2, 0], [1, -1]])
    dense = term.values if isinstance(term, Dense) else per_step(term)
    expected = torch.stack([dense[2] + dense[0], dense[1]])
    regrouped = term.regroup(rows)
    mine = torch.zeros(2, M, N)
    regrouped.add_into(mine)
    torch.testing.assert_close(mine, expected)
    squares = regrouped.size().square.float()
    torch.testing.assert_close(squares, expected.flatten(1).square().sum(1))


@pytest.mark.parametrize("kind", ["dense", "outer", "scatter"])
def test_marked_units_are_overwritten_not_multiplied(kind):
    values = normal(UNITS, TIME, N)
    values[1] = torch.nan
    term = {
        "dense": Dense(torch.full((UNITS, M, N), torch.nan)),
        "outer": Outer(normal(UNITS, TIME, M), values),
        "scatter": Scatter(torch.zeros(UNITS, TIME, dtype=torch.long), values, M),
    }[kind]
    marked = torch.tensor([kind == "dense", True, kind == "dense"])
    total = torch.zeros(M, N)
    term.without(marked).add_weighted_sum(torch.ones(UNITS), total)
    assert total.isfinite().all()
    assert bool(total.any()) is (kind != "dense")
