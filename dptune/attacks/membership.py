"""Was this record trained on? Attacks on token losses, and by shadow models.

**From token losses.** Higher scores mean member.

Symbols: `l_t` is the log probability of token `t` under the attacked model, `b_t` under
the model before fine-tuning, `g_t = l_t - b_t` what fine-tuning gave it.

| name | score |
|---|---|
| `loss` | mean of `l_t` (Yeom et al. 2018) |
| `ending` | mean of `l_t` over the last half (RLDP, equation 37) |
| `zlib` | sum of `l_t` over the bytes of the compressed text (Carlini et al. 2021) |
| `min_k` | mean of the lowest fifth of `l_t` (Shi et al. 2024) |
| `min_k_plus_plus` | the same of standardized `l_t` (Zhang et al. 2024) |
| `calibrated_loss` | mean of `g_t` (Watson et al. 2022) |
| `ez_mia` | gains against losses where a model errs (arXiv 2601.12104) |
| `wbc` | share of windows that gained (arXiv 2601.02751) |

**By shadow models**: the base, trained on halves of the attacked records.

Shadows come in pairs that share all attacked records between them, members and
non-members alike, by a draw that knows nothing of who is a member: half of the shadows
saw a record and half did not (the online attack of Carlini et al.).

Symbols: `x` is the statistic of a record under the attacked model (for text the mean
log probability of its tokens, for a class the log odds of its label), `i_p` and `o_p`
under the shadow of pair `p` that saw it and the one that did not, `i` and `o` their
means over pairs, `s_i` and `s_o` standard deviations, one for all records.

| name | score |
|---|---|
| `lira` | `log N(x; i, s_i) - log N(x; o, s_o)` |
| `rmia` | `x - log mean exp` over all shadows |
| `combined` | log odds of a logistic regression over all scores, learnt on shadows |

The regression's examples are the shadows themselves, each attacked as the model is, by
its base and by the pairs that it is not of: who was trained on is known there. It never
sees who is a member of the model, so that its scores are as good as any other's. Scores
are standardized within each model, so that a model that was trained longer, or with
noise, is measured in its own units.

References:
    Carlini et al. (2022), "Membership inference attacks from first principles",
    algorithm 1, with the global variance of section VI.C, which few shadows ask for.
    Zarifzadeh, Liu, Shokri (2024), "Low-cost high-power membership inference attacks",
    whose rank among population records is monotone in the ratio that is taken here.
    Shokri et al. (2017), "Membership inference attacks against machine learning
    models", section V.E: an attack that is learnt on shadow models.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import nn

from dptune.attacks.inference import Tell, unwatched
from dptune.attacks.roc import RocSettings, blind_signal, membership_signal
from dptune.attacks.signals import TokenSignals, token_signals
from dptune.conversation import scored
from dptune.errors import DataError
from dptune.results import STRONGEST_ATTACK, MembershipReport, ShadowReport

Floats = NDArray[np.float64]
Choice = NDArray[np.bool_]

FEWEST_SHADOWS = 4
"""Two pairs: one is attacked while the other stands for what is known."""


_LEAST_VARIANCE = 1e-12
_LARGEST = 1e4
"""Nats per token that no finite probability has: where a model rules a token out."""


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """What one model shows of every record. Private.

    Args:
        statistic: what shadows are compared by, `(records,)`.
        scores: of each attack that needs no shadow; higher means member.
    """

    statistic: Floats = field(repr=False)
    scores: Mapping[str, Floats] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Course:
    """How far the training of one shadow went.

    Args:
        losses: mean over the last pass, after each step that has a whole one behind it.
        finished: whether the last step was taken; else the last of `losses` ended it.
    """

    losses: tuple[float, ...] = field(repr=False)
    finished: bool = True

    def ends_alike(self: Self, until: float) -> bool:
        """Whether a training until this loss, seeded alike, has the same last step.

        >>> Course(losses=(3.0, 2.0, 1.0)).ends_alike(0.5)
        True
        >>> Course(losses=(3.0, 2.0, 1.0)).ends_alike(2.5)
        False
        >>> Course(losses=(3.0, 2.0), finished=False).ends_alike(0.5)
        False
        """
        *before, last = self.losses or (math.inf,)
        ended = self.finished or last <= until
        return ended and all(loss > until for loss in before)


@dataclass(kw_only=True)
class Opponent:
    """What attacks compare a model with, which does not depend on that model. Private.

    Two models that were fine-tuned from one base, attacked on the same records by the
    same settings, have the same base losses, and the same shadows wherever both let
    them train to the same step. With one opponent for both, these are found once.

    Args:
        base: log probabilities of the base, once they were found.
        shadows: of each number, what it showed and where its training ended.
    """

    base: Any = field(default=None, repr=False)
    shadows: dict[int, tuple[Course, Attacked]] = field(
        default_factory=dict, repr=False
    )


def draw_halves(num_records: int, num_shadows: int, *, seed: int) -> Choice:
    """Draw which shadow sees which record, `(shadows, records)`.

    Shadow `2 p + 1` sees what shadow `2 p` does not.

    Raises:
        DataError: shadows are odd in number, or fewer than `FEWEST_SHADOWS`.
    """
    if num_shadows < FEWEST_SHADOWS or num_shadows % 2:
        raise DataError(
            f"shadow models must be an even number from {FEWEST_SHADOWS} on, got "
            f"{num_shadows}. Set attack.shadows.num_models."
        )
    generator = np.random.default_rng(seed)
    chosen = np.zeros((num_shadows, num_records), dtype=bool)
    for first in range(0, num_shadows, 2):
        chosen[first, generator.permutation(num_records)[: num_records // 2]] = True
        chosen[first + 1] = ~chosen[first]
    return chosen


def attack_with_shadows(
    model: Attacked,
    *,
    train: Callable[[int, Sequence[int]], tuple[nn.Module, Course]],
    attack: Callable[[nn.Module, str], Attacked],
    until: float,
    opponent: Opponent,
    num_members: int,
    num_records: int,
    num_shadows: int,
    seed: int,
) -> tuple[dict[str, Floats], ShadowReport]:
    """Train shadows, one at a time, attack each, and drop it.

    Args:
        model: what the attacked model shows.
        train: trains a copy of the base, given the shadow's number and its records.
        attack: looks at one model, which it is told a name of.
        until: mean loss over a pass at which `train` ends before its last step.
        opponent: whose shadows serve again, and who gets those that were trained.
        num_members: records that the attacked model was trained on, the first ones.
        num_records: attacked.
        num_shadows: how many, see `draw_halves`.
        seed: of the halves.

    Returns:
        Scores of all attacks, `shadow_scores` among them, and what the shadows were.
    """
    seen = draw_halves(num_records, num_shadows, seed=seed)

    def shown(number: int) -> Attacked:
        course, attacked = opponent.shadows.get(number, (None, None))
        if course is None or attacked is None or not course.ends_alike(until):
            shadow, course = train(number, np.flatnonzero(seen[number]).tolist())
            attacked = attack(shadow, f"shadow {number + 1}")
            opponent.shadows[number] = course, attacked
        return attacked

    shadows = [shown(number) for number in range(num_shadows)]
    members, others = np.split(_bounded(model.statistic), [num_members])
    spread = np.hypot(_standard_error(members), _standard_error(others))
    signs = np.where(seen, 1, -1)
    known = np.array([_bounded(shadow.statistic) for shadow in shadows])
    report = ShadowReport(
        num_models=num_shadows,
        num_records=int(seen[0].sum()),
        effect=float(2 * (signs * known).mean()),
        model_effect=float(members.mean() - others.mean() - 2 * spread),
    )
    return {**model.scores, **shadow_scores(model, shadows, seen)}, report


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0


def shadow_scores(
    model: Attacked, shadows: Sequence[Attacked], seen: Choice
) -> dict[str, Floats]:
    """Score every record by the attacks of the table; higher means member.

    Args:
        model: the attacked one.
        shadows: in pairs, see `draw_halves`.
        seen: which shadow saw which record, `(shadows, records)`.
    """
    first, second = (
        _bounded(np.array([shadow.statistic for shadow in shadows[k::2]]))
        for k in (0, 1)
    )
    pairs = _Pairs(
        inside=np.where(seen[::2], first, second),
        outside=np.where(seen[::2], second, first),
    )
    known = pairs.beside(_bounded(model.statistic))
    examples = [
        _features(shadow, pairs.without(number // 2).beside(_bounded(shadow.statistic)))
        for number, shadow in enumerate(shadows)
    ]
    regression = LogisticRegression(max_iter=1000)
    regression.fit(np.concatenate(examples), seen.ravel())
    return {
        "lira": known["lira"],
        "rmia": known["rmia"],
        STRONGEST_ATTACK: regression.decision_function(_features(model, known)),
    }


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """The statistic under the shadow of each pair that saw a record, and the other."""

    inside: Floats  # (pairs, records)
    outside: Floats
    variances: tuple[float, float] | None = None

    def without(self: Self, pair: int) -> Self:
        """Leave one pair out; variances are still those of all."""
        return replace(
            self,
            inside=np.delete(self.inside, pair, axis=0),
            outside=np.delete(self.outside, pair, axis=0),
            variances=self._variances(),
        )

    def _variances(self: Self) -> tuple[float, float]:
        """Global variances of both groups."""
        if self.variances is not None:
            return self.variances
        inside, outside = (
            max(float(values.var(axis=0, ddof=1).mean()), _LEAST_VARIANCE)
            for values in (self.inside, self.outside)
        )
        return inside, outside

    def beside(self: Self, own: Floats) -> dict[str, Floats]:
        """Compare a model that is of no pair with all of them."""
        (inside, outside), variances = (self.inside, self.outside), self._variances()
        means = inside.mean(axis=0), outside.mean(axis=0)
        logs = [
            -((own - mean) ** 2) / (2 * variance) - np.log(variance) / 2
            for mean, variance in zip(means, variances, strict=True)
        ]
        every = np.concatenate([inside, outside])
        return {
            "lira": logs[0] - logs[1],
            "rmia": own - np.logaddexp.reduce(every, axis=0) + np.log(len(every)),
            "above_outside": own - means[1],
            "above_middle": own - (means[0] + means[1]) / 2,
        }


def _bounded(values: Floats) -> Floats:
    """Keep infinite scores out of means."""
    return np.clip(values, -_LARGEST, _LARGEST)


def _features(attacked: Attacked, known: Mapping[str, Floats]) -> Floats:
    """All scores of a model, standardized over records, `(records, scores)`."""
    columns = _bounded(np.stack([*attacked.scores.values(), *known.values()], axis=1))
    if np.isnan(columns).any():
        raise DataError(
            "scores of a model must be numbers, got NaN. Its losses are NaN."
        )
    spread = columns.std(axis=0)
    standard: Floats = (columns - columns.mean(axis=0)) / np.where(spread, spread, 1.0)
    return standard


MIN_K_SHARE = 0.2
"""Share of the least likely tokens that Min-K% looks at."""

ENDING_SHARE = 0.5
"""Share of a record's tokens that count as its ending."""

