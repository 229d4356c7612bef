"""A few labelled images of every class, for the methods that need them.

CoOp samples each class with Python's global generator, so its sample of a class depends on the
classes before it; Tip-Adapter and TPT differ again. Here each class has its own generator, and
fewer shots are the beginning of more: the 1-shot image of a class is among its 2-shot images.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from soba.datasets.base import ImageSet


def few_shot(image_set: ImageSet, shots: int, seed: int) -> ImageSet:
    """`shots` images of every class, in label order; all of a class that has fewer.

    CoOp uses seeds 1, 2 and 3 on the train split, and min(shots, 4) of the val split.

    Examples
    --------
    >>> whole = ImageSet("pets", ("cat", "dog"), ("a", "b", "c", "d"), np.array([1, 0, 1, 1]))
    >>> few = few_shot(whole, 2, seed=1)
    >>> few.name, few.labels.tolist()
    ('pets-2shot-seed1', [0, 1, 1])
    """
    if image_set.labels is None:
        raise ValueError(f"{image_set.name}: has no labels to sample by")
    if shots < 1:
        raise ValueError(f"shots must be at least 1, not {shots}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, but is {seed}")
    rows: list[int] = []
    for label in range(len(image_set.class_names)):
        members = np.flatnonzero(image_set.labels == label)
        order = np.random.default_rng([seed, label]).permutation(len(members))
        rows += members[order[:shots]].tolist()
    return dataclasses.replace(
        image_set,
        name=f"{image_set.name}-{shots}shot-seed{seed}",
        keys=tuple(image_set.keys[i] for i in rows),
        labels=image_set.labels[rows],
    )
