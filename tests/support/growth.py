"""Does work grow in proportion to its input, on a machine that does much besides?"""

import gc
import time
from collections.abc import Callable

FLOOR = 0.005
ATTEMPTS = 5


def _seconds(work: Callable[[int], object], size: int) -> float:
    gc.disable()
    try:
        start = time.process_time()
        work(size)
        return time.process_time() - start
    finally:
        gc.enable()


def grows_in_proportion(
    work: Callable[[int], object], short: int, *, times: int = 10, slack: float = 4.0
) -> bool:
    """Tell whether `times` the size takes at most `slack` times `times` the time.

    One attempt of five that says so is enough: a pause of the machine makes one
    longer, and nothing makes quadratic work short.
    """
    work(short)
    attempts = (
        (_seconds(work, short), _seconds(work, short * times)) for _ in range(ATTEMPTS)
    )
    return any(long < slack * times * max(base, FLOOR) for base, long in attempts)
