"""TDA: a cache of sure samples that votes for, and one of unsure samples that votes against.

Paper: Efficient Test-Time Adaptation of Vision-Language Models (CVPR 2024). As in the official
code, the caches are updated before the sample is scored, so a sure sample votes for itself; votes
are summed, not averaged. The official code divides a natural-log entropy by log2(C), which caps
it at 0.693: kept as `entropy_norm="log2"`, with "ln" for the window the paper describes. Its
constants per dataset (tda.csv) were chosen in a way that is not documented, and
there is no validation set: treat them as tuned on the test data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt._arrays import Array, Batch, ClipScores, like, score_with_clip, to_host
from soba.adapt._lifetimes import lifetimes
from soba.adapt.base import at_least_zero, one_of
from soba.adapt.card import AUGMIX, ONE_VIEW, Card, PaperSettings, PaperViews
from soba.adapt.queue import EntropyQueue
from soba.adapt.stream import TWIN_TOLERANCE, StreamAdapter

_BLOCK_ROWS = 256


class TDA(StreamAdapter):
    """Training-free dynamic adapter.

    Parameters
    ----------
    capacity, alpha, beta
        Of the positive cache: samples a class, weight, sharpness of exp(-beta (1 - cosine)).
    negative_capacity, negative_alpha, negative_beta
        The same of the negative cache; `negative_alpha=0` switches it off.
    entropy_window
        Normalised entropies, exclusive, that let a sample into the negative cache.
    mask_window
        Probabilities, exclusive, for which a negative sample votes against a class.
    entropy_norm
        "log2" as in the official code, or "ln".

    Notes
    -----
    O(C capacity d + m C) a sample with m samples in the negative cache;
    C (capacity + negative_capacity) d floats.

    A sample that is alone in the cache adds alpha to its own class:

    Examples
    --------
    >>> tda = TDA(np.eye(2), logit_scale=10.0, alpha=2.0, beta=5.0, negative_alpha=0.0)
    >>> tda.adapt(np.array([1.0, 0.0])).tolist()
    [12.0, 0.0]
    """

    card: ClassVar[Card] = Card(
        "tda",
        title="TDA",
        colour="#eb6e01",
        provenance="official algorithm",
        paper=PaperSettings(
            constants=Path(__file__).with_name("tda.csv"),
            views=PaperViews(ONE_VIEW, AUGMIX, ONE_VIEW),
        ),
    )
    _copied: tuple[dict[str, EntropyQueue], int, dict[str, EntropyQueue]]

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        capacity: int = 3,
        alpha: float = 2.0,
        beta: float = 5.0,
        negative_capacity: int = 2,
        negative_alpha: float = 0.117,
        negative_beta: float = 1.0,
        entropy_window: tuple[float, float] = (0.2, 0.5),
        mask_window: tuple[float, float] = (0.03, 1.0),
        entropy_norm: str = "log2",
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.capacity, self.alpha = capacity, at_least_zero(alpha, "alpha")
        self.beta = at_least_zero(beta, "beta")
        self.negative_capacity = negative_capacity
        self.negative_alpha = at_least_zero(negative_alpha, "negative_alpha")
        self.negative_beta = at_least_zero(negative_beta, "negative_beta")
        self.entropy_window = _window(entropy_window, "entropy_window")
        self.mask_window = _window(mask_window, "mask_window")
        self.entropy_norm = one_of(entropy_norm, ("log2", "ln"), "entropy_norm")
        self._reset()

    def _empty_queues(self) -> dict[str, EntropyQueue]:
        def queue(capacity: int, extra: int) -> EntropyQueue:
            return EntropyQueue(
                self.n_classes,
                self.dim,
                capacity,
                extra_width=extra,
                twin_tolerance=TWIN_TOLERANCE,
            )

        # Each negative sample carries its mask over the classes, a bit each.
        mask_bytes = -(-self.n_classes // 8)
        return {
            "positive": queue(self.capacity, 0),
            "negative": queue(self.negative_capacity, mask_bytes),
        }

    def _clip(self, batch: Batch) -> ClipScores:
        return score_with_clip(batch, self._mirror("text", self._scaled_text, batch), probs=True)

    def _adapt(self, batch: Batch, ids: np.ndarray | None) -> Array:
        ids, fresh = self._seen.number(ids, len(batch))
        blocks = []
        for start in range(0, len(batch), _BLOCK_ROWS):
            stop = start + _BLOCK_ROWS
            block = Batch(batch.xp, batch.x[start:stop, ...], False)
            clip = self._clip(block)
            rows = fresh[(fresh >= start) & (fresh < stop)] - start
            blocks.append(self._learn_and_score(block, clip, ids[start:stop], rows))
        if not blocks:
            return self._clip_logits(batch)[1]
        return blocks[0] if len(blocks) == 1 else batch.xp.concat(blocks)

    def _logits(self, batch: Batch) -> Array:
        features, logits = self._clip_logits(batch)
        nothing = np.empty(0, np.int64)
        blocks = [logits[:0, :]]
        for start in range(0, len(batch), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            clip = ClipScores(
                features[rows, :], logits[rows, :], nothing, np.empty(0), np.empty(0), None
            )
            block = Batch(batch.xp, clip.features, False)
            blocks.append(self._score(block, clip, nothing, nothing, nothing))
        return batch.xp.concat(blocks)

    def _learn_and_score(
        self, batch: Batch, clip: ClipScores, ids: np.ndarray, rows: np.ndarray
    ) -> Array:
        """One block. Every row is scored against the caches as they were at its turn."""
        logits = self._score(batch, clip, ids, rows, self._unsure(clip, rows))
        self._learn(clip, ids, rows)
        return logits

    def _learn(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        for name, offered in (("positive", rows), ("negative", self._unsure(clip, rows))):
            if len(offered):
                self._offer(name, clip, ids, offered)
        self._count(ids[rows])

    def _take_over(self, other: Self) -> None:
        # Every sample was offered to the positive cache once, so all that are kept are again;
        # which of them are unsure depends on the text.
        stored = [queue.items() for queue in other._queues.values()]
        ids, first = np.unique(np.concatenate([items.ids for items in stored]), return_index=True)
        if len(ids):
            features = np.concatenate([items.features for items in stored])[first]
            self._learn(self._clip(Batch(np, features, False)), ids, np.arange(len(ids)))
        self._seen = other._seen.copy()

    def _view(self) -> Self:
        with self._lock:
            view = super()._view()
            # The caches change in place, and scoring reads them: it gets copies, which serve until
            # the next sample is learned or the caches are replaced.
            original, count, copies = self._copied
            if original is not self._queues or count != self.n_seen:
                copies = {name: queue.copy() for name, queue in self._queues.items()}
                self._copied = (self._queues, self.n_seen, copies)
            view._queues = copies
        return view

    def _reset(self) -> None:
        super()._reset()
        self._copied = (self._queues, 0, self._empty_queues())

    def _unsure(self, clip: ClipScores, rows: np.ndarray) -> np.ndarray:
        """The rows that may enter the negative cache."""
        if self.negative_alpha == 0.0 or self.n_classes < 2:
            return rows[:0]
        most = (
            math.log2(self.n_classes) if self.entropy_norm == "log2" else math.log(self.n_classes)
        )
        low, high = self.entropy_window
        entropies = clip.entropies[rows] / most
        inside = np.flatnonzero((low < entropies) & (entropies < high))
        return rows[inside]

    def _extra(self, clip: ClipScores, rows: np.ndarray) -> np.ndarray:
        """(m, C/8) bytes: the classes each sample votes against."""
        probs: np.ndarray = to_host(clip.probs[rows])  # type: ignore[index]
        low, high = self.mask_window
        masks: np.ndarray = np.packbits((low < probs) & (probs < high), axis=-1)
        return masks

    def _score(
        self, batch: Batch, clip: ClipScores, ids: np.ndarray, rows: np.ndarray, unsure: np.ndarray
    ) -> Array:
        """CLIP's logits plus the votes for, minus the votes against."""
        xp, features = batch.xp, clip.features
        n, classes = int(features.shape[0]), self.n_classes
        logits = clip.logits

        queue = self._queues["positive"]
        turns = _Turns.of(queue, clip, ids, rows, n)
        if len(queue):
            # All slots at once, free ones weighted 0: cheaper than picking out the filled.
            keys = like(batch, queue.features.reshape(-1, self.dim))
            votes = self._kernel(batch, features, keys, self.beta)
            votes *= like(batch, turns.old_alive(queue.filled.reshape(-1)))
            slots = queue.features.shape[1]
            votes = xp.reshape(votes, (n, classes, slots))
            for slot in range(slots):  # a sum over so short an axis is slower than its terms
                logits = logits + self.alpha * votes[:, :, slot]
        if len(turns.new):
            one_hot = np.zeros((len(turns.new), classes), np.float32)
            one_hot[np.arange(len(turns.new)), clip.labels[turns.new]] = 1.0
            votes = self._kernel(batch, features, features[turns.new], self.beta)
            logits = logits + self.alpha * (
                (votes * like(batch, turns.new_alive())) @ like(batch, one_hot)
            )

        queue = self._queues["negative"]
        turns = _Turns.of(queue, clip, ids, unsure, n)
        filled = queue.filled.reshape(-1)
        if filled.any():
            keys = like(batch, queue.features.reshape(-1, self.dim)[filled])
            votes = self._kernel(batch, features, keys, self.negative_beta)
            votes *= like(batch, turns.old_alive(filled)[..., filled])
            against = self._unpack(batch, queue.extra.reshape(len(filled), -1)[filled])
            logits = logits - self.negative_alpha * (votes @ against)
        if len(turns.new):
            votes = self._kernel(batch, features, features[turns.new], self.negative_beta)
            against = self._unpack(batch, self._extra(clip, turns.new))
            votes = votes * like(batch, turns.new_alive())
            logits = logits - self.negative_alpha * (votes @ against)
        return logits

    def _unpack(self, batch: Batch, masks: np.ndarray) -> Array:
        bits = np.unpackbits(masks, axis=-1, count=self.n_classes)
        return like(batch, bits.astype(np.float32))

    def _kernel(self, batch: Batch, features: Array, keys: Array, beta: float) -> Array:
        """exp(-beta (1 - cosine)) of every sample and key."""
        exponents = features @ keys.T
        exponents *= beta  # in place: new memory for each step takes as long as the product
        exponents -= beta
        return batch.xp.exp(exponents)


