"""When samples would enter and leave a queue: for methods that score a block as if one by one."""

from __future__ import annotations

import numpy as np

from soba.adapt._order import arrival
from soba.adapt.queue import EntropyQueue


def lifetimes(
    queue: EntropyQueue, labels: np.ndarray, entropies: np.ndarray, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """When each sample would be in the queue if the rows were offered one after another.

    Row i of a block is in the queue from step i (if it enters at all) until the step at which
    it is pushed out. Returns `enters` (n,) bool; `leaves` (n,), the step at which each new row
    leaves (n: it stays); and `old_leaves` (C, slots), the same for the present members, by
    slot. Nothing is changed.
    """
    n, slots = len(ids), queue.entropies.shape[1]
    enters = np.zeros(n, bool)
    leaves = np.full(n, n)
    old_leaves = np.full((queue.n_classes, slots), n)
    capacity = queue.capacity
    members: dict[int, list[tuple[float, int, int]]] = {}  # class -> [(entropy, rank, column)]
    rows = np.flatnonzero(queue.admits(labels, entropies))
    for step, label, entropy, rank in zip(
        rows.tolist(),
        labels[rows].tolist(),
        entropies[rows].tolist(),
        arrival(ids[rows]).tolist(),
        strict=True,
    ):
        inside = members.get(label)
        if inside is None:
            size = int(queue.sizes[label])
            inside = members[label] = list(
                zip(
                    queue.entropies[label, :size].tolist(),
                    arrival(queue.ids[label, :size]).tolist(),
                    (-1 - queue.slots[label, :size]).tolist(),  # negative: a present member
                    strict=True,
                )
            )
        inside.append((entropy, rank, step))
        enters[step] = True
        if capacity is not None and len(inside) > capacity:
            last = max(range(len(inside)), key=inside.__getitem__)
            column = inside.pop(last)[2]
            if column == step:
                enters[step] = False
            elif column >= 0:
                leaves[column] = step
            else:
                old_leaves[label, -1 - column] = step
    return enters, leaves, old_leaves
