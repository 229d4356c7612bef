"""What SOBA+ learns from, the queue and a uniform sample of the stream, and the model they make."""

from __future__ import annotations

from functools import cache

import numpy as np

from soba.adapt._arrays import softmax
from soba.adapt._mixture import (
    Covariance,
    Mixture,
    Shares,
    class_prior,
    held_back,
    likelihoods,
    second_moments,
    share_out,
    share_out_options,
)
from soba.adapt.queue import EntropyQueue
from soba.adapt.sample import Sampled

CANDIDATES = 4  # classes that a queued item may be shared out among: CLIP's likeliest
SURE, DOUBT = 0.95, 0.05  # items surer than this stay put; those less sure by DOUBT are free
EM_WEIGHT = 0.5  # of a nat of the Gaussians against one of CLIP's, when the classes are known
POWER = 0.5  # of the evidence in a weight
PRIOR_POWER = 0.5  # of how few classes occur, in what their prior counts
RARE = 4.0  # times fewer samples than usual: such a class may hold none of its own
_BLOCK_ROWS = 4096


@cache
def candidate_type(classes: int) -> np.dtype[np.void]:
    """What is kept with a queued item: its likeliest classes, and their log-probabilities."""
    few = min(CANDIDATES, classes)
    return np.dtype([("class", np.int32, (few,)), ("log_prob", np.float32, (few,))])


