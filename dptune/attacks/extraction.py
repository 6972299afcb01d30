"""What can be drawn out of a model by sampling: canaries, and endings of records.

Nothing that was drawn is kept: only how much of it was a secret.
"""

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import nn
from transformers import PreTrainedTokenizerFast

from dptune.attacks.canaries import CanarySet
from dptune.attacks.candidates import encode_secrets, plain_tokenizer
from dptune.attacks.decoding import Decoding, ending_log_probs, sample_continuations
from dptune.attacks.inference import OnProgress, unwatched
from dptune.conversation import ScoredTokens
from dptune.results import (
    CanarySampling,
    DiscoverableShare,
    Interval,
    NgramSimilarity,
)
from dptune.statistics import clopper_pearson, welch_interval

Floats = NDArray[np.float64]

NGRAM_SIZES = (1, 2, 3, 4)
TRIALS = (1, 100, 10_000)
CHANCES = (0.1, 0.5, 0.9)


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """Trials of RLDP, section 3.3: 4,000 of up to 10 tokens.

    Args:
        num_trials: continuations that are drawn.
        max_new_tokens: of each; more where a secret has more.
        decoding: how tokens are drawn.
        confidence: of intervals.
        seed: None draws from the operating system's secure source.
    """

    num_trials: int = 4000
    max_new_tokens: int = 10
    decoding: Decoding = field(default_factory=Decoding)
    confidence: float = 0.95
    seed: int | None = None

    def generator(self: Self) -> torch.Generator:
        """A source of draws, on the CPU."""
        generator = torch.Generator()
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed)
        return generator


def sample_canaries(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    canary_set: CanarySet,
    *,
    bos: int | None,
    stops: Collection[int] = (),
    settings: SamplingSettings | None = None,
    device: str | torch.device | None = None,
    on_progress: OnProgress = unwatched,
) -> CanarySampling:
    """Draw continuations of the template's prefix and compare them with the secrets.

    A continuation is valid if it is nothing but 1 to `length` symbols of the spec
    (RLDP, section 3.3, step 1). Valid ones are compared with every planted and every
    held-out secret by n-grams of characters, since two random strings are alike too:
    only the difference says something, and its interval comes from resampling canaries.
    A trial is as long as the longest secret at least: a shorter one can draw none.

    `hits` counts trials that begin with a whole secret, valid or not.

    Args:
        model: a causal language model with a key-value cache.
        tokenizer: the model's, fast.
        canary_set: planted canaries and controls.
        bos: token that opens a record in training; None if there is none.
        stops: tokens that end a continuation; none are the tokenizer's end of text.
        settings: trials and decoding.
        device: where to run; None is where the model is.
        on_progress: told how many continuations were drawn.

    Privacy:
        A function of the private model; the continuations are dropped.
    """
    settings = settings or SamplingSettings()
    spec = canary_set.spec
    context, head = _prompt(tokenizer, canary_set, bos=bos)
    endings = _endings(tokenizer, canary_set, bos=bos)
    longest = max((len(one) for one in endings), default=0) - len(context)
    drawn = sample_continuations(
        model,
        context,
        count=settings.num_trials,
        max_new_tokens=max(settings.max_new_tokens, longest),
        decoding=settings.decoding,
        generator=settings.generator(),
        stop=stops or tokenizer.eos_token_id,
        device=device,
        on_progress=on_progress,
    )
    texts = [_text(tokenizer, context, tokens).removeprefix(head) for tokens in drawn]
    form = re.compile(f"[{re.escape(spec.symbols)}]{{1,{spec.length}}}")
    valid = [text.strip() for text in texts if form.fullmatch(text.strip())]
    return CanarySampling(
        num_trials=len(texts),
        num_valid=len(valid),
        planted_hits=_hits(texts, canary_set.planted),
        held_out_hits=_hits(texts, canary_set.held_out),
        planted_found=_num_found(texts, canary_set.planted),
        held_out_found=_num_found(texts, canary_set.held_out),
        similarities=tuple(
            _similarity(valid, canary_set, size=n, settings=settings)
            for n in NGRAM_SIZES
        )
        if valid and canary_set.planted and canary_set.held_out
        else (),
    )


