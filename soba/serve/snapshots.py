"""Which snapshots are kept to go back to: few, and the further back, the further apart."""

from __future__ import annotations

from collections.abc import Sequence

KEPT = 8


def surplus(versions: Sequence[int], kept: int = KEPT) -> list[int]:
    """Of versions, newest first, those that need not be kept.

    The newest two stay, since the second serves where the first is damaged, and so does the
    oldest. Of the others the one goes whose neighbours are closest, measured by their age, until
    there are no more than `kept`: a state of an hour ago and one of a month ago are both at hand.

    Examples
    --------
    >>> versions = []
    >>> for version in range(1000):
    ...     versions.insert(0, version)
    ...     versions = [v for v in versions if v not in surplus(versions)]
    >>> [versions[0] - version for version in versions]
    [0, 1, 3, 7, 31, 71, 165, 999]
    """
    left, dropped = list(versions), []
    while len(left) > kept:
        newest = left[0]
        ratios = [
            ((newest - left[place + 1]) / (newest - left[place - 1]), place)
            for place in range(2, len(left) - 1)
        ]
        dropped.append(left.pop(min(ratios)[1]))
    return dropped


def reachable(version: int | None, snapshots: Sequence[int]) -> int | None:
    """The last version up to one that can be gone back to; `snapshots` are newest first.

    The log is kept from the second of them on. Before that there are only the snapshots.

    Examples
    --------
    >>> reachable(9, [10, 7, 3]), reachable(6, [10, 7, 3]), reachable(2, [10, 7, 3])
    (9, 3, None)
    """
    if version is None or not snapshots:
        return None
    if version >= snapshots[min(1, len(snapshots) - 1)]:
        return version
    return next((snapshot for snapshot in snapshots if snapshot <= version), None)
