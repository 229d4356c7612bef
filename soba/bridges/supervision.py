"""Answers as supervision has them: `sv.Classifications`, which its tools take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from soba.answers import Answer
from soba.encode._imports import no_package


def to_classifications(answer: Answer, names: Sequence[str]) -> Any:
    """One image's candidates, the best first, as `supervision.Classifications`.

    Parameters
    ----------
    answer
        What a classifier says; `classify(images, top=5)` gives it five candidates.
    names
        All classes, in the order that gives them their numbers: a classifier's `names`.

    Notes
    -----
    An image that could not be read has no candidates.
    """
    try:
        import supervision
    except ImportError as error:
        raise no_package("supervision", error, "bridges") from error

    numbers = {name: number for number, name in enumerate(names)}
    unknown = [label for label, _ in answer.top if label not in numbers]
    if unknown:
        raise ValueError(f"{answer.image}: {unknown[0]!r} is none of the {len(numbers)} names")
    return supervision.Classifications(
        class_id=np.array([numbers[label] for label, _ in answer.top], np.int64),
        confidence=np.array([probability for _, probability in answer.top], np.float64),
    )
