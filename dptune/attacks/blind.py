"""A membership attack that sees no model: it must fail, or the split is shifted."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline

from dptune.attacks.roc import RocSettings, membership_signal
from dptune.errors import DataError
from dptune.results import MembershipSignal

_CONFIDENCE = 0.99
_WORD = r"\w+|[^\w\s]"


def blind_signal(
    member_texts: Sequence[str],
    non_member_texts: Sequence[str],
    *,
    settings: RocSettings | None = None,
    num_folds: int = 5,
) -> MembershipSignal:
    """Tell members from non-members by their text alone, by cross-validation.

    Words, word pairs and length feed a logistic regression. An area above one half says
    that members and non-members differ without any model, so that no membership figure
    on this split means anything (Meeus et al. 2024, "SoK: membership inference attacks
    on LLMs are rushing nowhere"). The area is not folded: a cross-validated classifier
    below one half has learnt nothing. Its interval has confidence 0.99, because it is a
    check that runs on every model.

    Args:
        member_texts: texts that were trained on.
        non_member_texts: texts that were not.
        settings: resampling; its confidence is replaced.
        num_folds: of the cross-validation.

    Raises:
        DataError: a group has fewer texts than folds.
    """
    settings = replace(settings or RocSettings(), confidence=_CONFIDENCE)
    if min(len(member_texts), len(non_member_texts)) < num_folds:
        raise DataError(
            f"the blind baseline needs at least {num_folds} texts of each group, got "
            f"{len(member_texts)} and {len(non_member_texts)}."
        )
    texts = [*member_texts, *non_member_texts]
    labels = np.repeat((1, 0), (len(member_texts), len(non_member_texts)))
    scores = _cross_validated(texts, labels, num_folds=num_folds, seed=settings.seed)
    return membership_signal(
        "blind", scores[labels == 1], scores[labels == 0], settings=settings, fold=False
    )


def _cross_validated(
    texts: Sequence[str], labels: NDArray[np.int64], *, num_folds: int, seed: int
) -> NDArray[np.float64]:
    """Score of every text from a classifier that did not see it."""
    features = _features(texts)
    scores = np.empty(len(texts))
    folds = StratifiedKFold(num_folds, shuffle=True, random_state=seed)
    for train, test in folds.split(features, labels):
        classifier = Pipeline(
            [
                ("weights", TfidfTransformer(sublinear_tf=True)),
                ("fit", LogisticRegression(solver="liblinear", random_state=seed)),
            ]
        )
        classifier.fit(features[train], labels[train])
        scores[test] = classifier.decision_function(features[test])
    return scores


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
