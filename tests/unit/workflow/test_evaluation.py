"""What attacks are spared where there is nothing to find."""

import pytest

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.exposure import Measured
from dptune.attacks.settings import AttackSettings
from dptune.workflow.attack import CanaryRanking


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
