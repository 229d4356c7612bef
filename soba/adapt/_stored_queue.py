"""Whether arrays of unknown origin can be the content of an entropy queue."""

from __future__ import annotations

import numpy as np

from soba.adapt._order import canonical_order


def check_stored(
    arrays: dict[str, np.ndarray],
    *,
    n_classes: int,
    dim: int,
    capacity: int | None,
    extra_width: int,
) -> None:
    """Raise if arrays cannot be the content of such a queue: a file may hold anything."""
    count = len(arrays["ids"])
    for name, kind, shape in (
        ("features", "f", (count, dim)),
        ("labels", "i", (count,)),
        ("entropies", "f", (count,)),
        ("ids", "i", (count,)),
        ("extra", "u", (count, extra_width)),
    ):
        array = arrays[name]
        if array.shape != shape or array.dtype.kind != kind:
            raise ValueError(
                f"the stored queue's {name} are {array.dtype} of shape {array.shape}, "
                f"where shape {shape} is due"
            )
        if kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"the stored queue's {name} hold NaN or infinite values")
    labels = arrays["labels"]
    if count and not 0 <= labels.min() <= labels.max() < n_classes:
        raise ValueError("the stored queue holds classes that do not exist")
    if capacity is not None and np.bincount(labels).max(initial=0) > capacity:
        raise ValueError(f"the stored queue holds more than {capacity} samples of a class")
    if len(np.unique(arrays["ids"])) < count:
        raise ValueError("the stored queue holds an id twice")
    order = canonical_order(labels, arrays["entropies"], arrays["ids"])
    if not np.array_equal(order, np.arange(count)):
        raise ValueError("the stored queue is not in the order of class, entropy and id")
