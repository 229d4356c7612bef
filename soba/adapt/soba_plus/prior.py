"""The class prior of SOBA+: which classes of the list come, and how far that is believed.

pi_k is the share of class k among what CLIP is sure of: each image counts as its sureness, 1 - H /
log C, since what CLIP does not know of an image says nothing of which classes there are. It is
counted from responsibilities, so EM sharpens it.

h is the gain in nats an image over "all classes alike", times the mean sureness: a CLIP that is
unsure of most images knows little of which classes there are. It is asked twice:

- EM looks back, so there pi counts as far as it describes the images it was counted from.
- Answers look forward, so there pi counts as far as it predicted images that came after those it
  was counted from: not at all in streams sorted by class, in full where most of the list is absent.
"""

from __future__ import annotations

import itertools

import numpy as np

TELLING = 0.25  # nats an image by which a sure CLIP's pi has to beat "all alike" to count in full
GROWTH = 25  # percent from one refresh to the next, and from one block that is predicted
FIRST = 16  # images before the first of them, or C / 2


def sureness(doubt: np.ndarray, classes: int) -> np.ndarray:
    """(n,) 1 - H / log C, from CLIP's doubt (n,)."""
    sure: np.ndarray = np.maximum(1.0 - doubt / np.log(max(classes, 2)), 0.0)
    return sure


def log_prior(counts: np.ndarray) -> np.ndarray:
    """(C,) log(C pi) of counts, with one image more for every class."""
    classes = len(counts)
    logs: np.ndarray = np.log(classes * (counts + 1.0) / (counts.sum() + classes))
    return logs


def belief(gain: float, sure: float) -> float:
    """h, of the nats gained by prediction and the mean sureness."""
    return min(max(gain * sure / TELLING, 0.0), 1.0)


def described(counts: np.ndarray, squares: np.ndarray, images: float) -> float:
    """h, from the sums (C,) of what some images count for each class, and of its squares.

    Each image is described by the others: without its own count c, log(n + 1) is c / (n + 1) less.
    """
    gain = float(counts @ log_prior(counts)) - float((squares / (counts + 1.0)).sum())
    return belief(gain / images, float(counts.sum()) / images)


def blocks_in_time(places: np.ndarray, classes: int) -> list[np.ndarray]:
    """Rows by their places in the stream, cut where a quarter more had come.

    Rows of one place have no order, so they stay together.
    """
    order = np.argsort(places, kind="stable")
    in_order = places[order]
    edges, edge = [0], max(FIRST, classes // 2)
    while edge < len(order):
        edge = int(np.searchsorted(in_order, in_order[edge - 1], side="right"))
        edges.append(edge)
        edge += edge * GROWTH // 100 + 1
    return [order[a:b] for a, b in itertools.pairwise([*edges, len(order)]) if a < b]


def predicted(counts: np.ndarray, images: np.ndarray) -> float:
    """h, from the sure counts (B, C) of blocks in time and how many images these have, (B,)."""
    before = np.cumsum(counts, axis=0)
    gain = sum(float(now @ log_prior(then)) for now, then in zip(counts[1:], before, strict=False))
    later = float(images[1:].sum())
    return belief(gain / later, float(counts.sum() / images.sum())) if later else 0.0
