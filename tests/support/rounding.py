"""Two histories of few levels that enclose one of many."""

import math

import dp_accounting
from dp_accounting import DpEvent

from dptune.accounting.composition import Counts, _events, _rounded, _sort


def rounding_bounds(event_counts: Counts, *, most: int) -> tuple[DpEvent, DpEvent]:
    """Enclose a history between two of few levels, one cheaper and one dearer.

    Returns:
        Events whose epsilons are at most, and at least, that of the history.
    """
    sampled, others, inverse_variance = _sort(event_counts)
    if inverse_variance > 0:
        others.append((dp_accounting.GaussianDpEvent(inverse_variance**-0.5), 1))
    cheaper = _rounded(sampled, most, math.ceil, math.floor)
    dearer = _rounded(sampled, most, math.floor, math.ceil)
    low, high = (
        dp_accounting.ComposedDpEvent(
            events=[
                dp_accounting.SelfComposedDpEvent(event=event, count=count)
                for event, count in (*_events(grouped), *others)
            ]
        )
        for grouped in (cheaper, dearer)
    )
    return low, high
