"""What attacks will take on this machine, from two passes that are timed."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.exposure import nodes_to, score_candidates
from dptune.attacks.inference import evaluating
from dptune.attacks.settings import AttackSettings
from dptune.attacks.trie import CandidateTrie
from dptune.config import ModelSettings, PerformanceSettings
from dptune.models.loading import LoadedModel, load_source
from dptune.models.source import ArchitectureSource
from dptune.results import AttackCost
from dptune.workflow.chats import written_canaries
from dptune.workflow.device import pick_device
from dptune.workflow.doctor import built

_TIMED_NODES = 100
_TIMED_TOKENS = 256
_LEARNING = 3
"""Time of a step over that of its forward pass."""
_GUESS = 12


def load_unfitted(model: ModelSettings, *, data_root: Path) -> LoadedModel:
    """Load the model of a configuration as attacks do, not fitted to any corpus."""
    source = model.source
    if isinstance(source, ArchitectureSource):
        return built(source, data_root=data_root)
    names = model.class_names
    loaded = load_source(source, data_root=data_root, class_names=names, dtype=None)
    return loaded.read_only()


def attack_costs(
    loaded: LoadedModel,
    attacks: AttackSettings,
    spec: CanarySpec,
    *,
    max_tokens: int,
    performance: PerformanceSettings,
    num_held_out: int | None = None,
) -> tuple[AttackCost, ...]:
    """Time one pass of records and one of candidates, and multiply.

    Every record counts as the longest there is, and shadows as trained to their last
    step: seconds are of the worst case, but for a head of the ranking, which may take
    up to what exact ranks do.

    Args:
        loaded: the model before fine-tuning.
        attacks: settings of the attacks.
        spec: of the canaries.
        max_tokens: longest sequence.
        performance: where it is run, and with how many records side by side.
        num_held_out: records whose losses are measured; None for as many as attacked.
    """
    device = pick_device(performance.device)
    rows = performance.evaluation_batch_size
    if device == "cpu":  # where more of them take as much longer
        rows = min(rows, max(1, _TIMED_TOKENS // max_tokens))
    nn.Module.to(loaded.model, device)
    token = torch.zeros((rows, max_tokens), dtype=torch.long, device=device)
    with torch.inference_mode(), evaluating(loaded.model):
        per_token = _timed(lambda: loaded.model(input_ids=token)) / token.numel()
    attacked = 2 * attacks.num_members
    held_out = attacked if num_held_out is None else num_held_out
    shadows = attacks.shadows
    num_shadows = shadows.num_models if shadows else 0
    found = {"losses of attacked records": (2 + num_shadows) * attacked * max_tokens}
    if shadows:
        steps = num_shadows * shadows.num_steps(attacked)
        learnt = steps * shadows.batch_size * max_tokens
        found["shadow models"] = _LEARNING * learnt
    found["losses of held-out records"] = 2 * held_out * max_tokens
    costs = [(name, tokens, tokens * per_token) for name, tokens in found.items()]
    if not loaded.class_names:
        costs += _of_text(loaded, attacks, spec, per_token, max_tokens, device=device)
    return tuple(
        AttackCost(attack=name, num_tokens=tokens, seconds=seconds)
        for name, tokens, seconds in costs
    )


def _of_text(
    loaded: LoadedModel,
    attacks: AttackSettings,
    spec: CanarySpec,
    per_token: float,
    max_tokens: int,
    *,
    device: str,
) -> list[tuple[str, int, float]]:
    """Cost of what ranks and draws, token by token behind a context."""
    one = spec.model_copy(update={"num_planted": 0, "num_held_out": 0, "fixed": ()})
    asked = written_canaries(draw_canaries(one), loaded.tokenizer)
    too_many = spec.space_size > attacks.max_candidates
    small = one.model_copy(update={"length": min(3, spec.length)})
    known = asked.canaries.spec
    known = known.model_copy(update={"length": small.length}) if too_many else known
    trie = CandidateTrie.build(known, asked.tokenizer, bos=asked.bos)
    source = np.random.default_rng(0)

    def drawn(count: int) -> NDArray[np.int64]:
        return source.integers(0, known.space_size, count)

    few = drawn(_TIMED_NODES)
    num_few = sum(int(level.sum()) for level in nodes_to(trie, few))
    per_node = _timed(
        lambda: score_candidates(loaded.model, trie, only=few, device=device)
    ) / (num_few + len(trie.context))
    only = None
    if attacks.sampled_candidates:
        only = drawn(attacks.sampled_candidates)
    nodes = sum(int(level.sum()) for level in nodes_to(trie, only))
    if too_many:
        nodes = attacks.max_nodes * spec.length
    costs: list[tuple[str, int, float]] = []
    if spec.num_planted + spec.num_held_out:
        costs.append(("exposure", 2 * nodes, 2 * nodes * per_node))
    if (extraction := attacks.extraction) is None:
        return costs
    trials = 2 * extraction.num_trials * extraction.max_new_tokens
    endings = 2 * attacks.num_members * max_tokens
    seconds = trials * per_node + endings * per_token
    costs.append(("extraction by sampling", trials + endings, seconds))
    if (asked_for := extraction.personal_data) is not None:
        guesses = 2 * asked_for.num_values * asked_for.num_guesses * _GUESS
        texts = asked_for.num_texts * asked_for.max_new_tokens + guesses
        offered = asked_for.num_guesses + asked_for.num_candidates
        read = 2 * asked_for.num_values * offered * max_tokens
        seconds = 2 * (texts * per_node + read * per_token)
        costs.append(("personal data", 2 * (texts + read), seconds))
    return costs


def _timed(work: Callable[[], object]) -> float:
    """Seconds of the faster of two passes: the first one warms up."""
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
