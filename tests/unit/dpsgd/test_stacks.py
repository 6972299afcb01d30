"""Gradients side by side against the same gradients one by one."""

import pytest
import torch

from dptune.dpsgd import stacks
from dptune.dpsgd.parameters import DEFAULT_MATERIALIZE_BYTES
from dptune.dpsgd.stacks import Stack, stack
from dptune.dpsgd.tape import DenseBudget, Tape
from dptune.dpsgd.terms import Dense, Outer, norm_of_sum

UNITS = 3
FEW, SOME, MANY = (3, 4), (80, 70), (150, 130)
"""One for each way of `Dense`: all float64; squares in runs; a float32 product."""


def drawn(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: [Dense(torch.randn(UNITS, *shape, generator=generator))]
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("shape", [FEW, SOME, MANY])
def test_norms_and_sums_are_those_of_each_parameter(shape):
    terms = drawn({"a": shape, "b": (shape[1], shape[0]), "c": shape})
    alone = {name: norm_of_sum(held) for name, held in terms.items()}
    factors = torch.tensor([[0.5, 0.0, 2.0], [1.0, 1.0, 0.25], [0.0, 3.0, 1.0]])
    expected = {name: torch.zeros(held[0].shape[1:]) for name, held in terms.items()}
    for row, (name, (term,)) in zip(factors, terms.items(), strict=True):
        term.add_weighted_sum(row, expected[name])
    (whole,) = stack(terms)
    assert whole.names == ("a", "b", "c")
    for name, norms in zip(whole.names, whole.norms(), strict=True):
        torch.testing.assert_close(norms, alone[name], rtol=1e-12, atol=0)
    for name, total in whole.weighted_sums(factors):
        torch.testing.assert_close(total.view_as(expected[name]), expected[name])


def test_terms_look_at_the_stack():
    terms = drawn({"a": FEW, "b": FEW})
    values = {name: held[0].values.clone() for name, held in terms.items()}
    (whole,) = stack(terms)
    for number, (name, held) in enumerate(terms.items()):
        torch.testing.assert_close(held[0].values, values[name], rtol=0, atol=0)
        assert held[0].values.data_ptr() == whole.values[number].data_ptr()


def test_what_is_alone_large_or_factored_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(stacks, "_MOST_ENTRIES_CPU", 2 * UNITS * 12)
    terms = drawn(
        {"a": FEW, "lonely": (5,), "b": FEW, "large": SOME, "huge": SOME, "c": FEW}
    )
    terms["factored"] = [Outer(torch.ones(UNITS, 2, 3), torch.ones(UNITS, 2, 4))]
    terms["several"] = [*drawn({"x": FEW})["x"], terms["factored"][0]]
    before = {name: list(held) for name, held in terms.items()}
    found = [one.names for one in stack(terms)]
    assert found == [("a", "b")]  # c is left over, and the two large ones
    assert all(terms[n] == before[n] for n in terms if n not in ("a", "b"))


SHAPES = {"l1.a": FEW, "l1.bias": (12,), "l2.a": FEW, "l2.bias": (7,), "l3.a": SOME}
SHAPES |= {"l3.bias": (7,), "l4.a": SOME, "l4.b": MANY}
GROUPS = {name: int(name[1]) - 1 for name in SHAPES}


def taped(group_of, *, spoilt=False):
    tape = Tape(
        group_of=group_of,
        rows_of_unit=torch.arange(UNITS)[:, None],
        budget=DenseBudget(DEFAULT_MATERIALIZE_BYTES),
        shared=frozenset(),
        streams=False,
        device=torch.device("cpu"),
    )
    for name, held in drawn(SHAPES).items():
        if spoilt and name == "l2.a":
            held[0].values[1, 0, 0] = torch.nan
        tape.add(name, held[0])
    return tape


@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("group_of", [dict.fromkeys(SHAPES, 0), GROUPS])
def test_tape_clips_as_if_every_parameter_were_alone(group_of, spoilt):
    tape = taped(group_of, spoilt=spoilt)
    norms = tape.norms()
    assert sum(len(one.names) for one in tape._stacks) >= 6
    values = {name: held[0].values for name, held in drawn(SHAPES).items()}
    squares = torch.zeros_like(norms, dtype=torch.float64)
    for name, value in values.items():
        squares[group_of[name]] += value.double().flatten(1).square().sum(1)
    finite = torch.tensor([True, not spoilt, True])
    expected = squares.sqrt().float().masked_fill(~finite, torch.inf)
    torch.testing.assert_close(norms, expected, rtol=1e-3, atol=0)
    assert bool((norms[:, finite].double() >= squares.sqrt()[:, finite]).all())
    factors = torch.rand(norms.shape, generator=torch.Generator().manual_seed(1)) + 0.1
    sums = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    tape._add_kept(tape._checked(factors), sums)
    for name, value in values.items():
        kept = torch.where(finite, factors[group_of[name]], 0)
        total = 1 + torch.einsum("u,u...->...", kept, value)
        torch.testing.assert_close(sums[name], total)


def test_sums_are_asked_for_in_the_order_of_the_terms():
    """Ranks that hold parts of them send one away when the next is asked for."""
    tape = taped(GROUPS)
    asked = []

    class Lent(dict):
        def __getitem__(self, name):
            asked.append(name)
            return super().__getitem__(name)

    sums = Lent((name, torch.zeros(shape)) for name, shape in SHAPES.items())
    tape._add_kept(tape._checked(torch.ones_like(tape.norms())), sums)
    assert asked == list(SHAPES)


def test_marked_units_are_overwritten_not_multiplied():
    values = torch.tensor([[[1.0], [torch.nan]], [[2.0], [torch.inf]]])
    clean = Stack(("a", "b"), values).without(torch.tensor([False, True]))
    assert clean.values.flatten().tolist() == [1.0, 0.0, 2.0, 0.0]
