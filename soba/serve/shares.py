"""Shares of right answers with their intervals, and the test of two classifiers on one sample."""

from __future__ import annotations

import math


def wilson(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95% interval of a share, by Wilson's score; all there is where nothing was counted.

    Examples
    --------
    >>> [round(end, 3) for end in wilson(8, 10)]
    [0.49, 0.943]
    >>> wilson(0, 0)
    (0.0, 1.0)
    """
    if count == 0:
        return 0.0, 1.0
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def sign_test(worse: int, better: int) -> float:
    """How likely it is to be worse so often or more, of the times that two differ, by chance.

    Examples
    --------
    >>> sign_test(5, 0), sign_test(0, 5), sign_test(0, 0)
    (0.03125, 1.0, 1.0)
    """
    count = worse + better
    ways = sum(math.comb(count, k) for k in range(worse, count + 1))
    return float(ways / 2**count)
