"""Regimes: which images come, and when. Labels and a seed in, positions of images out.

A method that is good in one regime can do harm in another, so each asks a question of its own: are
most classes absent, do they come one after the other, are there few images, are the classes uneven.
Every regime starts from the same two draws, a shuffle of the images and one of the classes, so that
the orders of one seed are comparable.
"""

from __future__ import annotations

import numpy as np

from soba.bench.orders import sorted_by_class

FEW = 4  # images of a class
SLOTS = 20  # in time, for bursts

# Of the samplers that StatA is judged by (its scripts): images of a batch, and the least and most
# classes in it; concentrations of a stream that has as many slots in time as there are classes.
STATA_BATCHES = (
    (64, 1, 4),
    (64, 2, 10),
    (64, 5, 25),
    (1000, 5, 25),
    (1000, 25, 50),
    (1000, 50, 100),
)
STATA_STREAMS = (0.1, 0.01, 0.001)


def shuffled(labels: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """All images by chance, the order of the literature."""
    return rng.permutation(len(labels))


def quarter(labels: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Three of four listed classes never come; two at least do."""
    order, turn = rng.permutation(len(labels)), rng.permutation(classes)
    turn = turn[np.isin(turn, labels)]  # a class without images cannot be present
    return order[np.isin(labels[order], turn[: max(2, classes // 4)])]


def by_class(labels: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """One class after the other: what comes is unlike all that came before."""
    order, turn = rng.permutation(len(labels)), rng.permutation(classes)
    return sorted_by_class(labels, order, turn)


def few(labels: np.ndarray, classes: int, rng: np.random.Generator, most: int = FEW) -> np.ndarray:
    """At most so many images of a class."""
    order = rng.permutation(len(labels))
    return order[rank_within(labels[order]) < most]


def zipf(labels: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """The r-th class of a random ranking has at most the r-th part of the largest class."""
    order, rank = rng.permutation(len(labels)), 1 + rng.permutation(classes)
    largest = np.bincount(labels).max()
    most = np.maximum(1, largest // rank)
    kept: np.ndarray = order[rank_within(labels[order]) < most[labels[order]]]
    return kept


def bursts(
    labels: np.ndarray,
    classes: int,
    rng: np.random.Generator,
    concentration: float,
    slots: int = SLOTS,
) -> np.ndarray:
    """Classes come in bursts: each falls into few of the slots in time, by a Dirichlet draw.

    The smaller the concentration, the fewer slots a class has.
    """
    order = rng.permutation(len(labels))
    rng.permutation(classes)  # not used, but drawn: see the module
    slot = np.empty(len(order), np.int64)
    for label in range(classes):
        places = np.flatnonzero(labels[order] == label)
        share = rng.dirichlet(np.full(slots, concentration))
        slot[places] = rng.choice(slots, len(places), p=share)
    return order[np.argsort(slot, kind="stable")]


def batches(
    labels: np.ndarray, classes: int, rng: np.random.Generator, together: int = 4
) -> list[np.ndarray]:
    """Sets of so many classes each, all their images; ten sets at most."""
    turn = rng.permutation(classes)
    turn = turn[np.isin(turn, labels)][: 10 * together]
    return [
        np.flatnonzero(np.isin(labels, turn[at : at + together]))
        for at in range(0, len(turn), together)
    ]


def stata_batches(
    labels: np.ndarray,
    classes: int,
    rng: np.random.Generator,
    size: int,
    least: int,
    most: int,
) -> list[np.ndarray]:
    """Sets of `least` to `most` present classes, `size` of their images by chance, or all.

    StatA draws a thousand; here there are as many as fill the whole set once.
    """
    present = np.unique(labels)
    sets = []
    for _ in range(-(-len(labels) // size)):
        count = min(int(rng.integers(least, most + 1)), len(present))
        chosen = rng.choice(present, count, replace=False)
        sets.append(rng.permutation(np.flatnonzero(np.isin(labels, chosen)))[:size])
    return sets


def rank_within(labels: np.ndarray) -> np.ndarray:
    """For each position, how many before it have the same label.

    Examples
    --------
    >>> rank_within(np.array([5, 7, 5, 5, 7])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels)
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank
