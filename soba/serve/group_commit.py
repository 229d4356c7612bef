"""Group commit: whoever waits while one commits goes into the next transaction, all at once.

A disk takes milliseconds to promise that something is written, however much it is. So of many
threads one leads: it takes along what the others have brought, commits once, and all are answered.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Request(Protocol):
    """What a thread wants written. The leader leaves what came of it in it."""

    @property
    def size(self) -> int: ...  # in whatever unit the limit is


R = TypeVar("R", bound=Request)
T = TypeVar("T")


class GroupCommit(Generic[R]):
    """One leader at a time, who commits for all that wait.

    Parameters
    ----------
    commit
        Writes what a group of requests wants, in their order. What it raises, each of them raises.
    after
        Called by the leader when all of the group are answered, before the next group's turn.
    limit
        The size of a group, unless a single request is larger.
    """

    def __init__(
        self, commit: Callable[[list[R]], None], after: Callable[[], None], limit: int
    ) -> None:
        self._commit, self._after, self._limit = commit, after, limit
        self._turn = threading.Condition()
        self._waiting: deque[_Waiting[R]] = deque()
        self._led = False

    def submit(self, request: R, *, gather: float = 0.0) -> None:
        """Return when the request is written, or raise why it is not.

        `gather` are seconds that whoever leads waits for others who are known to be on their way:
        a transaction costs the same for many as for one.
        """
        waiting = _Waiting(request)
        with self._turn:
            self._waiting.append(waiting)
        while group := self._group_to_lead(waiting, gather):
            self._write(group)
        if waiting.error is not None:
            raise waiting.error

    def alone(self, work: Callable[[], T]) -> T:
        """Do something when no group is being written; the next one waits until it is done."""
        with self._turn:
            self._turn.wait_for(lambda: not self._led)
            self._led = True
        try:
            return work()
        finally:
            self._release()

    def _group_to_lead(self, waiting: _Waiting[R], gather: float) -> list[_Waiting[R]]:
        """The next group, for who waits and finds nobody leading; none once its request is done.

        The leader's own request comes in a later group, if this one is full.
        """
        with self._turn:
            self._turn.wait_for(lambda: waiting.done or not self._led)
            if waiting.done:
                return []
            self._led = True
        try:
            time.sleep(gather)
        except BaseException:  # interrupted: somebody else leads
            self._release()
            raise
        with self._turn:
            return self._lead()

    def _lead(self) -> list[_Waiting[R]]:
        group = [self._waiting.popleft()]
        size = group[0].request.size
        while self._waiting and size + self._waiting[0].request.size <= self._limit:
            size += self._waiting[0].request.size
            group.append(self._waiting.popleft())
        return group

    def _write(self, group: list[_Waiting[R]]) -> None:
        error: Exception | None = InterruptedError("the thread that wrote for all was interrupted")
        try:
            self._commit([waiting.request for waiting in group])
            error = None
        except Exception as problem:
            error = problem
        finally:
            with self._turn:
                for waiting in group:
                    waiting.done, waiting.error = True, error
                self._turn.notify_all()
            try:
                if error is None:
                    self._after()
            finally:
                self._release()

    def _release(self) -> None:
        with self._turn:
            self._led = False
            self._turn.notify_all()


class _Waiting(Generic[R]):
    def __init__(self, request: R) -> None:
        self.request, self.done = request, False
        self.error: Exception | None = None