class Evidence:
    """The samples that are kept, with what CLIP says of them.

    Queued items come in canonical order; an item that is in the uniform sample too counts once.
    Each sample counts as CLIP's confidence in its label, so that what belongs to no class counts
    for little.
    """

    def __init__(
        self, queue: EntropyQueue, drawn: Sampled, text: np.ndarray, logit_scale: float
    ) -> None:
        self.text, self.capacity, self._queue = text, queue.capacity, queue
        self.labels, self._ranks = np.nonzero(queue.filled)
        slots = queue.slots[self.labels, self._ranks]
        # Items stay where they lie: a copy of all would be as large as the queue.
        self._stored = queue.features.reshape(-1, queue.dim)
        self._at = self.labels * queue.features.shape[1] + slots
        likeliest = queue.extra[self.labels, slots].view(candidate_type(len(text)))[:, 0]
        self.options, self.log_probs = likeliest["class"], likeliest["log_prob"]
        self.confidence = np.exp(self.log_probs[:, 0].astype(np.float64))
        self.drawn = drawn.features  # (m, d)
        self.clip = self.drawn @ (text * np.float32(logit_scale)).T  # (m, C)
        self.drawn_confidence = 1.0 / likelihoods(self.clip).sum(axis=1)
        ids = queue.ids[self.labels, self._ranks]
        self._queued_only = ~np.isin(ids, drawn.ids)
        self._drawn_only = ~np.isin(drawn.ids, ids)
        # The part of an item that EM moves goes up with doubt, not by a jump.
        self._free = np.clip((SURE - self.confidence) / DOUBT, 0.0, 1.0)

    def fit(self) -> tuple[Mixture, Covariance] | None:
        """The model after a step of EM; None where the evidence is too thin for any.

        EM begins with the queue alone, under CLIP's labels.
        """
        queued, moments = self._by_label()
        first = Mixture.fitted(queued, Covariance.within(moments, queued), self.text)
        if first is None:
            return None
        weight = EM_WEIGHT * self.in_pairs(first.mass) ** POWER
        logits = self.clip + np.float32(weight) * first.score(self.drawn)
        odds = held_back(class_prior(logits), PRIOR_POWER).astype(np.float32)
        share = likelihoods(logits + odds)
        share *= (self.drawn_confidence / share.sum(axis=1))[:, None]
        shares = share_out(self.drawn, share) + self._shared_out(queued, first, weight, odds)
        fresh = np.flatnonzero(self._drawn_only)
        moments += second_moments(self.drawn[fresh], self.drawn_confidence[fresh])
        covariance = Covariance.within(moments, shares)
        at_least = self._usual(shares.mass) / RARE
        model = Mixture.fitted(shares, covariance, self.text, at_least=at_least)
        return None if model is None or covariance is None else (model, covariance)

    def in_pairs(self, mass: np.ndarray) -> float:
        """Evidence of 0 to 1: to tell two classes apart takes samples of both.

        The mean over pairs of classes of sqrt(n_i n_j) / capacity is the square of a mean.
        """
        return float(np.sqrt(self.by_class(mass)).mean()) ** 2

    def by_class(self, mass: np.ndarray) -> np.ndarray:
        """(C,) evidence of 0 to 1: the samples of a class, of as many as the queue may hold."""
        fill: np.ndarray = np.minimum(mass / (self.capacity or float(mass.max())), 1.0)
        return fill

    def _usual(self, mass: np.ndarray) -> float:
        """How many samples the class of a usual sample has, of as many as the queue may hold."""
        return float(mass @ np.minimum(mass, self.capacity or np.inf)) / float(mass.sum())

    def _by_label(self) -> tuple[Shares, np.ndarray]:
        """Shares of the queued items under CLIP's labels, and their second moments.

        By classes of one size, which make a rectangle: products are faster than sums of segments.
        The order is that of the content alone, so equal queues give equal bits, wherever their
        items lie.
        """
        queue, counts, (classes, width) = self._queue, self.confidence, self.text.shape
        by_rank = np.zeros(queue.entropies.shape, np.float32)
        by_rank[self.labels, self._ranks] = counts
        sums, moments = np.zeros((classes, width), np.float32), np.zeros((width, width))
        room = queue.features.shape[1]
        # Blocks of memory that are used again: to get new ones takes as long as the product. Rows
        # of several sizes share a product, since each costs (d, d) numbers however few rows it has.
        most = min(max(_BLOCK_ROWS, room), len(counts))
        gathered, weighted = np.empty((2, most, width), np.float32)
        used = 0
        for size in np.unique(queue.sizes[queue.sizes > 0]).tolist():
            members = np.flatnonzero(queue.sizes == size)
            step = max(1, _BLOCK_ROWS // size)
            for start in range(0, len(members), step):
                some = members[start : start + step]
                at = (some[:, None] * room + queue.slots[some, :size]).reshape(-1)
                if used + len(at) > most:
                    moments += weighted[:used].T @ weighted[:used]
                    used = 0
                rows = gathered[: len(at)]
                np.take(self._stored, at, axis=0, out=rows, mode="clip")  # "clip" writes straight
                share = by_rank[some, :size]
                sums[some] = (share[:, None, :] @ rows.reshape(-1, size, width))[:, 0]
                roots = np.sqrt(share).reshape(-1, 1)
                np.multiply(rows, roots, out=weighted[used : used + len(at)])
                used += len(at)
        moments += weighted[:used].T @ weighted[:used]
        mass = np.bincount(self.labels, counts, classes)
        return Shares(mass, np.bincount(self.labels, counts**2, classes), sums), moments

    def _shared_out(
        self, queued: Shares, model: Mixture, weight: float, odds: np.ndarray
    ) -> Shares:
        """Shares of the queued items that are not in the sample, by their probability now.

        Sure ones stay where CLIP has put them; the others go to CLIP's likeliest classes.
        """
        classes = len(self.text)
        other = np.flatnonzero(~self._queued_only | (self._free > 0.0))
        rows, at = self._stored, self._at
        sure = queued - share_out_options(
            rows, self.labels[other, None], self.confidence[other, None], classes, at[other]
        )
        unsure = np.flatnonzero(self._queued_only & (self._free > 0.0))
        at, options = at[unsure], self.options[unsure]
        free, counts = self._free[unsure], self.confidence[unsure]
        scores = self.log_probs[unsure] + odds[options]
        scores += np.float32(weight) * model.score_options(rows, options, at)
        share = softmax(np, scores) * free[:, None]
        share[:, 0] += 1.0 - free  # the first of the likeliest classes is the label
        return sure + share_out_options(rows, options, share * counts[:, None], classes, at)
