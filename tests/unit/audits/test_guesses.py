import numpy as np
import pytest

from dptune.audits.canary_audit import guess_inclusion, guess_pairs


def test_guess_pairs_takes_the_clearest_first():
    planted, held_out = [5.0, 0.2, 0.0, 1.0], [0.0, 0.1, 3.0, 0.9]
    one, half = guess_pairs(planted, held_out, fractions=(0.25, 0.5))
    assert (one.correct, one.guesses, one.canaries, one.chance) == (1, 1, 4, 1.0)
    assert (half.correct, half.guesses) == (1, 2)
    assert half.best(num_known=4).correct == half.guesses == 2
    assert [half.best(num_known=n).correct for n in (0, 1)] == [1, 1]


def test_guess_inclusion_takes_both_ends():
    (found,) = guess_inclusion([9.0, 8.0, 1.0], [0.0, 2.0, 8.5], fractions=(0.7,))
    assert (found.correct, found.guesses, found.canaries) == (2, 4, 6)
    assert found.chance == pytest.approx(20 / 64)


@pytest.mark.parametrize("guess", [guess_pairs, guess_inclusion])
def test_ties_are_broken_against_the_guesser(guess):
    (found,) = guess([1.0] * 10, [1.0] * 10, fractions=(0.4,))
    assert found.correct == 0


@pytest.mark.parametrize("guess", [guess_pairs, guess_inclusion])
def test_guessing_nobody_is_no_guess(guess):
    assert guess([], []) == ()


def test_what_has_no_partner_is_left_out():
    (found,) = guess_pairs([1.0, 2.0, 3.0], [0.0], fractions=(1.0,))
    assert (found.correct, found.canaries) == (1, 1)


@pytest.mark.parametrize("guess", [guess_pairs, guess_inclusion])
def test_guesses_do_not_look_at_the_coins(guess):
    """Exchanging the groups turns every right guess into a wrong one."""
    planted, held_out = np.random.default_rng(0).normal(size=(2, 40)).tolist()
    for a, b in zip(guess(planted, held_out), guess(held_out, planted), strict=True):
        assert a.correct + b.correct == a.guesses == b.guesses
