"""New samples among those of a queue, in canonical order: who stays, and who enters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from soba.adapt._order import canonical_order, settle_twins

if TYPE_CHECKING:
    from soba.adapt.queue import EntropyQueue, Fetch


@dataclass(frozen=True)
class Ranking:
    """The members of some classes, then the new rows, numbered through; and who of them stays."""

    members: int  # how many of the rows are members
    slots: np.ndarray  # (members,) where their features are
    labels: np.ndarray
    entropies: np.ndarray  # copies of one image have one entropy
    ids: np.ndarray
    order: np.ndarray  # rows that stay: by class, entropy, id
    rank: np.ndarray  # of these, in their class

    @property
    def entering(self) -> np.ndarray:
        """The new rows that stay, numbered from 0, ascending."""
        return np.sort(self.order[self.order >= self.members] - self.members)


def ranked(
    queue: EntropyQueue,
    labels: np.ndarray,
    entropies: np.ndarray,
    ids: np.ndarray,
    features: Fetch,
) -> Ranking:
    """Sort new rows together with the members of their classes; the first of each class stay."""
    touched = np.zeros(queue.n_classes, bool)
    touched[labels] = True
    old_label, old_rank = np.nonzero(queue.filled & touched[:, None])
    slots = queue.slots[old_label, old_rank]
    old = len(old_label)
    all_labels = np.concatenate([old_label, labels])
    all_entropies = np.concatenate([queue.entropies[old_label, old_rank], entropies])
    all_ids = np.concatenate([queue.ids[old_label, old_rank], ids])

    def feature_rows(rows: np.ndarray) -> np.ndarray:
        stored, out = rows < old, np.empty((len(rows), queue.dim), np.float32)
        out[stored] = queue.features[old_label[rows[stored]], slots[rows[stored]]]
        out[~stored] = features(rows[~stored] - old)
        return out

    order = canonical_order(all_labels, all_entropies, all_ids)
    if queue.twin_tolerance and settle_twins(
        order, all_labels, all_entropies, all_ids, feature_rows, queue.twin_tolerance
    ):
        order = canonical_order(all_labels, all_entropies, all_ids)
    counts = np.bincount(all_labels, minlength=queue.n_classes)
    rank = np.arange(len(order)) - (np.cumsum(counts) - counts)[all_labels[order]]
    if queue.capacity is not None:
        order, rank = order[rank < queue.capacity], rank[rank < queue.capacity]
    return Ranking(old, slots, all_labels, all_entropies, all_ids, order, rank)