ERROR_SMOOTHING = 1.0
"""Nats added to both sides of the ratio of `ez_mia`."""

WINDOW_SIZES = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)
"""Tokens of a window: geometric, as in arXiv 2601.02751."""


def membership_scores(
    signals: Sequence[TokenSignals],
    base_signals: Sequence[TokenSignals],
    texts: Sequence[str],
) -> dict[str, Floats]:
    """Score every record by every attack; higher means member.

    Args:
        signals: under the attacked model, with moments.
        base_signals: of the same records under the model before fine-tuning.
        texts: of the same records.

    Returns:
        Scores by the name of the attack.
    """
    alone: Mapping[str, Callable[[TokenSignals], float]] = {
        "loss": lambda s: float(s.log_probs.mean()),
        "ending": ending,
        "min_k": lambda s: _lowest(s.log_probs),
        "min_k_plus_plus": lambda s: _lowest(_standardized(s)),
    }
    beside: Mapping[str, Callable[[TokenSignals, TokenSignals], float]] = {
        "calibrated_loss": lambda s, b: float((s.log_probs - b.log_probs).mean()),
        "ez_mia": error_zone,
        "wbc": window_votes,
    }
    scores = {name: np.array([f(s) for s in signals]) for name, f in alone.items()}
    sizes = np.array([len(zlib.compress(text.encode())) for text in texts])
    scores["zlib"] = -np.array([s.nll for s in signals]) / sizes
    for name, f in beside.items():
        pairs = zip(signals, base_signals, strict=True)
        scores[name] = np.array([f(s, b) for s, b in pairs])
    return scores


