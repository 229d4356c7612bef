"""MTA: the mode of an image's views, each view weighted by how well it fits in with the others.

Paper: On the test-time zero-shot generalization of vision-language models: Do we really need
prompt learning? (CVPR 2024). As in the official code: 5 rounds of at most 5 steps for the weights
and 5 for the mode, from uniform weights and the first view, a bandwidth per view. Instead of one
image after the other we solve many at once, and keep the mode as a combination of the views, so
that a step costs O(V^2), not O(V d); an image that has converged is held while others go on.
The steps magnify rounding a hundredfold and more, so all products up to them are made image by
image: then numpy gives an image the same mode in whatever company it comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, softmax, view_blocks
from soba.adapt.base import Adapter, at_least_zero, positive, whole
from soba.adapt.card import CROPS, Card, PaperSettings, PaperViews

_NEIGHBOURS = 0.3  # share of the other views that set a view's bandwidth
_ROUNDS_AT_MOST = 1000  # where asked to run to the fixed point


@dataclass
class Views:
    """How the views of some images lie to each other."""

    gram: Array  # (m, V, V) cosines
    squared_bandwidths: Array  # (m, V)

    @classmethod
    def of(cls, xp: Any, x: Array) -> Views:
        views = int(x.shape[1])
        gram = x @ xp.permute_dims(x, (0, 2, 1))
        nearest = int(_NEIGHBOURS * (views - 1))
        # Half the mean squared distance 2 - 2 cos to the nearest; the largest cosine is its own.
        cosines = xp.sort(gram, axis=-1, stable=False)  # a stable sort is ten times slower
        cosines = cosines[:, :, views - 1 - nearest : views - 1]
        least = 8.0 * xp.finfo(x.dtype).eps  # views that are all alike are apart by rounding only
        return cls(gram, _at_least(xp, 1.0 - xp.mean(cosines, axis=-1), least))


class MTA(Adapter):
    """MeanShift for test-time augmentation.

    With E the unit views of an image, P = softmax of their CLIP logits and h_j the bandwidth of
    view j, the inlierness y and the mode m are a joint fixed point of

        density_j = exp(-|E_j - m|^2 / (2 h_j^2))
        y = softmax((density + lambda_q P P^T y) / lambda_y)
        m = unit(sum_j density_j y_j E_j)

    and the logits are CLIP's at m.

    Parameters
    ----------
    lambda_q
        Weight of views that agree in what they show.
    lambda_y
        Temperature of the inlierness: the higher, the more even.
    iterations
        Rounds over both equations, 5 in the paper; None runs to the fixed point.
    inner, tolerance
        Steps for each equation in a round, at most, and the step length that ends them.

    Notes
    -----
    O(V C d + V^2 (C + d) + iterations inner V^2) an image, no state.

    Two views agree with the first; two show other things and get no weight:

    Examples
    --------
    >>> import numpy as np
    >>> views = np.array([[[1.0, 0.1, 0], [1, 0.2, 0], [1, 0, 0.1], [0, 1, 0.1], [0.1, 0, 1]]])
    >>> mta = MTA(np.eye(3), logit_scale=10.0)
    >>> mta.adapt(views).round(1).tolist()
    [[10.0, 1.0, 0.0]]
    >>> mta.solve(views)[1].round(2).tolist()
    [[0.92, 0.04, 0.04, 0.0, 0.0]]
    """

    card: ClassVar[Card] = Card(
        "mta",
        title="MTA",
        colour="#546b40",
        family="episodic",
        needs={"views"},
        min_views=5,  # with fewer, a view has no nearest 30% of the others
        provenance="official algorithm",
        paper=PaperSettings(views=PaperViews(CROPS, CROPS, CROPS), one_prompt=True),
    )

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        lambda_q: float = 4.0,
        lambda_y: float = 0.2,
        iterations: int | None = 5,
        inner: int = 5,
        tolerance: float = 1e-6,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.lambda_q = at_least_zero(lambda_q, "lambda_q")
        self.lambda_y = positive(lambda_y, "lambda_y")
        self.iterations = None if iterations is None else whole(iterations, "iterations")
        self.inner = whole(inner, "inner")
        self.tolerance = positive(tolerance, "tolerance")

    @cached_property
    def _columns(self) -> np.ndarray:
        """(d, C) scaled text: in this order the products per image are faster."""
        return np.ascontiguousarray(self._scaled_text.T)

    def solve(self, features: Array) -> tuple[Array, Array]:
        """The mode (n, d) of each image's views and their inlierness (n, V)."""
        batch = self._read(features)
        xp, text = batch.xp, self._mirror("columns", self._columns, batch)
        blocks = [
            self._modes(xp, x, Views.of(xp, x), text) for x in view_blocks(batch, self.n_classes)
        ]
        return xp.concat([mode for mode, _ in blocks]), xp.concat([y for _, y in blocks])

    def _logits(self, batch: Batch) -> Array:
        xp, text = batch.xp, self._mirror("columns", self._columns, batch)
        blocks = [
            self._modes(xp, x, Views.of(xp, x), text)[0] @ text
            for x in view_blocks(batch, self.n_classes)
        ]
        return blocks[0] if len(blocks) == 1 else xp.concat(blocks)

    def _modes(self, xp: Any, x: Array, views: Views, text: Array) -> tuple[Array, Array]:
        """(m, d) modes and (m, V) inlierness of (m, V, d) views; `text` is (d, C), scaled."""
        logits = x @ text[None, :, :]  # (m, V, C), a product per image
        # The product of two smaller probabilities is denormal: worth nothing and slow.
        logits -= xp.max(logits, axis=-1, keepdims=True)
        shares = xp.exp(_at_least(xp, logits, -40.0))
        shares /= xp.sum(shares, axis=-1, keepdims=True)
        affinity = shares @ xp.permute_dims(shares, (0, 2, 1))

        y = xp.full_like(x[:, :, 0], 1.0 / x.shape[1])
        weights = xp.zeros_like(y)  # the mode is weights @ views
        weights[:, 0] = 1.0
        cosines = views.gram[:, 0, :]  # of the mode and each view
        moving = xp.ones_like(y[:, 0], dtype=xp.bool)
        for _ in range(_ROUNDS_AT_MOST if self.iterations is None else self.iterations):
            new_y = self._inlierness(xp, views, affinity, cosines, y)
            new_weights, new_cosines = self._shift(xp, views, new_y, weights, cosines)
            far = _length(xp, new_y - y, new_y - y) >= self.tolerance
            far = far | (
                _length(xp, new_weights - weights, new_cosines - cosines) >= self.tolerance
            )
            y = _where(xp, moving, new_y, y)
            weights = _where(xp, moving, new_weights, weights)
            cosines = _where(xp, moving, new_cosines, cosines)
            if self.iterations is None:
                moving = moving & far
                if not bool(xp.any(moving)):
                    break
        return (weights[:, None, :] @ x)[:, 0, :], y

    def _inlierness(
        self, xp: Any, views: Views, affinity: Array, cosines: Array, y: Array
    ) -> Array:
        """y = softmax((density + lambda_q A y) / lambda_y), a few steps."""
        density = xp.exp((cosines - 1.0) / views.squared_bandwidths)
        moving = xp.ones_like(y[:, 0], dtype=xp.bool)
        for _ in range(self.inner):
            agreement = _apply(affinity, y)
            new = softmax(xp, (density + self.lambda_q * agreement) / self.lambda_y)
            step = _length(xp, new - y, new - y)
            y = _where(xp, moving, new, y)
            moving = moving & (step >= self.tolerance)
            if not bool(xp.any(moving)):
                break
        return y

    def _shift(
        self, xp: Any, views: Views, y: Array, weights: Array, cosines: Array
    ) -> tuple[Array, Array]:
        """mode = unit(sum of density y E), a few steps of mean shift."""
        moving = xp.ones_like(y[:, 0], dtype=xp.bool)
        for _ in range(self.inner):
            log_density = (cosines - 1.0) / views.squared_bandwidths
            # Only the direction counts: relative to the nearest view nothing underflows.
            pull = y * xp.exp(log_density - xp.max(log_density, axis=-1, keepdims=True))
            pulled = _apply(views.gram, pull)
            length = _length(xp, pull, pulled)[:, None]
            new_weights, new_cosines = pull / length, pulled / length
            step = _length(xp, new_weights - weights, new_cosines - cosines)
            weights = _where(xp, moving, new_weights, weights)
            cosines = _where(xp, moving, new_cosines, cosines)
            moving = moving & (step >= self.tolerance)
            if not bool(xp.any(moving)):
                break
        return weights, cosines


def _apply(matrices: Array, vectors: Array) -> Array:
    """(m, V, V) symmetric matrices times (m, V) vectors."""
    return (matrices @ vectors[:, :, None])[:, :, 0]


def _length(xp: Any, weights: Array, products: Array) -> Array:
    """(m,) lengths of vectors; of weights @ views, from weights and gram @ weights."""
    return xp.sqrt(xp.abs(xp.vecdot(weights, products)))  # below zero by rounding only


def _at_least(xp: Any, x: Array, least: float) -> Array:
    return xp.maximum(x, xp.asarray(least, dtype=x.dtype))


def _where(xp: Any, rows: Array, one: Array, other: Array) -> Array:
    return xp.where(rows[:, None], one, other)
