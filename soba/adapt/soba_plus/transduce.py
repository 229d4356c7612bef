"""Whole sets: the same model by EM over all images, in blocks that a cluster may sum up.

A person with a folder has no stream: every image may speak for every other. No image comes later
that the class prior could predict, so it is believed as far as it describes the set.

The statistics of blocks add, so that a cluster can map `em_statistics` over shards, add in shard
order and go on with `em_update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import array_api_compat
import numpy as np

from soba.adapt._arrays import Array, Batch, like, read_batch, score_with_clip, softmax, to_host
from soba.adapt._values import whole
from soba.adapt.soba_plus.answer import add_experts, agreement, overconfidence, pool
from soba.adapt.soba_plus.fit import ROUNDS
from soba.adapt.soba_plus.model import Gaussians, Shares, fit_gaussians
from soba.adapt.soba_plus.prior import described, log_prior, sureness
from soba.adapt.transductive import check_out

_BLOCK_LOGITS = 1 << 21  # scored at a time: products want many rows, memory few


@dataclass(frozen=True)
class EMModel:
    """What scores a block; without Gaussians it is plain CLIP."""

    text: np.ndarray  # (C, d) text features times the logit scale, float32
    gaussians: Gaussians | None = None
    prior: np.ndarray | None = None  # (C,) h log(C pi)
    overconfidence: float = 1.0
    # Measured in the first round only, under plain CLIP.
    second_moments: np.ndarray | None = None  # (d, d) sum of f f^T
    belief: float = 0.0  # h

    def logits(self, batch: Batch) -> Array:
        """(m, d) rows -> (m, C), in the batch's library."""
        clip = score_with_clip(batch, like(batch, self.text))
        if self.gaussians is None or self.prior is None:
            return clip.logits
        model = self.gaussians
        scores = batch.x @ like(batch, model.weights).T + like(batch, model.bias)
        doubt = batch.xp.asarray(clip.entropies, dtype=scores.dtype, device=batch.device)
        evidence, prior = like(batch, model.evidence), like(batch, self.prior)
        summary = np.array([self.overconfidence, model.average_evidence])
        rivals = prior - batch.xp.max(prior)
        pool(batch.xp, clip.logits, scores, doubt, evidence, prior, summary, rivals)
        return clip.logits


@dataclass(frozen=True)
class EMStatistics:
    """Sums over images, in float64: those of two blocks add up to those of both."""

    count: int
    shares: Shares
    sure: np.ndarray  # (2, C) responsibilities, by how sure CLIP is of each image; their squares
    agreement: np.ndarray  # (2,) how often two draws agree: both CLIP's, and one of the model's
    second_moments: np.ndarray | None = None  # where the model does not know them yet

    def __add__(self, other: EMStatistics) -> EMStatistics:
        moments, others = self.second_moments, other.second_moments
        if (moments is None) != (others is None):
            raise ValueError("statistics add under one model: only one of these has its scatter")
        return EMStatistics(
            self.count + other.count,
            self.shares + other.shares,
            self.sure + other.sure,
            self.agreement + other.agreement,
            None if moments is None or others is None else moments + others,
        )


def em_statistics(block: Batch, model: EMModel) -> EMStatistics:
    """The E step on some rows: their responsibilities, summed up."""
    xp, x = block.xp, block.x
    clip = score_with_clip(block, like(block, model.text))
    own = softmax(xp, clip.logits)
    doubt = xp.asarray(clip.entropies, dtype=own.dtype, device=block.device)
    told, shares = own, own
    if model.gaussians is not None and model.prior is not None:
        fitted, prior = model.gaussians, like(block, model.prior)
        scores = x @ like(block, fitted.weights).T + like(block, fitted.bias)
        told = softmax(xp, scores + prior)
        scores += like(block, fitted.width)
        rivals = prior - xp.max(prior)
        add_experts(xp, clip.logits, scores, doubt, like(block, fitted.evidence), prior, rivals)
        shares = softmax(xp, clip.logits)
    sure = like(block, sureness(clip.entropies, len(model.text)).astype(np.float32))
    sure_squares = (sure * sure) @ (shares * shares)
    wide = {"axis": 0, "dtype": xp.float64}
    return EMStatistics(
        len(block),
        Shares(
            to_host(xp.sum(shares, **wide)),
            to_host(xp.sum(shares * shares, **wide)),
            to_host(shares.T @ x).astype(np.float64),
        ),
        np.stack([to_host(sure @ shares), to_host(sure_squares)]).astype(np.float64),
        np.array(agreement(xp, own, told, xp.ones_like(doubt))),
        to_host(x.T @ x).astype(np.float64) if model.second_moments is None else None,
    )


def em_update(statistics: EMStatistics, model: EMModel) -> EMModel:
    """The M step: the model that `statistics`, summed up under `model`, ask for.

    Plain CLIP where they hold too little: no scatter within any class.
    """
    sure, squares = statistics.sure
    if statistics.second_moments is not None:
        h = described(sure, squares, max(statistics.count, 1))
        model = replace(model, second_moments=statistics.second_moments, belief=h)
    if model.second_moments is None:
        raise ValueError("neither the statistics nor the model know the scatter")
    text = model.text / np.linalg.norm(model.text, axis=1, keepdims=True)
    gaussians = fit_gaussians(statistics.shares, model.second_moments, text)
    evidence = 0.0 if gaussians is None else gaussians.average_evidence
    alike, other = map(float, statistics.agreement)
    return replace(
        model,
        gaussians=gaussians,
        prior=(model.belief * log_prior(sure)).astype(np.float32),
        overconfidence=overconfidence(alike, other, evidence),
    )


def transduce(text: np.ndarray, features: Array, rounds: int, out: Array | None) -> Array:
    """The logits of a whole set: EM over its blocks, then one pass to score.

    `text` holds the text features times the logit scale. See `soba.SOBAPlus.transduce`.
    """
    rows = _Rows(features, text)
    if out is not None:
        check_out(out, rows.first, rows.shape_out)
    return rows.scored(em_rounds(text, rows.summed, rounds=rounds), out)


def em_fit(text: np.ndarray, features: Array, *, rounds: int = ROUNDS) -> EMModel:
    """The model that `transduce` scores with, for those who score a block at a time."""
    return em_rounds(text, _Rows(features, text).summed, rounds=rounds)


def em_rounds(
    text: np.ndarray,
    statistics_of: Callable[[EMModel], EMStatistics | None],
    *,
    rounds: int = ROUNDS,
) -> EMModel:
    """E and M in turn; who sums up, and where, is the caller's.

    `statistics_of` gives the statistics of all images under a model, None where there are none.
    """
    model = EMModel(text)
    for _ in range(whole(rounds, "rounds", least=0)):
        statistics = statistics_of(model)
        if statistics is None:
            break
        model = em_update(statistics, model)
        if model.gaussians is None:
            break
    return model


def sum_up(blocks: Iterator[Batch], model: EMModel) -> EMStatistics | None:
    """The statistics of all blocks, added in their order; None where there are no blocks."""
    total: EMStatistics | None = None
    for block in blocks:
        statistics = em_statistics(block, model)
        total = statistics if total is None else total + statistics
    return total


def block_rows(classes: int) -> int:
    """How many rows are scored at a time."""
    return min(max(_BLOCK_LOGITS // classes, 64), 8192)


class _Rows:
    """Features that are read a block at a time, as often as it takes: they may be on disk."""

    def __init__(self, features: Array, text: np.ndarray) -> None:
        if not array_api_compat.is_array_api_obj(features):
            features = np.asarray(features)
        # The first row, or none, is read to check kind and shape, and to know the kind of results.
        first = read_batch(features if features.ndim < 2 else features[:1], text.shape[1])
        if first.single:
            raise ValueError(f"transduce takes a set, (n, {text.shape[1]}) features, not one row")
        self._features, self._text, self.first = features, text, first
        classes = len(text)
        self._step = block_rows(classes)
        if first.views:
            self._step = max(1, self._step // int(features.shape[1]))
        self.shape_out = (int(features.shape[0]), classes)

    def blocks(self) -> Iterator[Batch]:
        """Checked unit rows; of views, what CLIP makes of them."""
        for start in range(0, int(self._features.shape[0]), self._step):
            yield self._block(start)

    def summed(self, model: EMModel) -> EMStatistics | None:
        return sum_up(self.blocks(), model)

    def _block(self, start: int) -> Batch:
        part = self._features[start : start + self._step, ...]
        try:
            batch = read_batch(part, self._text.shape[1])
        except ValueError as error:
            counted = f" (counted from row {start})" if start else ""
            raise ValueError(f"{error}{counted}") from error
        if not batch.views:
            return batch
        joined = score_with_clip(batch, like(batch, self._text)).features
        return Batch(batch.xp, joined, False)

    def scored(self, model: EMModel, out: Array | None) -> Array:
        xp, x = self.first.xp, self.first.x
        if out is None:
            out = xp.empty(self.shape_out, dtype=x.dtype, device=self.first.device)
        at = 0
        for block in self.blocks():
            out[at : at + len(block), :] = model.logits(block)
            at += len(block)
        return out