def ending(signals: TokenSignals) -> float:
    """Mean log probability of a record's last half, given all that stands before it.

    References:
        RLDP (2025), equation 37: the prompt is read, the true ending is scored.
    """
    count = max(1, int(np.ceil(ENDING_SHARE * len(signals.log_probs))))
    return float(signals.log_probs[-count:].mean())


def error_zone(signals: TokenSignals, base_signals: TokenSignals) -> float:
    """Log ratio of what the tokens of the error zone gained to what they lost.

    `log((P + c) / (N + c))`, where `P` is the sum of positive `g_t` and `N` that of
    negative ones, both over tokens that the model or its base did not put first.

    The paper takes the model's own errors and the plain ratio `P / N`. Then a record
    that is known by heart has no error, `P = 0`, and scores *lowest*; here it keeps
    the errors that the base makes, and `c` bounds the ratio of short records.

    References:
        Ilic, Stanojevic, Cvejoski (2026), "Powerful training-free membership inference
        against autoregressive language models", arXiv 2601.12104.
    """
    zone = ~(signals.hits & base_signals.hits)
    gains = (signals.log_probs - base_signals.log_probs)[zone]
    up = gains[gains > 0].sum() + ERROR_SMOOTHING
    down = -gains[gains < 0].sum() + ERROR_SMOOTHING
    return float(np.log(up / down))


