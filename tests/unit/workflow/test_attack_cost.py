"""What attacks will take is counted as they count it."""

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.exposure import measure_exposure
from dptune.attacks.settings import AttackSettings
from dptune.attacks.trie import CandidateTrie
from dptune.config import PerformanceSettings
from dptune.models.loading import LoadedModel
from dptune.workflow.attack_cost import attack_costs
from tests.unit.attacks.conftest import make_model, make_tokenizer

SPEC = CanarySpec(length=4, num_planted=1, num_held_out=1)
SPEED = PerformanceSettings(device="cpu", evaluation_batch_size=4)


def costs(**changes):
    tokenizer = make_tokenizer(individual_digits=True)
    model = make_model("llama", vocab_size=len(tokenizer))
    loaded = LoadedModel(model=model, tokenizer=tokenizer)
    settings = AttackSettings(num_members=50, **changes)
    found = attack_costs(loaded, settings, SPEC, max_tokens=16, performance=SPEED)
    assert all(cost.seconds > 0 for cost in found)
    return loaded, {cost.attack: cost.num_tokens for cost in found}


def test_exposure_costs_what_it_forwards_and_a_sample_less():
    loaded, exact = costs()
    trie = CandidateTrie.build(SPEC, loaded.tokenizer, bos=0)
    found = measure_exposure(loaded.model, trie, draw_canaries(SPEC, seed=1))
    assert exact["exposure"] == 2 * (found.num_token_forwards - len(trie.context))
    _, sampled = costs(sampled_candidates=1000)
    assert sampled["exposure"] < exact["exposure"]


def test_every_attack_that_is_asked_for_is_named():
    _, found = costs(extraction={"personal_data": {}})
    assert list(found) == [
        "losses of attacked records",
        "shadow models",
        "losses of held-out records",
        "exposure",
        "extraction by sampling",
        "personal data",
    ]
    _, few = costs(extraction=None, shadows=None)
    assert list(few) == [
        "losses of attacked records",
        "losses of held-out records",
        "exposure",
    ]
    assert few["losses of attacked records"] == 2 * 100 * 16
