"""ZERO: the surest views vote, each for its likeliest class: CLIP's softmax at temperature zero.

Paper: Frustratingly easy test-time adaptation of vision-language models (NeurIPS 2024). As in the
official code, 30% of the views are kept (19 of 64) and a tie goes to the tied class that the
surest of the discarded views votes for. Where none of them votes for a tied class we take the one
of the higher mean logit over the kept views.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, confidence, like, to_host, view_blocks, view_logits
from soba.adapt._votes import vote_logits
from soba.adapt.base import Adapter, positive
from soba.adapt.card import Card


class ZERO(Adapter):
    """Vote of the surest views, each for one class.

    Parameters
    ----------
    keep
        Share of the views that vote, those of the lowest entropy.

    Notes
    -----
    The logits are the logarithms of the votes, so probabilities are shares of the votes.
    O(V C d) an image, no state.

    Six views vote, four times for class 0, although the mean of their logits is for class 1:

    Examples
    --------
    >>> views = np.array([[[0.8, 0.6]] * 4 + [[0.1, 1.0]] * 2])
    >>> ZERO(np.eye(2), logit_scale=10.0, keep=1.0).probabilities(views).round(2).tolist()
    [[0.67, 0.33]]
    """

    card: ClassVar[Card] = Card(
        "zero",
        title="ZERO",
        colour="#177293",
        family="episodic",
        needs={"views"},
        min_views=2,
        provenance="official algorithm",
    )

    def __init__(
        self, text_features: Array, *, logit_scale: float = 100.0, keep: float = 0.3
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.keep = positive(keep, "keep")
        if self.keep > 1.0:
            raise ValueError(f"keep must be a share of the views, 1 at most, not {keep!r}")

    def _logits(self, batch: Batch) -> Array:
        text = self._mirror("text", self._scaled_text, batch)
        blocks = [self._vote(batch, x, text) for x in view_blocks(batch, self.n_classes)]
        return blocks[0] if len(blocks) == 1 else batch.xp.concat(blocks)

    def _vote(self, batch: Batch, x: Array, text: Array) -> Array:
        xp, views = batch.xp, int(x.shape[1])
        logits = view_logits(xp, x, text)  # (m, V, C)
        flat = xp.reshape(logits, (-1, self.n_classes))
        labels, entropies, _ = confidence(xp, flat)
        order = np.argsort(entropies.reshape(-1, views), axis=1, kind="stable")
        labels = np.take_along_axis(labels.reshape(-1, views), order, axis=1)  # surest first
        kept = max(1, int(self.keep * views))

        rows = np.arange(len(labels))[:, None]
        votes = np.zeros((len(labels), self.n_classes), np.float32)
        np.add.at(votes, (rows, labels[:, :kept]), 1.0)
        surest = np.zeros((len(labels), 1, views), np.float32)
        np.put_along_axis(surest[:, 0], order[:, :kept], 1.0 / kept, axis=1)
        mean = (like(batch, surest) @ logits)[:, 0, :]

        # The first discarded view with a vote for a tied class decides, before the mean does.
        preference = np.array(to_host(mean))
        tied = votes == votes.max(axis=1, keepdims=True)
        fits = tied[rows, labels[:, kept:]]
        decided = np.flatnonzero(fits.any(axis=1))
        if len(decided):
            first = labels[decided, kept + fits[decided].argmax(axis=1)]
            preference[decided, first] = np.inf
        return vote_logits(xp, like(batch, votes), like(batch, preference), mean)
