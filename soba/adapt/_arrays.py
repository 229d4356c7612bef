"""Arrays of any library in, plain numpy inside: input checks, unit rows, softmax, entropy.

Products, softmax and entropy run in the caller's array library; what is kept lives in numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat
import numpy as np

Array = Any  # a numpy array, torch tensor, ...: whatever array-api-compat knows

_BLOCK_LOGITS = 1 << 18  # handled at a time, so that they stay in the cache


@dataclass
class Batch:
    """Checked input: unit rows (n, d), or views (n, V, d), with their array library."""

    xp: Any
    x: Array
    single: bool  # the caller gave one (d,) feature and wants one (C,) row back

    def __len__(self) -> int:
        return int(self.x.shape[0])

    @property
    def views(self) -> bool:
        return bool(self.x.ndim == 3)

    @cached_property
    def device(self) -> Any:
        return array_api_compat.device(self.x)

    def unwrap(self, rows: Array) -> Array:
        return rows[0] if self.single else rows


@dataclass
class ClipScores:
    """What frozen CLIP says of some samples."""

    features: Array  # (n, d); for views, the mean of the surest ones
    logits: Array  # (n, C)
    labels: np.ndarray  # (n,)
    entropies: np.ndarray  # (n,)
    confidences: np.ndarray  # (n,) probability of the label
    probs: Array | None  # (n, C), on request


def read_batch(features: Array, width: int, *, normalise: bool = True) -> Batch:
    """Check features of shape (d,), (n, d) or (n, V, d) and normalise their rows.

    Without `normalise` rows keep their lengths: for methods that weigh augmentations by them.
    """
    xp, x = _floating(features, "features")
    if x.ndim not in (1, 2, 3):
        raise ValueError(f"features must have shape (d,), (n, d) or (n, V, d), not {_shape(x)}")
    if x.shape[-1] != width:
        raise ValueError(
            f"features have {x.shape[-1]} dimensions where the text features have {width}"
        )
    if x.ndim == 3 and x.shape[1] == 0:
        raise ValueError(f"features of shape {_shape(x)} hold no views")
    single = x.ndim == 1
    rows = x[None, :] if single else x
    unit = _unit(xp, rows, "features")
    return Batch(xp, unit if normalise else rows, single)


def unit_rows(x: np.ndarray, what: str = "features") -> np.ndarray:
    """Host rows divided by their lengths, in float32."""
    unit: np.ndarray = _unit(np, x, what).astype(np.float32, copy=False)
    return unit


def read_text(text_features: Array, *, per_prompt: bool = False) -> np.ndarray:
    """Check text features and return them as unit rows: (C, d) float32 on the host.

    With `per_prompt`, (P, C, d): a text matrix per prompt, a plain (C, d) counting as one.
    """
    _, x = _floating(text_features, "text features")
    if per_prompt and x.ndim == 2:
        x = x[None, :, :]
    if x.ndim != (3 if per_prompt else 2):
        shapes = "(P, C, d) or (C, d)" if per_prompt else "(C, d)"
        raise ValueError(f"text features must have shape {shapes}, not {_shape(x)}")
    if 0 in _shape(x):
        raise ValueError(f"text features of shape {_shape(x)} hold no classes: the list is empty")
    host = np.array(to_host(x), np.float64)
    if per_prompt:
        rows = [_unit(np, one, f"text features of prompt {i}") for i, one in enumerate(host)]
        return np.stack(rows).astype(np.float32)
    unit: np.ndarray = _unit(np, host, "text features").astype(np.float32)
    return unit


def read_ids(ids: Any, n: int) -> np.ndarray:
    """Check sample ids: int64, 0 or more, one a sample, none twice."""
    given = to_host(ids) if array_api_compat.is_array_api_obj(ids) else np.asarray(ids)
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"ids must be integers, not {given.dtype}")
    given = np.atleast_1d(given)
    if given.shape != (n,):
        raise ValueError(f"ids must have shape ({n},), one a sample, not {given.shape}")
    if n and int(given.min()) < 0:
        raise ValueError(
            f"ids must be 0 or more, not {int(given.min())}: "
            "negative ones are for samples that come without an id"
        )
    if n and int(given.max()) >= np.iinfo(np.int64).max:
        raise ValueError("ids must be smaller than the largest int64")
    given = given.astype(np.int64)
    if n > 1 and len(np.unique(given)) < n:
        raise ValueError("ids repeat within the call: each sample needs an id of its own")
    return given


def read_labels(labels: Any, n: int, classes: int) -> np.ndarray:
    """Check class labels: integers in [0, C), one a sample."""
    given = to_host(labels) if array_api_compat.is_array_api_obj(labels) else np.asarray(labels)
    if given.dtype.kind not in "iu":
        raise TypeError(f"labels must be integers, not {given.dtype}")
    if given.shape != (n,):
        raise ValueError(f"labels must have shape ({n},), one a sample, not {given.shape}")
    if n and (int(given.min()) < 0 or int(given.max()) >= classes):
        low, high = int(given.min()), int(given.max())
        raise ValueError(f"labels out of range: {low} to {high} where there are {classes} classes")
    return given.astype(np.int64)


def score_with_clip(batch: Batch, text: Array, *, probs: bool = False) -> ClipScores:
    """The one way from input to (feature, CLIP logits, pseudo-label, entropy).

    `text` is the scaled text matrix in the batch's library. Views follow TDA's loader: of V
    views the max(1, V // 10) surest; their mean feature (not renormalised) and mean logits;
    the entropy of their mean probability.
    """
    if batch.views:
        return _join(
            batch.xp,
            [
                _surest_views(batch.xp, x, view_logits(batch.xp, x, text), probs)
                for x in view_blocks(batch, text.shape[0])
            ],
        )
    xp, n = batch.xp, len(batch)
    logits = batch.x @ text.T
    step = max(64, _BLOCK_LOGITS // text.shape[0])
    if n <= step:
        labels, entropies, confidences = confidence(xp, logits)
    else:
        # One large product, then blocks that stay in the cache for what follows.
        labels, entropies, confidences = np.empty(n, np.int64), np.empty(n), np.empty(n)
        for start in range(0, n, step):
            rows = slice(start, start + step)
            labels[rows], entropies[rows], confidences[rows] = confidence(xp, logits[rows, :])
    asked = softmax(xp, logits) if probs else None
    return ClipScores(batch.x, logits, labels, entropies, confidences, asked)


def clip_logits(batch: Batch, text: Array) -> tuple[Array, Array]:
    """The feature and the CLIP logits of `score_with_clip`, cheaper where that is all."""
    if batch.views:
        clip = score_with_clip(batch, text)
        return clip.features, clip.logits
    return batch.x, batch.x @ text.T


def distances(batch: Batch, x: Array, prototypes: Array, metric: str) -> Array:
    """(m, C) l1 or l2 distances, from the differences themselves.

    The product form of l2 is faster, but next to a prototype it rounds 0 up to 1e-3.
    """
    xp = batch.xp
    step = max(1, (1 << 22) // (prototypes.shape[0] * prototypes.shape[1]))
    blocks = []
    for start in range(0, x.shape[0], step):
        gaps = x[start : start + step, None, :] - prototypes[None, :, :]
        if metric == "l1":
            blocks.append(xp.sum(xp.abs(gaps), axis=-1))
        else:
            blocks.append(xp.sqrt(xp.vecdot(gaps, gaps)))
    return blocks[0] if len(blocks) == 1 else xp.concat(blocks)


def softmax(xp: Any, logits: Array) -> Array:
    e = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def to_host(x: Array) -> np.ndarray:
    """The array as numpy, without a copy where it lies on the host already."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach"):
        x = x.detach()
    return np.asarray(array_api_compat.to_device(x, "cpu"))