def window_votes(signals: TokenSignals, base_signals: TokenSignals) -> float:
    """Share of sliding windows whose loss fell, averaged over window sizes.

    A window votes by the sign of its summed gain alone, so that no outlier decides.
    Sizes longer than the record are left out; a record of one token is one window.

    References:
        Chen et al. (2026), "Window-based membership inference attacks against
        fine-tuned large language models", arXiv 2601.02751.
    """
    gains = signals.log_probs - base_signals.log_probs
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    sizes = [size for size in WINDOW_SIZES if size <= len(gains)] or [1]
    votes = [float((sums[size:] > sums[:-size]).mean()) for size in sizes]
    return float(np.mean(votes))


def _lowest(values: Floats) -> float:
    """Mean of the lowest `MIN_K_SHARE` of the values, at least one."""
    count = max(1, int(MIN_K_SHARE * len(values)))
    return float(np.partition(values, count - 1)[:count].mean())


def _standardized(signals: TokenSignals) -> Floats:
    """Log probabilities in standard deviations of the model's own distribution."""
    spread = np.maximum(signals.stddevs, 1e-6)
    scores: Floats = (signals.log_probs - signals.means) / spread
    return scores


class Train(Protocol):
    """Trains a copy of the base; of the workflow, which knows an engine."""

    def __call__(
        self: Self, number: int, sequences: Sequence[Sequence[int]], *, until: float
    ) -> tuple[nn.Module, Course]:
        """Train shadow `number` until its records have this mean loss, if ever."""
        ...


