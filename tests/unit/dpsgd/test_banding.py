import pytest

from dptune.dpsgd.factorization import (
    WORTHWHILE,
    candidate_bands,
    choose_banding,
    prefix_sum_error,
)
from dptune.errors import InfeasibleBudgetError

STEPS = 64


@pytest.mark.parametrize(
    ("rate", "steps", "expected"),
    [
        (0.1, 100, (1, 2, 4, 8)),
        (0.125, 100, (1, 2, 4, 8)),
        (1 / 3, 100, (1, 2)),
        (0.001, 5, (1, 2, 4)),
        (0.6, 100, (1,)),
        (1.0, 1, (1,)),
    ],
)
def test_candidates_fill_a_batch_and_fit_the_run(rate, steps, expected):
    assert candidate_bands(sample_rate=rate, num_steps=steps) == expected


def choose(noise_of, bands=(1, 2, 4, 8)):
    return choose_banding(bands, num_steps=STEPS, calibrate=lambda c: noise_of(len(c)))


def test_bands_that_cost_no_amplification_are_taken():
    chosen = choose(lambda bands: 1.5)
    assert len(chosen.coefficients) == 8
    assert chosen.noise_multiplier == 1.5
    error = prefix_sum_error(chosen.coefficients, num_steps=STEPS)
    assert chosen.prefix_sum_error == pytest.approx(1.5 * error)


def test_bands_that_cost_more_than_they_save_are_left():
    assert choose(float).coefficients == (1.0,)


def test_small_gain_is_not_worth_the_memory():
    """Noise that just eats the gain up, but for 4 or for 6 percent."""
    alone = choose(lambda bands: 1.0, bands=(1,)).prefix_sum_error
    two = choose(lambda bands: 1.0, bands=(2,)).prefix_sum_error

    def leaving(share):
        return choose(lambda b: share * alone / two if b == 2 else 1.0, bands=(1, 2))

    assert len(leaving(WORTHWHILE + 0.01).coefficients) == 1
    assert len(leaving(WORTHWHILE - 0.01).coefficients) == 2


def test_candidate_that_cannot_meet_the_target_is_skipped():
    def noise_of(bands):
        if bands == 4:
            raise InfeasibleBudgetError("no")
        return 1.0

    assert len(choose(noise_of).coefficients) == 8
    with pytest.raises(InfeasibleBudgetError):
        choose(noise_of, bands=(4,))
