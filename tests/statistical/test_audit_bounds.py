"""Lower bounds of epsilon exceed the truth no more often than they say.

`benchmarks/audits.py` does the same for 1,000 mechanisms. Seeds are fixed.
"""

import math

import numpy as np
import pytest
from scipy import stats

from dptune.audits.canary_audit import (
    AuditedClaim,
    audit_canaries,
    guess_inclusion,
    guess_pairs,
)
from dptune.audits.tails import guess_tail, hit_tail, is_possible
from dptune.privacy import NeighboringRelation, Notion
from tests.support.gaussian_curve import GaussianCurve, gaussian_epsilon
from tests.support.mechanisms import (
    gaussian_mechanism,
    randomized_response,
    subset_selection,
)

NUM_RUNS, LEVEL = 2_000, 0.05
MOST = round(NUM_RUNS * 0.06)


def simulate(generator, kind):
    num = int(generator.choice([20, 50, 100]))
    if kind == 0:
        return gaussian_mechanism(generator, mu=generator.uniform(0.1, 2), num=num)
    if kind == 1:
        return randomized_response(
            generator, epsilon=generator.uniform(0.1, 4), num=num
        )
    top = int(generator.choice([1, 1_000, 10**5]))
    return subset_selection(
        generator, epsilon=generator.uniform(0.1, 8), top=top, num=num
    )


@pytest.mark.parametrize("kind", range(3))
def test_bounds_of_known_mechanisms_are_below_the_truth(kind):
    generator = np.random.default_rng(kind)
    above = 0
    for _ in range(25):
        made = simulate(generator, kind)
        audits = audit_canaries(made.report, made.claims, confidence=0.95)
        above += any(a.epsilon_lower_bound > made.epsilon(a.relation) for a in audits)
    assert above <= 2  # more than 2 of 25 has probability .13 at level .05


def written_into_hosts(generator, *, epsilon, num, appended):
    """Say of every secret whether its host holds it, or nothing.

    A right answer has e^(2 epsilon) times the chance of a wrong one. Of a host that is
    absent both have e^epsilon times that chance, so that it is epsilon-DP to have one.
    """
    wrong = 0.08
    right = wrong * math.exp(2 * epsilon)
    none, none_without = 1 - wrong - right, 1 - 2 * wrong * math.exp(epsilon)
    assert abs(math.log(none / none_without)) <= epsilon
    answers = [
        generator.choice((sign, -sign, 0), num, p=(right, wrong, none))
        for sign in (1.0, -1.0)
    ]
    planted, held_out = (said + generator.random(num) / 4 for said in answers)
    made = randomized_response(generator, epsilon=epsilon, num=num).report
    losses = iter([*-planted, *-held_out])
    canaries = [c.model_copy(update={"nll": next(losses)}) for c in made.canaries]
    return made.model_copy(update={"canaries": canaries, "appended": appended})


@pytest.mark.parametrize(("appended", "bar"), [(True, (0, 1)), (False, (15, 20))])
def test_secret_in_a_host_is_worth_two_units_under_add_or_remove(appended, bar):
    """Taken for a record of its own, it refutes claims that hold."""
    generator, delta = np.random.default_rng(0), 1e-9
    claim = AuditedClaim(
        notion=Notion.RECORD,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        delta=delta,
        guarantees=((1.0, delta),),
    )
    above = 0
    for _ in range(20):
        made = written_into_hosts(generator, epsilon=1.0, num=1000, appended=appended)
        audits = audit_canaries(made, [claim], confidence=0.95)
        above += any(a.epsilon_lower_bound > 1.0 for a in audits)
    assert bar[0] <= above <= bar[1]


def test_one_run_at_the_truth_errs_nearly_as_often_as_it_may():
    """Randomized response reaches the bound, so that the level is spent."""
    generator = np.random.default_rng(0)
    right = generator.binomial(200, 1 / (1 + math.exp(-1.0)), NUM_RUNS)
    fixed = {"guesses": 200, "canaries": 200, "delta": 0.0}
    refuted = sum(guess_tail(v, epsilon=1.0, **fixed) <= LEVEL for v in right)
    assert NUM_RUNS * 0.02 < refuted <= MOST
    twin = sum(guess_tail(v, epsilon=0.6, **fixed) <= LEVEL for v in right)
    assert twin > 0.7 * NUM_RUNS


