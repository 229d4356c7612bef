"""When statistics refresh: after which sample numbers (counted from 1)."""

from __future__ import annotations

from typing import Literal

from soba.adapt.base import whole

Refresh = Literal["growth", "tenths"] | int


class Schedule:
    """The boundaries b at which, after learning sample b, the statistics refresh.

    - `"tenths"` with `total=n`: b = ceil(j n / 10), j = 1..10, the paper's schedule.
    - an integer m: every m samples.
    - `"growth"`: `first`, by default max(classes, 64), then each time `percent` % more, rounded
      up, at most `max_gap` further on. Its cost is logarithmic in the length of the stream.

    >>> Schedule("tenths", total=25, classes=2).boundaries(25)
    [3, 5, 8, 10, 13, 15, 18, 20, 23, 25]
    >>> Schedule("growth", classes=100).boundaries(150)
    [100, 110, 121, 134, 148]
    """

    def __init__(
        self,
        refresh: Refresh,
        *,
        classes: int,
        total: int | None = None,
        max_gap: int | None = None,
        first: int | None = None,
        percent: int | None = 10,
    ) -> None:
        if refresh == "tenths" and total is None:
            raise ValueError('refresh="tenths" needs total=, the length of the stream')
        if isinstance(refresh, str) and refresh not in ("growth", "tenths"):
            raise ValueError(
                f'refresh must be "growth", "tenths" or a whole number, not {refresh!r}'
            )
        self.refresh = refresh if isinstance(refresh, str) else whole(refresh, "refresh")
        self.total = None if total is None else whole(total, "total")
        self.max_gap = None if max_gap is None else whole(max_gap, "max_gap")
        self._first, self._percent = first or max(classes, 64), percent or 10

    def next_after(self, count: int) -> int | None:
        """The first boundary greater than `count`; None if there is none."""
        if self.refresh == "tenths":
            total = self.total or 1
            if count >= total:
                return None
            # The smallest j with ceil(j n / 10) > count is the smallest with j n / 10 > count.
            tenth = 10 * count // total + 1
            return -(-tenth * total // 10)
        if isinstance(self.refresh, int):
            return (count // self.refresh + 1) * self.refresh
        return self._growth(count)

    def boundaries(self, stop: int) -> list[int]:
        """All boundaries up to `stop`."""
        boundaries, at = [], self.next_after(0)
        while at is not None and at <= stop:
            boundaries.append(at)
            at = self.next_after(at)
        return boundaries

    def last_between(self, count: int, stop: int) -> int:
        """The last boundary greater than `count` and up to `stop`; 0 if there is none."""
        last, at = 0, self.next_after(count)
        while at is not None and at <= stop:
            last, at = at, self.next_after(at)
        return last

    def _growth(self, count: int) -> int:
        at = self._first
        while at <= count:
            # ceil(1.1 b) - b, in integers: 1.1 * 100 is not 110 in floats
            step = -(-at * self._percent // 100)
            if self.max_gap is not None and step >= self.max_gap:
                return at + ((count - at) // self.max_gap + 1) * self.max_gap
            at += step
        return at