@dataclass(frozen=True)
class _Turns:
    """Which cache entries count for which row of a block."""

    n: int  # rows of the block
    new: np.ndarray  # rows that enter the cache
    leaves: np.ndarray  # and the row at whose turn each is pushed out
    old_leaves: np.ndarray  # (slots of the cache,) the same for the entries it had

    @classmethod
    def of(
        cls, queue: EntropyQueue, clip: ClipScores, ids: np.ndarray, rows: np.ndarray, n: int
    ) -> Any:
        enters, leaves, old_leaves = lifetimes(
            queue, clip.labels[rows], clip.entropies[rows], ids[rows]
        )
        turn = np.append(rows, n)  # from positions among the offered rows to rows of the block
        return cls(n, rows[enters], turn[leaves[enters]], turn[old_leaves.reshape(-1)])

    def new_alive(self) -> np.ndarray:
        """(n, new) 1.0 where an entry of this block is in the cache at a row's turn."""
        at = np.arange(self.n)[:, None]
        return ((self.new <= at) & (at < self.leaves)).astype(np.float32)

    def old_alive(self, filled: np.ndarray) -> np.ndarray:
        """(slots,) or (n, slots): the same for the entries from before the block."""
        alive = filled.astype(np.float32)
        leaving = np.flatnonzero(self.old_leaves < self.n)
        if len(leaving) == 0:
            return alive
        alive = np.repeat(alive[None, :], self.n, axis=0)
        alive[:, leaving] = np.arange(self.n)[:, None] < self.old_leaves[leaving]
        return alive


def _window(window: tuple[float, float], name: str) -> tuple[float, float]:
    edges = [float(edge) for edge in window]
    if len(edges) != 2 or not edges[0] < edges[1]:
        raise ValueError(f"{name} must be (low, high) with low < high, not {window!r}")
    return edges[0], edges[1]
