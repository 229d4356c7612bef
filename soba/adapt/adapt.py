"""ADAPT: Gaussian classes from a bank of sure samples, multiplied into CLIP's logits.

Paper: Backpropagation-Free Test-Time Adaptation via Probabilistic Gaussian Alignment (NeurIPS'25).
Kept from the official code: logits are multiplied, not added, so they have to be positive, as those
of OpenAI's CLIP are. Not kept: it counts the newest sample of a class twice in its mean (ours is of
the bank alone, so that arrival order is nothing to it and banks merge), and it scores a sample that
did not enter the bank with the bank similarities of the last one that did. All statistics follow
every sample that enters, which takes a d x d inverse each time (`refresh=1`); by default our means
do, and the covariance up to the hundredth sample and then at each 1 % more. ImageNet's constants.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, ClipScores, like, score_with_clip, softmax, to_host
from soba.adapt._following import FollowingAdapter
from soba.adapt._gaussian import discriminant, ridge_precision, scores
from soba.adapt._schedule import Refresh
from soba.adapt.base import at_least_zero, positive, whole
from soba.adapt.card import AUGMIX, ONE_VIEW, Card, PaperSettings, PaperViews
from soba.adapt.queue import EntropyQueue
from soba.adapt.stream import TWIN_TOLERANCE
from soba.adapt.transductive import Transduces

_DOUBLE = 8  # bytes: the probability that a sample carries along


class ADAPT(FollowingAdapter, Transduces):
    """Gaussian alignment with a bank of sure samples, online, or over a whole set at once.

    With z CLIP's logits, p its probabilities, M samples in the bank, g the Gaussian log-likelihoods
    and r_k the sum of p_k <f, v> over the samples v of class k in the bank, the logits are
    z exp((g + sharpness r / 2M - max) / sharpness). The mean of class k is that of its bank,
    weighted by p_k (and, in `transduce`, of all samples besides), mixed with its text.

    Parameters
    ----------
    capacity, set_capacity
        Samples kept per pseudo-class: online, and in `transduce`.
    image_weight
        Share of the samples in a class mean; the rest is its text.
    sharpness
        The official "scale", 20 on ImageNet: the larger, the less the Gaussians change.
    refresh, total, max_gap
        When the covariance refreshes: see `soba.adapt._schedule.Schedule`.

    Notes
    -----
    O(C d + d^2) a sample, O((m + d) d min(m, d)) a refresh with m samples in the bank;
    C * (capacity + 4) * d floats.

    Examples
    --------
    >>> adapt = ADAPT(np.eye(3))
    >>> stream = np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.6, 0.5, 0.0]])
    >>> adapt.adapt(stream).argmax(axis=1).tolist(), adapt.transduce(stream).argmax(axis=1).tolist()
    ([0, 1, 0], [0, 1, 0])
    """

    card: ClassVar[Card] = Card(
        "adapt",
        title="ADAPT",
        colour="#a81878",
        provenance="official algorithm",
        paper=PaperSettings(views=PaperViews(ONE_VIEW, AUGMIX, ONE_VIEW)),
    )

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        capacity: int | None = 16,
        set_capacity: int = 6,
        image_weight: float = 0.9,
        sharpness: float = 20.0,
        refresh: Refresh = "growth",
        total: int | None = None,
        max_gap: int | None = None,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.capacity, self.set_capacity = capacity, whole(set_capacity, "set_capacity")
        self.image_weight = at_least_zero(image_weight, "image_weight")
        if self.image_weight > 1.0:
            raise ValueError(f"image_weight must be between 0 and 1, not {image_weight!r}")
        self.sharpness = positive(sharpness, "sharpness")
        self.refresh_rule, self.total, self.max_gap = refresh, total, max_gap
        self._reset()

    def transduce(self, features: Array, *, rounds: int = 1, out: Array | None = None) -> Array:
        """Logits of a whole set under statistics of all of it; in one round, as the paper does."""
        if rounds != 1:
            raise ValueError(f"{self.name} settles in one round: rounds must be 1, not {rounds!r}")
        return self._transduced(features, rounds, out)

    @property
    def _growth(self) -> dict[str, int | None]:
        return {"first": 1, "percent": 1}

    def _empty_queues(self) -> dict[str, EntropyQueue]:
        size, tolerance = (self.n_classes, self.dim, self.capacity), TWIN_TOLERANCE
        return {"queue": EntropyQueue(*size, extra_width=_DOUBLE, twin_tolerance=tolerance)}

    def _extra(self, clip: ClipScores, rows: np.ndarray) -> np.ndarray:
        chances: np.ndarray = clip.confidences[rows].astype("<f8").view(np.uint8)
        return chances.reshape(len(rows), _DOUBLE)

    def _statistics(self) -> dict[str, np.ndarray] | None:
        items = self.queue.items()
        chances = np.ascontiguousarray(items.extra).view("<f8")[:, 0]
        return self._of_bank(items.features, items.labels, chances)

    def _of_bank(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        chances: np.ndarray,
        whole_set: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> dict[str, np.ndarray] | None:
        """What scoring needs, of samples class by class with the probability of their label.

        `whole_set` are the (C, d) sums of p_k f and the (C,) sums of p_k over all samples.
        """
        if len(labels) == 0:
            return None
        features = features.astype(np.float64)
        text = self.text_features.astype(np.float64)
        seen, starts = np.unique(labels, return_index=True)
        bank = np.zeros_like(text)
        bank[seen] = np.add.reduceat(chances[:, None] * features, starts)
        sums, weights = bank[seen], np.add.reduceat(chances, starts)
        if whole_set is not None:
            sums, weights = sums + whole_set[0][seen], weights + whole_set[1][seen]
        means = text.copy()
        means[seen] = self._mixed(sums / weights[:, None], text[seen])
        apply = ridge_precision(features - means[labels])
        # Of one sample, or of copies of one, the official code takes the identity.
        precision = np.eye(self.dim) if apply is None else apply(np.eye(self.dim))
        rest = {"bank": bank, "size": np.array([len(labels)])}
        return discriminant(means, precision) | rest

    def _mixed(self, mean: np.ndarray, text: np.ndarray) -> np.ndarray:
        return self.image_weight * mean + (1.0 - self.image_weight) * text

    def _follow(self, label: int) -> None:
        """Bring the mean of one class up to its bank; the covariance waits for the refresh."""
        assert self.statistics_ is not None
        known, queue = self.statistics_, self.queue
        slots = queue.slots[label, : queue.sizes[label]]
        chances = np.ascontiguousarray(queue.extra[label, slots]).view("<f8")[:, 0]
        total = chances @ queue.features[label, slots].astype(np.float64)
        mean = self._mixed(total / chances.sum(), self.text_features[label].astype(np.float64))
        known["bank"][label], known["size"][0] = total, len(queue)
        self._move(label, mean)

    def _score(self, batch: Batch, features: Array) -> Array:
        """What CLIP's logits are multiplied by."""
        assert self.statistics_ is not None
        return self._factors(batch, features, self.statistics_)

    def _factors(self, batch: Batch, features: Array, known: dict[str, np.ndarray]) -> Array:
        def of(name: str) -> Array:
            return like(batch, known[name])  # a mirror would not see rows change

        xp, similar = batch.xp, self.sharpness / (2.0 * float(known["size"][0]))
        evidence = scores(batch, features, of) + similar * (features @ of("bank").T)
        evidence = evidence - xp.max(evidence, axis=-1, keepdims=True)
        return xp.exp(evidence / self.sharpness)

    def _add_block(self, batch: Batch, clip: ClipScores, rows: slice) -> None:
        block = clip.logits[rows, :]
        block *= self._score(batch, clip.features[rows, :])

    def _answers(self, batch: Batch, rounds: int) -> Array:
        text = self._mirror("text", self._scaled_text, batch)
        clip = score_with_clip(batch, text)
        order = np.lexsort((clip.entropies, clip.labels))
        counts = np.bincount(clip.labels, minlength=self.n_classes)
        rank = np.arange(len(order)) - (np.cumsum(counts) - counts)[clip.labels[order]]
        bank = order[rank < self.set_capacity]
        sums, weights = np.zeros((self.n_classes, self.dim)), np.zeros(self.n_classes)
        step = max(64, (1 << 20) // self.n_classes)
        blocks = [slice(at, at + step) for at in range(0, len(batch), step)]
        for rows in blocks:
            soft = to_host(softmax(batch.xp, clip.logits[rows, :])).astype(np.float64)
            sums += soft.T @ to_host(clip.features[rows, :]).astype(np.float64)
            weights += soft.sum(axis=0)
        held = to_host(clip.features[bank, :]), clip.labels[bank], clip.confidences[bank]
        statistics = self._of_bank(*held, (sums, weights))
        assert statistics is not None
        for rows in blocks:
            clip.logits[rows, :] *= self._factors(batch, clip.features[rows, :], statistics)
        return clip.logits
