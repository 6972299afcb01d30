"""What attacks are spared: where there is nothing to find, and what is known."""

from dataclasses import replace

import pytest

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.exposure import Measured
from dptune.attacks.settings import AttackSettings
from dptune.workflow import attack
from dptune.workflow.attack import measure_utility
from dptune.workflow.canary_ranking import CanaryRanking

from .conftest import PERFORMANCE


@pytest.mark.parametrize("num_canaries", [0, 1])
def test_no_candidate_is_scored_where_there_is_no_canary(num_canaries, tmp_path):
    spec = CanarySpec(num_planted=0, num_held_out=num_canaries)
    ranking = CanaryRanking(
        canaries=draw_canaries(spec, seed=1),
        attacks=AttackSettings(),
        device="cpu",
        cache=tmp_path,
    )
    no_model = object()
    if num_canaries:
        with pytest.raises(AttributeError):
            ranking.measure(no_model)
    else:
        nothing = Measured(canaries=(), num_token_forwards=0)
        assert ranking.measure(no_model) == nothing


@pytest.fixture
def utility(bundle, corpus, monkeypatch, tmp_path):
    """Measure with a cache; returns the report, and how many models were looked at."""
    looked = []
    losses = attack.held_out_losses
    monkeypatch.setattr(
        attack, "held_out_losses", lambda *a, **k: looked.append(1) or losses(*a, **k)
    )

    def measure(max_tokens=24, base=bundle, cache=tmp_path):
        looked.clear()
        found = measure_utility(
            bundle,
            base,
            corpus,
            max_tokens=max_tokens,
            performance=PERFORMANCE,
            cache=cache,
        )
        return found, len(looked)

    return measure


def test_base_is_measured_once_for_all_models_beside_it(utility):
    first, both = utility()
    again, alone = utility()
    assert (both, alone) == (2, 1)
    assert again == first == utility(cache=None)[0]


def test_base_is_measured_anew_where_it_or_what_it_reads_is_another(utility, bundle):
    utility()
    shorter, looked = utility(max_tokens=12)
    assert looked == 2
    assert shorter == utility(max_tokens=12, cache=None)[0]
    assert utility(base=replace(bundle, digest="another"))[1] == 2


def test_twin_that_forgets_what_was_read_is_caught(utility, bundle, monkeypatch):
    monkeypatch.setattr(attack, "_digest", lambda _: "")
    with pytest.raises(AssertionError):
        test_base_is_measured_anew_where_it_or_what_it_reads_is_another(utility, bundle)
