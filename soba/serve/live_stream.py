"""A stream in the memory of a server: it answers, and remembers a little of what it answered."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from soba._answering import answered
from soba.answers import Answer
from soba.serve.durable import DurableStream
from soba.serve.learning import Learning
from soba.serve.ledger import Feedback, Ledger
from soba.serve.replica import View
from soba.serve.store import StoreError

if TYPE_CHECKING:
    from soba.encode.features import Encoded

_ANSWERS = 10_000  # whose feedback needs no more than an id
_AGREEMENT = 1000  # answers that the share of agreement is of
_HANGING = 5.0  # seconds without an answer, besides those between two questions
_GATHER = 0.002  # seconds that learners wait for one another, where there are several
_GROWTH = 1.02  # of the samples between two points of the curves


class Conflict(ValueError):
    """What was asked for does not go with what is there."""


class Reply(NamedTuple):
    """The answers to one request."""

    view: View  # the stream that answered
    answers: list[Answer]
    samples: dict[int, int]  # place of an image that could be read -> its id in the stream
    learned: int
    stale: bool
    commit_seconds: float
    refresh_seconds: float


class LiveStream:
    """A durable stream, with its last answers and what the database last said of it."""

    def __init__(self, stream: DurableStream, ledger: Ledger, sync_seconds: float) -> None:
        self.stream, self._ledger = stream, ledger
        self._patience = _HANGING + 3 * sync_seconds
        self.name = stream.name
        self.users = 0  # requests that hold it
        self.used = self.synced = time.monotonic()
        self.away = False  # the database did not answer when it was last asked
        self._heard = time.monotonic()  # when it last did
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._agreed: deque[bool] = deque(maxlen=_AGREEMENT)
        self._drawn: tuple[int, int] | None = None  # samples and version of the last point
        self._snapshots: list[int] = []
        self._feedback = Feedback()

    @property
    def stale(self) -> bool:
        """Whether others may have learned what is not known here: the database is away, or hangs
        and has not answered for long."""
        return self.away or time.monotonic() - self._heard > self._patience

    def _hear(self, *, answered: bool) -> None:
        self.away = not answered
        if answered:
            self._heard = time.monotonic()

    # Answers ----------------------------------------------------------------------------------

    def answer(self, part: Encoded, ids: list[str] | None, *, learn: bool, top: int) -> Reply:
        """Answer a request; what it teaches is in the database then. A look waits for nobody."""
        learning = Learning.of_images(part, list(ids) if ids is not None else None)
        if learn:
            self._learn(learning)
            view, logits = learning.view, learning.logits
        else:
            view = self.stream.view()
            logits = np.asarray(view.predictor.logits(part.features))
        names = view.names
        answers = answered(part, logits, view.scaled_text, names, min(top, len(names)))
        samples = dict(zip(part.indices.tolist(), learning.ids.tolist(), strict=True))
        return Reply(
            view,
            answers,
            samples,
            learning.learned,
            self.stale,
            learning.commit_seconds,
            learning.refresh_seconds,
        )

    def _learn(self, learning: Learning) -> None:
        try:
            self.stream._replica.learn(learning, gather=_GATHER if self.users > 1 else 0.0)
        except StoreError:
            self._hear(answered=False)
            raise
        except ValueError as error:
            if error is learning.problem:
                raise Conflict(str(error)) from error
            raise
        self._hear(answered=True)

    def remember(self, ids: list[str], answers: list[Answer]) -> None:
        """Keep what was answered, for feedback and for the share of agreement."""
        with self._lock:
            for id_, answer in zip(ids, answers, strict=True):
                if answer.error:
                    continue
                self._agreed.append(answer.label == answer.zero_shot)
                self._answers[id_] = answer.label, answer.zero_shot
                self._answers.move_to_end(id_)
            while len(self._answers) > _ANSWERS:
                self._answers.popitem(last=False)

    def answered(self, id_: str) -> tuple[str, str] | None:
        """What was answered lately under an id, adapted and by zero-shot."""
        with self._lock:
            return self._answers.get(id_)

    @property
    def agreement(self) -> float | None:
        """The share of the last answers that zero-shot gave, too."""
        with self._lock:
            return sum(self._agreed) / len(self._agreed) if self._agreed else None

    # What the database knows ------------------------------------------------------------------

    def sync(self) -> None:
        """Take in what other replicas wrote; where the database is away, what is known is stale."""
        try:
            self.stream.sync()
            self._hear(answered=True)
        except StoreError:
            self._hear(answered=False)
        self.synced = time.monotonic()

    def feedback(self) -> Feedback:
        """What people said of the answers; what was known last where the database is away."""
        try:
            self._feedback = self._ledger.feedback(self.name)
        except StoreError:
            self._hear(answered=False)
        return self._feedback

    def snapshots(self) -> list[int]:
        """The versions to roll back to, newest first; likewise."""
        try:
            self._snapshots = self._ledger.snapshots(self.name)
        except StoreError:
            self._hear(answered=False)
        return self._snapshots

    def draw(self, *, anew: bool = False) -> None:
        """Add a point to the curves, if enough has happened since the last one."""
        view = self.stream.view()
        n_seen = view.n_seen
        if self._drawn is not None and not anew:
            before, version = self._drawn
            if version == view.version or before <= n_seen < _GROWTH * before + 1:
                return
        try:
            self._ledger.draw(self.name, view.version, self._point(view))
            self._drawn = n_seen, view.version
        except StoreError:
            self._hear(answered=False)

    def _point(self, view: View) -> dict[str, Any]:
        return {
            "at": time.time(),
            "version": view.version,
            "n_seen": view.n_seen,
            "agreement": self.agreement,
            "expected_accuracy": expected(view),
            "guard": _guard_shares(view.settings.get("guard_score")),
            "feedback": _feedback_shares(self.feedback()),
        }


def expected(view: View) -> dict[str, float] | None:
    """What is expected without labels, as JSON has it."""
    if view.expected is None:
        return None
    return {"zero_shot": view.expected.zero_shot, "adapted": view.expected.adapted}


def _guard_shares(score: dict[str, Any] | None) -> dict[str, float] | None:
    if not score or not score["images"]:
        return None
    return {by: score[by] / score["images"] for by in ("adapted", "zero_shot")}


def _feedback_shares(feedback: Feedback) -> dict[str, float] | None:
    images, adapted, zero_shot = feedback
    if not images:
        return None
    return {"adapted": adapted / images, "zero_shot": zero_shot / images, "count": images}
