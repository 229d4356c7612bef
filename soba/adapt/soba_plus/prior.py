"""The class prior of SOBA+: which classes of the list come, and how far that is to be believed.

pi_k is the share of class k among what CLIP is sure of: each image counts as 1 - H / log C, since
what CLIP does not know of an image says nothing of which classes there are. h is how well pi
predicted the images that came after those it was made of, in nats an image: 0 where the order is
not by chance (streams sorted by class) or all classes come, 1 where most of the list is absent.
"""

from __future__ import annotations

import itertools

import numpy as np

TELLING = 0.5  # nats an image by which pi has to beat "all alike" to count in full
GROWTH = 0.25


def log_prior(counts: np.ndarray) -> np.ndarray:
    """(C,) log(C pi) of counts, with one image more for every class."""
    classes = len(counts)
    logs: np.ndarray = np.log(classes * (counts + 1.0) / (counts.sum() + classes))
    return logs


def believed(gain: float) -> float:
    """h, of nats an image that were gained by prediction."""
    return min(max(gain / TELLING, 0.0), 1.0)


def blocks_in_time(places: np.ndarray, classes: int) -> list[np.ndarray]:
    """Rows by their places in the stream, cut where a quarter more had come."""
    order = np.argsort(places, kind="stable")
    edges, edge = [0], max(16.0, classes / 2)
    while edge < len(order):
        edges.append(int(edge))
        edge = edge * (1.0 + GROWTH) + 1
    return [order[a:b] for a, b in itertools.pairwise([*edges, len(order)])]


def predicted_prior(counts: np.ndarray, images: float) -> np.ndarray:
    """(C,) h log(C pi) from counts (B, C) of blocks in time; `images` are those behind the first."""
    before = np.cumsum(counts, axis=0)
    gain = sum(float(now @ log_prior(then)) for now, then in zip(counts[1:], before, strict=False))
    return believed(gain / max(images, 1.0)) * log_prior(before[-1])
