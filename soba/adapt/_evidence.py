"""What SOBA+ learns from, the queue and a uniform sample of the stream, and the model they make."""

from __future__ import annotations

import numpy as np

from soba.adapt._arrays import softmax
from soba.adapt._mixture import (
    Covariance,
    Mixture,
    Shares,
    class_prior,
    second_moments,
    segment_sums,
    share_out,
    share_out_options,
)
from soba.adapt.queue import EntropyQueue
from soba.adapt.sample import Sampled

CANDIDATES = 4  # classes that a queued item may be shared out among: CLIP's likeliest
SURE, DOUBT = 0.95, 0.05  # items surer than this stay put; those less sure by DOUBT are free
ROUNDS = 2  # of EM; more change little
EM_WEIGHT = 0.55  # of a nat of the Gaussians against one of CLIP's, when the classes are known
POWER = 0.75  # of the evidence in a weight


def candidate_type(classes: int) -> np.dtype[np.void]:
    """What is kept with a queued item: its likeliest classes, and their log-probabilities."""
    few = min(CANDIDATES, classes)
    return np.dtype([("class", np.int32, (few,)), ("log_prob", np.float32, (few,))])


class Evidence:
    """The samples that are kept, with what CLIP says of them.

    Queued items come in canonical order; an item that is in the uniform sample too counts once.
    """

    def __init__(
        self, queue: EntropyQueue, drawn: Sampled, text: np.ndarray, logit_scale: float
    ) -> None:
        self.text, self.capacity = text, queue.capacity
        self.labels, ranks = np.nonzero(queue.filled)
        slots = queue.slots[self.labels, ranks]
        self.rows = queue.features[self.labels, slots]  # (n, d)
        stored = queue.extra[self.labels, slots].view(candidate_type(len(text)))[:, 0]
        self.options, self.log_probs = stored["class"], stored["log_prob"]
        self.confidence = np.exp(self.log_probs[:, 0].astype(np.float64))
        self.drawn = drawn.features  # (m, d)
        self.clip = self.drawn @ (text * np.float32(logit_scale)).T  # (m, C)
        ids = queue.ids[self.labels, ranks]
        self._queued_only = ~np.isin(ids, drawn.ids)
        self._drawn_only = ~np.isin(drawn.ids, ids)
        # The part of an item that EM moves goes up with doubt, not by a jump.
        self._free = np.clip((SURE - self.confidence) / DOUBT, 0.0, 1.0)

    def fit(self) -> tuple[Mixture, Covariance] | None:
        """The model after some rounds of EM; None where the evidence is too thin for any.

        It begins with the queue alone, each item counted as CLIP's confidence in its label.
        """
        classes, counts = len(self.text), self.confidence
        counted = Shares(
            np.bincount(self.labels, counts, classes),
            np.bincount(self.labels, counts**2, classes),
            segment_sums(self.rows, self.labels, counts, classes),
        )
        sizes = np.bincount(self.labels, minlength=classes).astype(np.float64)
        ones = np.ones(len(self.labels))
        whole = Shares(sizes, sizes, segment_sums(self.rows, self.labels, ones, classes))
        moments = second_moments(self.rows)
        covariance = Covariance.within(moments, whole)
        model = Mixture.fitted(counted, covariance, self.text)
        moments += second_moments(self.drawn[self._drawn_only])
        prior, sure = np.full(classes, 1.0 / classes), self._sure()
        for _ in range(ROUNDS):
            if model is None:
                return None
            weight = EM_WEIGHT * self.in_pairs(model.mass) ** POWER
            logits = self.clip + np.float32(weight) * model.score(self.drawn)
            prior = class_prior(logits, prior)
            odds = np.log(prior * classes).astype(np.float32)
            shares = share_out(self.drawn, softmax(np, logits + odds))
            shares += sure + self._unsure(model, weight, odds)
            covariance = Covariance.within(moments, shares)
            model = Mixture.fitted(shares, covariance, self.text)
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

    def _sure(self) -> Shares:
        """Shares of the items that stay where CLIP has put them, whatever the model says."""
        some = np.flatnonzero(self._queued_only & (self._free == 0.0))
        return share_out_options(
            self.rows[some], self.labels[some, None], np.ones((len(some), 1)), len(self.text)
        )

    def _unsure(self, model: Mixture, weight: float, odds: np.ndarray) -> Shares:
        """Shares of the others, by their probability now among CLIP's likeliest classes."""
        some = np.flatnonzero(self._queued_only & (self._free > 0.0))
        rows, options, free = self.rows[some], self.options[some], self._free[some]
        scores = self.log_probs[some] + odds[options]
        scores += np.float32(weight) * model.score_options(rows, options)
        share = softmax(np, scores) * free[:, None]
        share[:, 0] += 1.0 - free  # the first of the likeliest classes is the label
        return share_out_options(rows, options, share, len(self.text))
