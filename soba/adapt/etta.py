"""ETTA: running class means beside the text, each weighed by the doubt of the other.

Paper: Efficient Test-Time Adaptation for Vision-Language Models via Dynamic Embedding Updates.
As in the official code a class mean is of all samples that CLIP calls by it, weighted by exp(cosine
to its text), and updated before the sample is scored; a class without samples has cosine 0; 1e-6
is added to each probability in the entropies. The official code also picks, image by image, the
prompts of a class that fit best: text features here are one row a class, and leave no choice. It
takes an argmax of the fused cosines; our logits are these times the logit scale.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, ClipScores, like, to_host
from soba.adapt.card import ONE_VIEW, Card, PaperSettings, PaperViews
from soba.adapt.running import RunningAdapter

_BLOCK_ROWS = 256
_SPARE = 1e-6  # added to each probability


class ETTA(RunningAdapter):
    """Running means of all samples, fused with CLIP by the entropy of each.

    With t the cosines to the text, c those to the class means, and h_t, h_c the entropies of
    softmax(scale t) and softmax(scale c), the logits are scale (h_t c + h_c t) / (h_t + h_c).

    O(C d) a sample, C * d doubles.

    Examples
    --------
    >>> etta = ETTA(np.eye(2), logit_scale=10.0)
    >>> etta.adapt(np.array([[0.8, 0.6]])).round(2).tolist()
    [[10.0, 0.01]]
    >>> etta.means_.round(2).tolist()
    [[0.8, 0.6], [0.0, 0.0]]
    """

    card: ClassVar[Card] = Card(
        "etta",
        title="ETTA",
        colour="#a86ce4",
        provenance="official algorithm",
        paper=PaperSettings(views=PaperViews(ONE_VIEW, ONE_VIEW, ONE_VIEW)),
    )
    _running = _scoring_reads = ("sums",)

    def __init__(self, text_features: Array, *, logit_scale: float = 100.0) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self._reset()

    @property
    def means_(self) -> np.ndarray:
        """(C, d) directions of the class means; zeros for a class without samples."""
        sums = self._view()._sums
        lengths: np.ndarray = np.linalg.norm(sums, axis=1, keepdims=True)
        means: np.ndarray = sums / np.maximum(lengths, 1e-12)
        return means

    def _reset(self) -> None:
        super()._reset()
        self._sums = np.zeros((self.n_classes, self.dim))

    def _adapt(self, batch: Batch, ids: np.ndarray | None) -> Array:
        ids, fresh = self._seen.number(ids, len(batch))
        blocks = []
        for start in range(0, len(batch), _BLOCK_ROWS):
            stop = start + _BLOCK_ROWS
            block = Batch(batch.xp, batch.x[start:stop, ...], False)
            clip = self._clip(block)
            rows = fresh[(fresh >= start) & (fresh < stop)] - start
            blocks.append(self._score(block, clip, rows))
            self._learn(clip, ids[start:stop], rows)
        if not blocks:
            return self._clip_logits(batch)[1]
        return blocks[0] if len(blocks) == 1 else batch.xp.concat(blocks)

    def _logits(self, batch: Batch) -> Array:
        features, logits = self._clip_logits(batch)
        nothing = np.empty(0, np.int64)
        clip = ClipScores(features, logits, nothing, nothing, nothing, None)
        return self._score(batch, clip, nothing)

    def _learn(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        if len(rows):
            weights = self._weights(clip, rows)
            features = to_host(clip.features[rows, :]).astype(np.float64)
            np.add.at(self._sums, clip.labels[rows], weights[:, None] * features)
            self._count(ids[rows])

    def _weights(self, clip: ClipScores, rows: np.ndarray) -> np.ndarray:
        """exp(cosine of a sample and the text of its class)."""
        logits = to_host(clip.logits)[rows, clip.labels[rows]].astype(np.float64)
        weights: np.ndarray = np.exp(logits / self.logit_scale)
        return weights

    def _score(self, batch: Batch, clip: ClipScores, rows: np.ndarray) -> Array:
        """Logits of a block; row i sees the means as they are after those of `rows` up to i."""
        xp, features = batch.xp, clip.features
        dots = features @ like(batch, self._sums).T  # (n, C)
        squares = like(batch, np.einsum("kd,kd->k", self._sums, self._sums))[None, :]
        if len(rows):
            new = features[rows, :]
            weights = like(batch, self._weights(clip, rows))
            learned = np.arange(features.shape[0])[:, None] >= rows
            learned = like(batch, learned.astype(np.float32))
            one_hot = like(batch, np.eye(self.n_classes, dtype=np.float32)[clip.labels[rows]])
            dots = dots + ((features @ new.T) * learned * weights) @ one_hot
            # |s + w f|^2 = |s|^2 + w (2 s f + w f f), and s + w f is what row i was scored with.
            along = xp.sum(dots[rows, :] * one_hot, axis=-1)
            growth = weights * (2.0 * along - weights * xp.vecdot(new, new))
            squares = squares + (learned * growth) @ one_hot
        # The sums of a class without samples are 0, and so is its cosine.
        lengths = xp.sqrt(xp.maximum(squares, xp.asarray(1e-24, dtype=squares.dtype)))
        logits = dots / lengths * self.logit_scale
        doubt, clip_doubt = _doubt(xp, logits), _doubt(xp, clip.logits)
        return (clip_doubt * logits + doubt * clip.logits) / (clip_doubt + doubt)


def _doubt(xp: Any, logits: Array) -> Array:
    """(n, 1) entropies of softmax + 1e-6.

    The likeliest class is taken out of the sum: where nothing is left but 1e-6, log1p of what the
    others hold keeps the digits that the logarithm of a number next to 1 would lose.
    """
    rows, labels = xp.arange(logits.shape[0]), xp.argmax(logits, axis=-1)
    e = xp.exp(logits - logits[rows, labels][:, None])
    e[rows, labels] = 0.0
    total = 1.0 + xp.sum(e, axis=-1, keepdims=True)
    others = e / total + _SPARE
    rest = _SPARE - (total - 1.0) / total
    entropy = _SPARE * float(np.log(_SPARE)) - xp.sum(others * xp.log(others), axis=-1)
    return entropy[:, None] - (1.0 + rest) * xp.log1p(rest)
