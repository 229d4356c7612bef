"""Refreshes ahead of the schedule: where a class comes far more often than chance would have it.

A schedule by growth serves streams whose order is by chance. In a stream sorted by class, or one
that turns to other things, most samples behind a refresh are of classes that it knew little of.
Queues fill whether or not statistics are made of them, and that tells: a class that has at least
doubled since, in a number that chance would not have brought, makes a refresh worth its time;
unless classes have so few samples that the class is likely to be over by then.
"""

from __future__ import annotations

import math

import numpy as np

from soba.adapt._schedule import Pace, Schedule

LEAST_NEW = 4  # samples of a class since the last refresh
ENDLESS = 0.75  # of a full queue: where a usual class holds that much, it may go on for long
MARGIN = 3.0  # nats beyond what the unlikeliest of so many classes has by chance
# Where classes are many a refresh takes longer, and a share that is guessed from a sample or two
# is often wrong for one of them: a surprise has to be a greater one.
FEW_CLASSES, MARGIN_OF_MANY = 256, 12.0
_WINDOW = 64  # samples that are looked through at a time, twice as many each time


class Surprised(Pace):
    """On schedule, and where a class is a surprise.

    Every sample enters the queue of its class until that is full, so that labels tell how the
    queues fill before anything is learned. Samples that come to a full queue surprise nobody:
    replicas need not hear of them.
    """

    def __init__(
        self,
        schedule: Schedule,
        seen: int,
        due: int | None,
        *,
        sizes: np.ndarray,
        capacity: int | None,
        known: np.ndarray,
        refreshed: int,
    ) -> None:
        super().__init__(schedule, seen, due)
        self.sizes, self.known = sizes, known  # (C,) of the queues: now, and at the last refresh
        self.refreshed = refreshed  # samples learned until then; 0: there was no refresh yet
        self._most = np.iinfo(np.int64).max if capacity is None else capacity
        margin = MARGIN if len(sizes) <= FEW_CLASSES else MARGIN_OF_MANY
        self._unlikely = math.log(len(sizes)) + margin

    def learn(self, labels: np.ndarray) -> None:
        super().learn(labels)
        self.sizes = self._filled(self.sizes, labels)

    def _refresh(self) -> None:
        self.known, self.refreshed = self.sizes, self.seen

    def _until_due(self, labels: np.ndarray) -> int:
        scheduled = super()._until_due(labels)
        return self._until_surprise(labels[: scheduled or None]) or scheduled

    def _until_surprise(self, labels: np.ndarray) -> int:
        """How many of the samples to come are learned when one is a surprise; 0: none is."""
        if not self.refreshed:
            return 0
        if len(labels) == 1 and labels[0] >= 0:  # in plain numbers: streams live here
            size, known = int(self.sizes[labels[0]]) + 1, int(self.known[labels[0]])
            since = self.seen + 1 - self.refreshed
            return int(size <= self._most and self._is_surprise(size - known, known, since))
        start, length, sizes = 0, _WINDOW, self.sizes
        while start < len(labels):
            some = labels[start : start + length]
            known = self.known[some]
            size = sizes[some] + _occurrence(some)
            new, fits = size - known, (some >= 0) & (size <= self._most)
            enough = np.flatnonzero(fits & (new >= np.maximum(known, LEAST_NEW)))
            for at in enough.tolist():
                since = self.seen + start + at + 1 - self.refreshed
                if self._is_surprise(int(new[at]), int(known[at]), since):
                    return start + at + 1
            sizes = self._filled(sizes, some)
            start, length = start + len(some), 2 * length
        return 0

    def _is_surprise(self, new: int, known: int, since: int) -> bool:
        """Whether a class has too many of the samples since the last refresh for chance.

        A class of which the statistics know some samples is expected to have its share of those
        that came since. By chance so many, or more, have a probability below
        exp(-(new log(new/expected) - new + expected)), as Poisson has it; and any of C classes
        might be the one.
        """
        if new < LEAST_NEW or new < known:
            return False
        expected = since * (known + 1) / (self.refreshed + len(self.known))
        if new <= expected:
            return False
        unlikely = new * math.log(new / expected) - new + expected
        return unlikely > self._unlikely and self._goes_on(known + new)

    def _goes_on(self, size: int) -> bool:
        """Whether a class of this size is likely to have more samples, by what others have.

        The class of a usual sample is what tells, not a usual class: strays make many small ones.
        """
        known = self.known.astype(np.float64)
        usual = float(known @ known) / max(float(known.sum()), 1.0)
        return usual >= min(size + LEAST_NEW, ENDLESS * self._most)

    def _filled(self, sizes: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """(C,) sizes of the queues when samples with these labels have come."""
        arrived = np.bincount(labels[labels >= 0], minlength=len(sizes))
        filled: np.ndarray = np.minimum(sizes + arrived, self._most)
        return filled


def _occurrence(labels: np.ndarray) -> np.ndarray:
    """(n,) for each label the how manieth of its kind it is, from 1 on."""
    order = np.argsort(labels, kind="stable")
    ranked = labels[order]
    first = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    occurrence = np.empty(len(labels), np.int64)
    lengths = np.diff(np.append(first, len(labels)))
    occurrence[order] = np.arange(1, len(labels) + 1) - np.repeat(first, lengths)
    return occurrence
