"""Shadows are the base, trained on halves of records that nobody attacks."""

import pytest
import torch

from dptune.config import ShadowSettings
from dptune.errors import DataError
from dptune.models.loading import load_saved
from dptune.workflow.shadowing import Shadows


def test_shadows_learn_their_half_and_leave_the_base_alone(bundle):
    base = load_saved(bundle.path)
    before = [p.clone() for p in base.model.parameters()]
    generator = torch.Generator().manual_seed(0)
    pool = torch.randint(3, 250, (48, 8), generator=generator).tolist()
    shadows = Shadows.of(
        base,
        pool,
        settings=ShadowSettings(num_models=2, learning_rate=0.01),
        max_tokens=8,
        device="cpu",
    )
    assert (len(shadows.population), shadows.num_records) == (12, 18)
    seen = []
    first, second = shadows.models(lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    weights = [next(m.parameters()) for m in (first, second)]
    assert not torch.equal(*weights)
    assert all(
        torch.equal(a, b) for a, b in zip(before, base.model.parameters(), strict=True)
    )


def test_shadows_without_enough_records_raise(bundle):
    with pytest.raises(DataError, match="got 39"):
        Shadows.of(
            load_saved(bundle.path),
            [[1, 2]] * 39 + [[1]],
            settings=ShadowSettings(),
            max_tokens=8,
            device="cpu",
        )