def _prompt(
    tokenizer: PreTrainedTokenizerFast, canary_set: CanarySet, *, bos: int | None
) -> tuple[list[int], str]:
    """Tokens that every canary shares, and the text between them and the secret."""
    spec = canary_set.spec
    plain = plain_tokenizer(tokenizer)
    some = [spec.secret_at(i * (spec.space_size - 1) // 99) for i in range(100)]
    encoded = encode_secrets(spec, plain, some, prefix=spec.prefix)
    shared = encoded.num_shared
    encoding = plain.encode(spec.record(some[0]), add_special_tokens=False)
    end = encoding.offsets[shared - 1][1] if shared else 0
    opening = [] if bos is None else [bos]
    return [*opening, *map(int, encoded.tokens[0, :shared])], spec.prefix[end:]


def _text(
    tokenizer: PreTrainedTokenizerFast, context: Sequence[int], tokens: Sequence[int]
) -> str:
    """What the tokens add to the text of the context."""
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    before = str(tokenizer.decode(list(context), **options))
    return str(tokenizer.decode([*context, *tokens], **options))[len(before) :]


def _hits(texts: Iterable[str], drawn: Sequence[str]) -> int:
    """Trials that begin with a secret."""
    return sum(text.lstrip().startswith(tuple(drawn)) for text in texts) if drawn else 0


def _num_found(texts: Iterable[str], drawn: Sequence[str]) -> int:
    """Secrets that some trial begins with."""
    begun = [text.lstrip() for text in texts]
    return sum(any(text.startswith(one) for text in begun) for one in drawn)


def _similarity(
    valid: Sequence[str],
    canary_set: CanarySet,
    *,
    size: int,
    settings: SamplingSettings,
) -> NgramSimilarity:
    """Jaccard similarity to planted canaries and to controls, and their difference."""
    planted = jaccard(valid, canary_set.planted, size=size)
    held_out = jaccard(valid, canary_set.held_out, size=size)
    per_planted, per_control = planted.mean(axis=0), held_out.mean(axis=0)
    low, high = welch_interval(per_planted, per_control, confidence=settings.confidence)
    return NgramSimilarity(
        size=size,
        planted=float(planted.mean()),
        planted_stddev=float(planted.std()),
        held_out=float(held_out.mean()),
        held_out_stddev=float(held_out.std()),
        difference=float(per_planted.mean() - per_control.mean()),
        difference_interval=Interval(
            low=max(-1.0, low), high=min(1.0, high), confidence=settings.confidence
        ),
    )


def jaccard(left: Sequence[str], right: Sequence[str], *, size: int) -> Floats:
    """Jaccard similarity of the n-gram sets of every pair; 0 where both are empty.

    >>> jaccard(["4173"], ["4179"], size=2).tolist()
    [[0.5]]

    References:
        RLDP (2025), equations 28 to 33.
    """
    grams = [[_ngrams(text, size) for text in group] for group in (left, right)]
    vocabulary = {
        gram: i for i, gram in enumerate(sorted(set().union(*grams[0], *grams[1])))
    }
    one, two = (_indicator(sets, vocabulary) for sets in grams)
    both = np.asarray((one @ two.T).todense(), np.float64)
    sizes = [np.array([len(s) for s in sets], np.float64) for sets in grams]
    union = sizes[0][:, None] + sizes[1][None, :] - both
    out: Floats = np.divide(both, union, out=np.zeros_like(both), where=union > 0)
    return out


def _ngrams(text: str, size: int) -> set[str]:
    """All substrings of one length."""
    return {text[i : i + size] for i in range(len(text) - size + 1)}


def _indicator(
    sets: Sequence[set[str]], vocabulary: dict[str, int]
) -> sparse.csr_matrix:
    """One row for each set, one column for each n-gram."""
    columns = [vocabulary[gram] for grams in sets for gram in sorted(grams)]
    limits = np.cumsum([0, *(len(grams) for grams in sets)])
    shape = (len(sets), max(len(vocabulary), 1))
    return sparse.csr_matrix((np.ones(len(columns)), columns, limits), shape=shape)


def secret_chances(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    canary_set: CanarySet,
    *,
    bos: int | None,
    decoding: Decoding | None = None,
    device: str | torch.device | None = None,
) -> tuple[Floats, Floats]:
    """Log chance that one trial draws each planted, and each held-out, secret."""
    context, _ = _prompt(tokenizer, canary_set, bos=bos)
    endings = _endings(tokenizer, canary_set, bos=bos)
    if not endings:
        return np.empty(0), np.empty(0)
    found = ending_log_probs(
        model,
        endings,
        [len(context)] * len(endings),
        decoding=decoding or Decoding(),
        device=device,
    )
    return found[: len(canary_set.planted)], found[len(canary_set.planted) :]


def _endings(
    tokenizer: PreTrainedTokenizerFast, canary_set: CanarySet, *, bos: int | None
) -> list[list[int]]:
    """Return tokens up to the last one of each secret, planted ones first."""
    opening = [] if bos is None else [bos]
    drawn = [*canary_set.planted, *canary_set.held_out]
    if not drawn:
        return []
    encoded = encode_secrets(
        canary_set.spec,
        plain_tokenizer(tokenizer),
        drawn,
        prefix=canary_set.spec.prefix,
    )
    return [
        [*opening, *encoded.tokens[i, : int(end)].tolist()]
        for i, end in enumerate(encoded.last)
    ]


def record_chances(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    ending_tokens: int = 50,
    decoding: Decoding | None = None,
    batch_size: int = 32,
    device: str | torch.device | None = None,
    on_progress: OnProgress = unwatched,
) -> Floats:
    """Log chance that one trial continues each record's first half as it goes on.

    The ending is at most `ending_tokens` long and starts in the middle, or 50 tokens
    from the start of longer records. Records of fewer than four tokens are left out.
    Of a conversation the last turn that is learnt goes on like this, behind the others.
    """
    cut = [
        (list(sequence[: start + min(ending_tokens, last - start)]), start)
        for sequence in sequences
        for first, last in [_last_turn(sequence)]
        if last - first >= 4
        for start in [first + min((last - first) // 2, 50)]
    ]
    if not cut:
        return np.empty(0)
    return ending_log_probs(
        model,
        [sequence for sequence, _ in cut],
        [start for _, start in cut],
        decoding=decoding or Decoding(),
        batch_size=batch_size,
        device=device,
        on_progress=on_progress,
    )


def _last_turn(sequence: Sequence[int]) -> tuple[int, int]:
    """Where the last run of tokens with a loss is; of plain text, all of it."""
    if not isinstance(sequence, ScoredTokens):
        return 0, len(sequence)
    last = len(sequence)
    while last and not sequence.scored[last - 1]:
        last -= 1
    first = last
    while first and sequence.scored[first - 1]:
        first -= 1
    return first, last


def discoverable(
    member_chances: Floats, control_chances: Floats
) -> tuple[DiscoverableShare, ...]:
    """Shares of (n, p)-discoverable texts among members and among controls.

    A text that one trial draws with chance `z` is (n, p)-discoverable if
    `1 - (1 - z)^n >= p`: n trials draw it at least once with chance p. Intervals are
    Clopper and Pearson's at 95 %, which take texts for independent.

    Args:
        member_chances: log chances of texts that were trained on.
        control_chances: of texts of the same law that were not.

    References:
        Hayes et al. (2025), "Measuring memorization in language models via
        probabilistic extraction", definition 1.
    """
    return tuple(
        DiscoverableShare(
            trials=n,
            chance=p,
            members=_share(member_chances, n=n, p=p),
            members_interval=_interval(member_chances, n=n, p=p),
            controls=_share(control_chances, n=n, p=p),
            controls_interval=_interval(control_chances, n=n, p=p),
        )
        for n in TRIALS
        for p in CHANCES
    )


def _is_discoverable(log_chances: Floats, *, n: int, p: float) -> NDArray[np.bool_]:
    """Compare on a log scale: z as small as 1e-300 must not vanish."""
    with np.errstate(divide="ignore"):
        misses = n * np.log1p(-np.exp(np.minimum(log_chances, 0.0)))
    out: NDArray[np.bool_] = misses <= math.log1p(-p)
    return out


def _share(log_chances: Floats, *, n: int, p: float) -> float | None:
    """Share of discoverable texts; None of no text."""
    if not len(log_chances):
        return None
    return float(_is_discoverable(log_chances, n=n, p=p).mean())


def _interval(log_chances: Floats, *, n: int, p: float) -> Interval | None:
    """Clopper-Pearson's interval of the share."""
    if not len(log_chances):
        return None
    count = int(_is_discoverable(log_chances, n=n, p=p).sum())
    low, high = clopper_pearson(count, len(log_chances), confidence=0.95)
    return Interval(low=low, high=high, confidence=0.95)