def membership_report(
    member_sequences: Sequence[Sequence[int]],
    non_member_sequences: Sequence[Sequence[int]],
    *,
    member_texts: Sequence[str],
    non_member_texts: Sequence[str],
    model: nn.Module,
    base_model: nn.Module,
    model_digest: str,
    base_model_digest: str,
    batch_size: int = 32,
    device: str | None = None,
    low_fpr: float = 0.01,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
    train_shadow: Train | None = None,
    num_shadows: int = 0,
    opponent: Opponent | None = None,
    tell: Tell = unwatched,
) -> MembershipReport:
    """Attack one model by its token losses, and by those of shadow models beside it.

    Leave canary records out: they are members that no non-member is alike. Records
    without a token to predict, as of one token, are left out of both groups.

    Args:
        member_sequences: token ids of records that were trained on, as in training.
        non_member_sequences: of records of the same law that were not.
        member_texts: their texts, for compression and for the blind baseline.
        non_member_texts: likewise.
        model: the fine-tuned model.
        base_model: the model before fine-tuning, which calibrates the losses.
        model_digest: digest of the model's weights.
        base_model_digest: digest of the base model's weights.
        batch_size: records forwarded at once, at most.
        device: where to run; None is where each model is.
        low_fpr: false-positive rate at which true positives are reported.
        confidence: of the intervals; the blind baseline's is 0.99.
        num_resamples: bootstrap draws.
        seed: of bootstrap and cross-validation.
        train_shadow: trains shadows, one at a time; each is dropped once it was
            attacked. With None, the attacks of `shadow_scores` are left out.
        num_shadows: how many, as `draw_halves` asks for.
        opponent: of another model of this base, these records and these settings.
        tell: told how many records each model has forwarded.

    Returns:
        One signal for each of `membership_scores` and of `shadow_scores`, with
        `max(AUC, 1 - AUC)` as `membership_signal` explains, and the blind baseline.

    Raises:
        DataError: a group is too small, texts and sequences differ in number, or a loss
            is NaN.

    Privacy:
        A function of private data outside any epsilon, shadows included.
    """
    members = _predictable(member_sequences, member_texts)
    others = _predictable(non_member_sequences, non_member_texts)
    num_members = len(members)
    sequences = [sequence for sequence, _ in (*members, *others)]
    texts = [text for _, text in (*members, *others)]
    settings = RocSettings(
        low_fpr=low_fpr, confidence=confidence, num_resamples=num_resamples, seed=seed
    )

    def seen_by(one: nn.Module, name: str, *, moments: bool) -> list[TokenSignals]:
        return token_signals(
            one,
            sequences,
            batch_size=batch_size,
            device=device,
            moments=moments,
            on_progress=partial(tell, f"losses of attacked records, {name}"),
        )

    opponent = opponent or Opponent()
    if opponent.base is None:
        opponent.base = seen_by(base_model, "base", moments=False)
    base = opponent.base

    def attacked(one: nn.Module, name: str) -> Attacked:
        signals = seen_by(one, name, moments=True)
        scores = membership_scores(signals, base, texts)
        return Attacked(statistic=scores["loss"], scores=scores)

    found = attacked(model, "model")
    scores, shadows = dict(found.scores), None
    if train_shadow is not None:
        until = -float(found.statistic[:num_members].mean())
        scores, shadows = attack_with_shadows(
            found,
            train=lambda k, rows: train_shadow(
                k, [sequences[i] for i in rows], until=until
            ),
            attack=attacked,
            until=until,
            opponent=opponent,
            num_members=num_members,
            num_records=len(sequences),
            num_shadows=num_shadows,
            seed=seed,
        )
    together = replace(settings, num_attacks=len(scores))
    return MembershipReport(
        model_digest=model_digest,
        base_model_digest=base_model_digest,
        num_members=num_members,
        num_non_members=len(others),
        signals=tuple(
            membership_signal(
                name, values[:num_members], values[num_members:], settings=together
            )
            for name, values in scores.items()
        ),
        blind=blind_signal(texts[:num_members], texts[num_members:], settings=settings),
        shadows=shadows,
    )


def _predictable(
    sequences: Sequence[Sequence[int]], texts: Sequence[str]
) -> list[tuple[Sequence[int], str]]:
    """Records with something to predict."""
    if len(sequences) != len(texts):
        raise DataError(
            f"every record needs its text and its tokens, got {len(texts)} texts for "
            f"{len(sequences)} sequences."
        )
    pairs = zip(sequences, texts, strict=True)
    return [(sequence, text) for sequence, text in pairs if any(scored(sequence))]
