"""A membership attack that sees no model: it must fail, or the split is shifted."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline

from dptune.attacks.roc import RocSettings, membership_signal
from dptune.errors import DataError
from dptune.results import MembershipSignal

_CONFIDENCE = 0.99
_FEWEST = 5
_WORD = r"\w+|[^\w\s]"


def blind_signal(
    member_texts: Sequence[str],
    non_member_texts: Sequence[str],
    *,
    settings: RocSettings | None = None,
) -> MembershipSignal:
    """Tell members from non-members by their text alone, on texts not fitted to.

    One random half of the texts fits the classifier, the other half is scored: given
    the fit, held-out scores are independent, so that the interval holds. Pooled scores
    of a cross-validation are not: over equal halves of one law their area spread about
    twice as wide as its interval said.

    Words, word pairs and length feed a logistic regression. An area above one half says
    that members and non-members differ without any model, so that no membership figure
    on this split means anything (Meeus et al. 2024, "SoK: membership inference attacks
    on LLMs are rushing nowhere"). The area is not folded: a classifier below one half
    has learnt nothing. Its interval has confidence 0.99, because it is a
    check that runs on every model.

    Args:
        member_texts: texts that were trained on.
        non_member_texts: texts that were not.
        settings: resampling; its confidence is replaced.

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
    return membership_signal(
        "blind", scores[held == 1], scores[held == 0], settings=settings, fold=False
    )


def _held_out_scores(
    texts: Sequence[str], labels: NDArray[np.int64], *, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
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
    scores: NDArray[np.float64] = classifier.decision_function(features[held])
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
