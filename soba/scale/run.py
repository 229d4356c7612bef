"""Who does the work: this process, or others that are given the same functions.

What is done is said elsewhere, once. Here is only where: a function over items, and workers that
are made once and take items for as long as there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Shared = TypeVar("Shared")


class Runner(Protocol):
    """Where work is done; what goes in and comes out can be pickled."""

    @property
    def slots(self) -> int:
        """How many can work at the same time."""

    def map(
        self, function: Callable[[Shared, Item], Result], shared: Shared, items: Iterable[Item]
    ) -> Iterator[Result]:
        """`function(shared, item)` of each item, in the order of the items."""

    def spread(
        self, make_worker: Callable[[], Callable[[Item], Result]], items: Sequence[Item]
    ) -> Iterator[Result]:
        """Each item given to some worker, in whatever order they are done."""


class Here:
    """All work in this process, one item after the other."""

    slots = 1

    def map(self, function: Callable[[Any, Any], Any], shared: Any, items: Any) -> Iterator[Any]:
        """See `Runner`."""
        return (function(shared, item) for item in items)

    def spread(self, make_worker: Callable[[], Any], items: Any) -> Iterator[Any]:
        """See `Runner`."""
        return map(make_worker(), items)
