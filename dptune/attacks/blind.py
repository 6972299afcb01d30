"""A membership attack that sees no model: it must fail, or the split is shifted."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
)
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline

from dptune.attacks.roc import RocSettings, membership_signal
from dptune.errors import DataError
from dptune.results import BlindSignal

_CONFIDENCE = 0.99
_FEWEST = 5
_WORD = r"\w+|[^\w\s]"

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def blind_signal(
    member_texts: Sequence[str],
    non_member_texts: Sequence[str],
    *,
    settings: RocSettings | None = None,
) -> BlindSignal:
    """Tell members from non-members by their text alone, in two ways.

    **A classifier** of words, word pairs and length, for what differs a little
    everywhere. One random half of the texts fits it, the other half is scored: given
    the fit, held-out scores are independent, so that interval and p-value hold. Pooled
    scores of a cross-validation are not: over equal halves of one law their area spread
    about twice as wide as its interval said. The area is not folded: a classifier below
    one half has learnt nothing.

    **A search** over every word and every pair of words or characters for one that more
    members hold, or more non-members, for what differs in a few texts only: an odd word
    in a tenth of the members moves no area by more than .05.

    **Formal guarantee.** Where membership is a random choice among the texts, `p_value`
    is at most `a` with chance `a` at most (the classifier's part by the normal limit of
    the rank sum).

    A small p-value says that members and non-members differ without any model, so that
    no membership figure on this split means anything (Meeus et al. 2024, "SoK:
    membership inference attacks on LLMs are rushing nowhere").

    Args:
        member_texts: texts that were trained on.
        non_member_texts: texts that were not.
        settings: resampling; its confidence is replaced by 0.99.

    Raises:
        DataError: a group has too few texts to fit on one half of them.
    """
    settings = replace(settings or RocSettings(), confidence=_CONFIDENCE)
    if min(len(member_texts), len(non_member_texts)) < _FEWEST:
        raise DataError(
            f"the blind baseline needs at least {_FEWEST} texts of each group, got "
            f"{len(member_texts)} and {len(non_member_texts)}."
        )
    texts = [*member_texts, *non_member_texts]
    labels = np.repeat((1, 0), (len(member_texts), len(non_member_texts)))
    scores, held = _held_out_scores(texts, labels, seed=settings.seed)
    signal = membership_signal(
        "blind", scores[held == 1], scores[held == 0], settings=settings, fold=False
    )
    learnt = stats.mannwhitneyu(
        scores[held == 1], scores[held == 0], alternative="greater", method="asymptotic"
    )
    found = (float(learnt.pvalue), _odd_word_p_value(texts, labels))
    p_value = min(1.0, len(found) * min(found))
    return BlindSignal(**{**dict(signal), "hits": ()}, p_value=p_value)


def _held_out_scores(
    texts: Sequence[str], labels: Labels, *, seed: int
) -> tuple[Floats, Labels]:
    """Fit on a random half, stratified; return scores and labels of the other half."""
    features = _features(texts)
    fitted, held = train_test_split(
        np.arange(len(texts)), test_size=0.5, stratify=labels, random_state=seed
    )
    classifier = Pipeline(
        [
            ("weights", TfidfTransformer(sublinear_tf=True)),
            ("fit", LogisticRegression(solver="liblinear", random_state=seed)),
        ]
    )
    classifier.fit(features[fitted], labels[fitted])
    scores: Floats = classifier.decision_function(features[held])
    return scores, labels[held]


def _features(texts: Sequence[str]) -> sparse.csr_matrix:
    """Counts of words and word pairs, and one column per octave of length."""
    words = HashingVectorizer(
        n_features=1 << 16,
        ngram_range=(1, 2),
        token_pattern=_WORD,
        lowercase=False,
        alternate_sign=False,
        norm=None,
    ).transform(texts)
    sizes = [(len(text), len(re.findall(_WORD, text))) for text in texts]
    octaves = np.floor(2 * np.log2(np.asarray(sizes) + 1.0)).astype(np.int64)
    columns = [np.eye(128)[np.minimum(column, 127)] for column in octaves.T]
    return sparse.hstack([words, *(sparse.csr_matrix(c) for c in columns)]).tocsr()


def _odd_word_p_value(texts: Sequence[str], labels: Labels) -> float:
    """Bound the chance that a search over all features finds one so uneven by luck.

    Texts that hold a feature are a fixed number; how many of them are members is
    hypergeometric where membership is a random choice, exactly, whatever else the texts
    share. The chances of all features to be as uneven as the most uneven one are added
    up: a rare feature that cannot be so uneven adds nothing (Westfall, Wolfinger 1997,
    "Multiple tests with discrete distributions").
    """
    holds = _presence(texts)
    num, num_members = len(labels), int(labels.sum())
    totals = np.asarray(holds.sum(axis=0)).ravel().astype(np.int64)
    inside = np.asarray(holds[labels == 1].sum(axis=0)).ravel().astype(np.int64)
    laws = {int(t): _uneven(int(t), num, num_members) for t in np.unique(totals)}
    lowest = [max(0, int(t) - (num - num_members)) for t in totals]
    least = min(
        laws[int(t)][1][i - low]
        for t, i, low in zip(totals, inside, lowest, strict=True)
    )
    numbers = zip(*np.unique(totals, return_counts=True), strict=True)
    chances = [
        count * laws[int(t)][0][laws[int(t)][1] <= least * (1 + 1e-9)].sum()
        for t, count in numbers
    ]
    return float(min(1.0, sum(chances)))


def _uneven(total: int, num: int, num_members: int) -> tuple[Floats, Floats]:
    """Chance and two-sided p-value of each number of members among `total` texts."""
    counts = np.arange(max(0, total - num + num_members), min(total, num_members) + 1)
    chances = stats.hypergeom.pmf(counts, num, num_members, total)
    tails = np.minimum(np.cumsum(chances), np.cumsum(chances[::-1])[::-1])
    return chances, np.minimum(1.0, 2.0 * tails)


def _presence(texts: Sequence[str]) -> sparse.csr_matrix:
    """Which text holds which word, pair of words or of characters, `(texts, kinds)`.

    Features that the same texts hold are one: a pair says no more than its odd word.
    """
    common = {"ngram_range": (1, 2), "lowercase": False, "binary": True}
    kinds = ({"token_pattern": _WORD}, {"analyzer": "char"})
    found = [CountVectorizer(**common, **kind).fit_transform(texts) for kind in kinds]
    holds = sparse.hstack(found).tocsc()
    marks = np.random.default_rng(0).random(len(texts))  # tells sets of texts apart
    _, first = np.unique(holds.T @ marks, return_index=True)
    return holds[:, first].tocsr()