def test_best_of_many_thresholds_without_correction_is_caught():
    """The twin that picks the best number of guesses after looking."""
    generator = np.random.default_rng(0)
    refuted = 0
    for _ in range(200):
        right = generator.random(100) < 1 / (1 + math.exp(-1.0))
        tails = [
            guess_tail(v, guesses=r, canaries=100, epsilon=1.0, delta=0.0)
            for r, v in enumerate(np.cumsum(right), start=1)
        ]
        refuted += min(tails) <= LEVEL
    assert refuted > 0.15 * 200


def test_inclusion_at_the_truth_although_the_number_of_planted_is_fixed():
    generator, num = np.random.default_rng(1), 40
    refuted = uncorrected = 0
    for _ in range(NUM_RUNS):
        said = generator.random((2, num)) < 1 / (1 + np.exp([[-0.5], [0.5]]))
        scores = said + generator.random((2, num)) / 2
        (g,) = guess_inclusion(*scores, fractions=(1.0,))
        tail = guess_tail(
            g.correct, guesses=g.guesses, canaries=2 * num, epsilon=0.5, delta=0.0
        )
        refuted += tail <= LEVEL * g.chance
        uncorrected += tail <= LEVEL
    assert refuted <= uncorrected <= MOST


def test_pairs_of_gaussians_at_their_curve():
    """Two records change where one is replaced: the curve of sqrt(2) mu."""
    generator, mu = np.random.default_rng(2), 0.8
    true, twin = GaussianCurve(math.sqrt(2) * mu), GaussianCurve(0.5 * mu)
    refuted = caught = 0
    for _ in range(300):
        planted = generator.normal(mu, 1, 150)
        held_out = generator.normal(0, 1, 150)
        (g,) = guess_pairs(planted, held_out, fractions=(0.4,))
        fixed = {"guesses": g.guesses, "canaries": 150, "chance": LEVEL}
        refuted += not is_possible(g.correct, curve=true, **fixed)
        caught += not is_possible(g.correct, curve=twin, **fixed)
    assert refuted <= 0.06 * 300
    assert caught > 0.5 * 300


@pytest.mark.parametrize(("share", "epsilon"), [(0.1, 1.0), (0.001, 5.0)])
def test_hits_at_the_truth_err_nearly_as_often_as_they_may(share, epsilon):
    generator = np.random.default_rng(3)
    odds = math.exp(epsilon) * share / (1 - share)
    hits = generator.binomial(100, odds / (1 + odds), NUM_RUNS)
    fixed = {"canaries": 100, "share": share, "delta": 0.0}
    refuted = sum(hit_tail(v, epsilon=epsilon, **fixed) <= LEVEL for v in hits)
    assert NUM_RUNS * 0.02 < refuted <= MOST
    twin = sum(hit_tail(v, epsilon=epsilon - 1, **fixed) <= LEVEL for v in hits)
    assert twin > 0.5 * NUM_RUNS


def test_mechanism_that_tells_everything_with_delta_is_within_its_delta():
    """(0, delta)-DP: all guesses are right with probability delta, else coins."""
    generator, delta = np.random.default_rng(4), 0.04
    tells = generator.random(NUM_RUNS) < delta
    right = np.where(tells, 30, generator.binomial(30, 0.5, NUM_RUNS))
    fixed = {"guesses": 30, "canaries": 30, "epsilon": 0.0}
    refuted = sum(guess_tail(v, delta=delta, **fixed) <= LEVEL for v in right)
    assert refuted <= MOST
    twin = sum(guess_tail(v, delta=0.0, **fixed) <= LEVEL for v in right)
    assert twin > 0.055 * NUM_RUNS


def test_gaussian_epsilon_is_that_of_a_simulated_pair():
    """The largest of P[S] - e^eps Q[S] over half-lines,."""
    epsilon = gaussian_epsilon(1.0, delta=0.05)
    edge = epsilon + 0.5
    delta = stats.norm.sf(edge - 1.0) - math.exp(epsilon) * stats.norm.sf(edge)
    assert delta == pytest.approx(0.05, abs=1e-6)
