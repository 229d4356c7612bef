"""Classes of one set found among those of another: ImageNet's 1,000 and the 200 of -A and -R."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np


def match_classes(wanted: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """Where each wanted class stands among the known ones.

    Class names, or any other keys that are unique: two ImageNet classes are both called
    "missile", so for sets that hold one of them give WordNet ids on both sides.

    Examples
    --------
    >>> match_classes(["goldfish", "Robin"], ["robin", "tench", "goldfish"]).tolist()
    [2, 0]
    """
    spelled = [_spelling(name) for name in known]
    count = Counter(spelled)
    place = {name: index for index, name in enumerate(spelled)}
    missing = [name for name in wanted if _spelling(name) not in count]
    if missing:
        raise ValueError(f"{_some(missing)} not among the {len(known)} known classes")
    twice = [name for name in wanted if count[_spelling(name)] > 1]
    if twice:
        raise ValueError(f"{_some(twice)} more than once among the known classes: give unique keys")
    return np.array([place[_spelling(name)] for name in wanted], np.int64)


def map_support(
    labels: Any, known: Sequence[str], wanted: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """The labelled samples that belong to the wanted classes, and their labels among those.

    Examples
    --------
    >>> rows, mapped = map_support([0, 2, 1, 2], ["robin", "tench", "eel"], ["eel", "robin"])
    >>> rows.tolist(), mapped.tolist()
    ([0, 1, 3], [1, 0, 0])
    """
    given = np.asarray(labels)
    target = np.full(len(known), -1, np.int64)
    target[match_classes(wanted, known)] = np.arange(len(wanted))
    rows = np.flatnonzero(target[given] >= 0)
    return rows, target[given[rows]]


def _spelling(name: str) -> str:
    return " ".join(name.replace("_", " ").split()).lower()


def _some(names: list[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:5])
    return f"{len(names)} classes ({listed}{', ...' if len(names) > 5 else ''}) are"
