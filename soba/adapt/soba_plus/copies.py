"""Near-copies share one weight, so that a camera that stands still counts once, not by its frames.

An image's weight is one over the number of images of the sample that are near-copies of it, itself
included. This is no partition: in a chain A ~ B ~ C, where A and C are no copies of each other, A
and C weigh 1/2 and B 1/3.

Images are compared where they share a cell of a keyed hash in one of its tables (E2LSH: projections
with random offsets, cut into cells of width 1). A cell depends on the image and the key alone.
Projections are not centred and need not be: cells measure distances, and the narrow cone in which
CLIP's features lie is wide beside the distance of copies. At d = 512 the hash finds 998 in 1,000
pairs of copies with noise of 0.002 a coordinate, at d = 1,024 it finds 99 in 100.

Features are rounded to multiples of 2^-12, which moves a cosine by about 0.0001 and by less than
0.001. Sums in float32 are then exact, so cells and weights depend on neither the order of the rows
nor the machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

# Noise of 0.002 in each of 1,024 coordinates leaves a cosine of 0.996, and of other images, even
# drawings with few details, fewer than 1 in 100 have a neighbour nearer than this.
COPY_COSINE = 0.99

# What follows bounds time and memory.
GRID = 4096  # steps in a unit
TABLES, PROJECTIONS = 8, 12  # of the hash, and in each table
LIMIT = 128  # images of a bucket that others are compared with
BATCH = 4096  # rows compared in one product


def copy_weights(features: np.ndarray, key: int) -> np.ndarray:
    """Weights (m,) of a sample's features (m, d), unit rows in the sample's order.

    In a bucket of more than LIMIT images, each is compared with the first LIMIT, and the number of
    copies found is scaled up to the bucket. The order is that of hashed ids, so this estimates the
    count from a uniform sample of the bucket; it is exact where the whole bucket are copies.

    O(m d) for the hash and O(LIMIT d) for each image in a bucket with others.
    """
    count = len(features)
    # A last row of zeros, which is no copy of anything, fills up blocks.
    rounded = np.zeros((count + 1, features.shape[1]), np.float32)
    np.multiply(features, GRID, out=rounded[:-1])
    np.rint(rounded, out=rounded)
    rounded /= GRID
    tables = _cells(rounded, key)
    alike = np.ones(count + 1)
    for table, cells in enumerate(tables):
        for rows, columns, scale in _blocks(cells[:-1]):
            found = _cosines(rounded[rows], rounded[columns]) >= COPY_COSINE
            found &= rows[:, :, None] != columns[:, None, :]
            if not found.any():
                continue
            for earlier in tables[:table]:  # a pair counts in the first table that it shares
                found &= earlier[rows][:, :, None] != earlier[columns][:, None, :]
            alike[rows] += scale[:, None] * found.sum(axis=2)
    weights: np.ndarray = 1.0 / alike[:-1]
    return weights


def _cells(rounded: np.ndarray, key: int) -> np.ndarray:
    """(TABLES, m): a number for the cell of each image; equal numbers are one bucket."""
    random = np.random.default_rng(key)
    total = TABLES * PROJECTIONS
    planes = 2 * random.integers(2, size=(rounded.shape[1], total)) - 1
    offsets = random.integers(GRID, size=total) / GRID
    mixing = random.integers(1 << 63, size=(TABLES, PROJECTIONS)) | 1
    places = rounded @ planes.astype(np.float32) + offsets.astype(np.float32)
    steps = np.floor(places).astype(np.int64).reshape(-1, TABLES, PROJECTIONS)
    cells: np.ndarray = np.einsum("mtp,tp->tm", steps, mixing, order="C")  # wraps around
    return cells


def _blocks(cells: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Rows (n, w), columns (n, w) to compare them with, and how many images a column stands for.

    Buckets of like size go together, filled up with the index m.
    """
    count = len(cells)
    order = np.argsort(cells, kind="stable")
    changes = np.diff(cells[order]) != 0
    starts = np.append(0, 1 + np.flatnonzero(changes))
    ends = np.append(starts[1:], count)
    sizes = ends - starts
    bucket = np.repeat(np.arange(len(starts)), sizes)
    within = np.arange(count) - starts[bucket]
    firsts = np.flatnonzero((sizes[bucket] > 1) & (within % LIMIT == 0))  # of the blocks
    widths = 1 << np.frexp(np.minimum(sizes[bucket[firsts]], LIMIT) - 1)[1]  # powers of two
    order = np.append(order, count)
    for width in np.unique(widths):
        same = firsts[widths == width]
        for batch in np.split(same, range(BATCH // width, len(same), BATCH // width)):
            start, end = starts[bucket[batch]], ends[bucket[batch]]
            others = np.minimum(end - start, LIMIT) - (batch == start)  # without itself
            rows, columns = (_members(order, begin, end, width) for begin in (batch, start))
            yield rows, columns, (end - start - 1) / others


def _members(order: np.ndarray, begin: np.ndarray, end: np.ndarray, width: int) -> np.ndarray:
    """(n, width): the images from each beginning to each end, filled up with the last index."""
    places = begin[:, None] + np.arange(width)
    members: np.ndarray = order[np.where(places < end[:, None], places, -1)]
    return members


def _cosines(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(n, w, d) and (n, w, d) -> (n, w, w)."""
    cosines: np.ndarray = rows @ columns.transpose(0, 2, 1)
    return cosines