def like(batch: Batch, array: np.ndarray) -> Array:
    """A host array in the library, dtype and device of a batch."""
    xp, x = batch.xp, batch.x
    if isinstance(x, np.ndarray):
        return array if array.dtype == x.dtype or array.dtype.kind != "f" else array.astype(x.dtype)
    moved = xp.asarray(array, device=array_api_compat.device(x))
    return xp.astype(moved, x.dtype) if array.dtype.kind == "f" else moved


def view_blocks(batch: Batch, classes: int) -> Iterator[Array]:
    """The views (m, V, d) of a few samples at a time; one empty block where there are none."""
    views = int(batch.x.shape[1])
    step = max(1, 2 * _BLOCK_LOGITS // (views * max(classes, views)))
    for start in range(0, max(len(batch), 1), step):
        yield batch.x[start : start + step, ...]


def view_logits(xp: Any, x: Array, text: Array) -> Array:
    """(m, V, d) views -> (m, V, C) logits, as one product: faster than one a sample."""
    m, views, width = x.shape
    return xp.reshape(xp.reshape(x, (m * views, width)) @ text.T, (m, views, text.shape[0]))


def confidence(xp: Any, logits: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n, C) logits -> argmax, entropy and largest probability of the softmax.

    With the largest term left out of the sum, log1p keeps entropies of 1e-20 apart that
    log(sum) would round to 0; and the surest samples are the ones the queue has to tell apart.
    """
    if isinstance(logits, np.ndarray) and len(logits) == 1:
        return _confidence_of_one(logits[0])
    labels = xp.argmax(logits, axis=-1)
    rows = xp.arange(logits.shape[0])
    below = logits - logits[rows, labels][:, None]
    e = xp.exp(below)
    e[rows, labels] = 0.0
    rest = xp.sum(e, axis=-1)
    entropies = xp.log1p(rest) - xp.vecdot(e, below) / (1.0 + rest)
    return (
        to_host(labels),
        to_host(entropies).astype(np.float64),
        to_host(1.0 / (1.0 + rest)).astype(np.float64),
    )


def _confidence_of_one(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same of one row, in half of the time: streams live here."""
    label = int(logits.argmax())
    below = logits - logits[label]
    e = np.exp(below)
    e[label] = 0.0
    rest = float(e.sum())
    entropy = math.log1p(rest) - float(np.vecdot(e, below)) / (1.0 + rest)
    return np.array([label]), np.array([entropy]), np.array([1.0 / (1.0 + rest)])


def _join(xp: Any, parts: list[ClipScores]) -> ClipScores:
    if len(parts) == 1:
        return parts[0]
    return ClipScores(
        xp.concat([part.features for part in parts]),
        xp.concat([part.logits for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.entropies for part in parts]),
        np.concatenate([part.confidences for part in parts]),
        None if parts[0].probs is None else xp.concat([part.probs for part in parts]),
    )


def _surest_views(xp: Any, x: Array, logits: Array, want_probs: bool) -> ClipScores:
    n, views, classes = logits.shape
    _, entropies, _ = confidence(xp, xp.reshape(logits, (n * views, classes)))
    order = np.argsort(entropies.reshape(n, views), axis=1, kind="stable")
    keep = max(1, views // 10)
    weights = np.zeros((n, 1, views), np.float32)
    np.put_along_axis(weights[:, 0], order[:, :keep], 1.0 / keep, axis=1)
    mean = like(Batch(xp, x, False), weights)
    probs = (mean @ softmax(xp, logits))[:, 0, :]
    surest = (mean @ logits)[:, 0, :]
    tiny = xp.finfo(probs.dtype).smallest_normal
    logs = xp.log(xp.maximum(probs, xp.asarray(tiny, dtype=probs.dtype)))
    entropy = xp.maximum(-xp.vecdot(probs, logs), xp.zeros_like(probs[:, 0]))
    labels = to_host(xp.argmax(surest, axis=-1))
    return ClipScores(
        (mean @ x)[:, 0, :],
        surest,
        labels,
        to_host(entropy).astype(np.float64),
        to_host(probs)[np.arange(n), labels].astype(np.float64),
        probs if want_probs else None,
    )


def _floating(array: Array, what: str) -> tuple[Any, Array]:
    """The array's namespace, and the array in float32 or float64."""
    if not array_api_compat.is_array_api_obj(array):
        array = np.asarray(array)
    if hasattr(array, "detach"):
        array = array.detach()
    xp = array_api_compat.array_namespace(array)
    if isinstance(array, np.ndarray):  # which has kinds of numbers that no other library has
        floating = array.dtype.kind == "f"
    else:
        floating = xp.isdtype(array.dtype, "real floating")
    if not floating:
        raise TypeError(f"{what} must be floating point, not {array.dtype}")
    if array.dtype not in (xp.float32, xp.float64):
        array = xp.astype(array, xp.float32)
    return xp, array


def _unit(xp: Any, x: Array, what: str) -> Array:
    """Rows divided by their length; one look at the lengths finds NaN, inf and zero rows."""
    if isinstance(x, np.ndarray) and x.ndim == 2 and len(x) == 1 and _is_unit(x[0]):
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        squares = xp.vecdot(x, x)
        if not bool(xp.all((squares > 1e-30) & (squares < 1e30))):
            # So small or large that the squares round or overflow, or not to be normalised.
            peak = xp.max(xp.abs(x), axis=-1, keepdims=True)
            x = x / xp.where((peak > 0) & xp.isfinite(peak), peak, xp.ones_like(peak))
            squares = xp.vecdot(x, x)
        fine = xp.isfinite(squares) & (squares > 0)
    if not bool(xp.all(fine)):
        bad = np.argwhere(~to_host(fine))[0]
        where = "row " + ", view ".join(str(int(i)) for i in bad)
        zero = bool(np.all(to_host(squares)[tuple(bad)] == 0))
        raise ValueError(
            f"{what}: {where} is all zeros, it has no direction"
            if zero
            else f"{what}: {where} holds NaN or infinite values"
        )
    # Rows that are unit already stay as they are: most feature files hold such rows, and a
    # division would cost as much as an eighth of the product that follows.
    unit = xp.abs(squares - 1.0) <= 1e-6
    if bool(xp.all(unit)):
        return x
    lengths = xp.where(unit, xp.ones_like(squares), xp.sqrt(squares))
    return x / lengths[..., None]


def _is_unit(row: np.ndarray) -> bool:
    """Whether one row is of unit length already, as most are: streams live here."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(abs(row @ row - 1.0) <= 1e-6)


def _shape(x: Array) -> tuple[int, ...]:
    return tuple(int(size) for size in x.shape)
