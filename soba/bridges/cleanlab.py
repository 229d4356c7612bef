"""Which labels are wrong? cleanlab's answer, on probabilities for which nothing was trained.

cleanlab weighs given labels against predicted probabilities, which have to come from a model that
did not learn these labels: usually one trained in folds. Ours never sees a label, so the whole set
serves at once, and adapting to it makes the probabilities better than CLIP's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from soba.adapt._arrays import softmax
from soba.adapt.stream import StreamAdapter
from soba.encode._imports import no_package
from soba.feature_set import FeatureSet
from soba.registry import check_method, create_adapter


@dataclass(frozen=True)
class LabelError:
    """A sample whose label is probably wrong.

    Attributes
    ----------
    index
        Its place in the set.
    given, suggested
        The label it has, and the one it should have.
    quality
        The probability of the label it has: the smaller, the surer is the error.
    key
        What the set calls it, such as a path; empty where it has no keys.
    """

    index: int
    given: str
    suggested: str
    quality: float
    key: str = ""


def find_label_errors(
    feature_set: FeatureSet, *, method: str = "soba+", **options: Any
) -> list[LabelError]:
    """The samples whose labels are probably wrong, the surest errors first.

    Parameters
    ----------
    feature_set
        With labels, such as `soba embed FOLDER` makes of class folders.
    method
        What gives the probabilities: a stream method, or "zero-shot" for plain CLIP's.
    options
        For `cleanlab.filter.find_label_issues`: `filter_by="both"` and the like.
    """
    try:
        from cleanlab.filter import find_label_issues
    except ImportError as error:
        raise no_package("cleanlab", error, "bridges") from error

    labels = feature_set.labels
    if labels is None:
        raise ValueError("label errors are looked for among labels, and this set has none")
    probabilities = _probabilities(feature_set, method)
    options = {"return_indices_ranked_by": "self_confidence", "n_jobs": 1} | options
    worst = find_label_issues(np.asarray(labels), probabilities, **options)
    names, keys = feature_set.class_names, feature_set.keys

    def name(label: int) -> str:
        return str(label) if names is None else names[label]

    return [
        LabelError(
            int(row),
            name(int(labels[row])),
            name(int(probabilities[row].argmax())),
            float(probabilities[row, labels[row]]),
            "" if keys is None else keys[row],
        )
        for row in worst
    ]


def _probabilities(feature_set: FeatureSet, method: str) -> np.ndarray:
    """(n, C) of every sample, in the light of all of them."""
    check_method(method)
    adapter = create_adapter(method, feature_set.text_features, logit_scale=feature_set.logit_scale)
    images = feature_set.image_features
    if hasattr(adapter, "transduce"):
        probabilities = softmax(np, np.asarray(adapter.transduce(images), np.float64))
    else:
        if isinstance(adapter, StreamAdapter):  # zero-shot has nothing to learn
            # In an order by chance: that of a set means nothing, and often it is by class.
            order = np.random.default_rng(0).permutation(len(feature_set))
            adapter.learn(images[order], ids=order)
            adapter.refresh()
        probabilities = np.asarray(adapter.probabilities(images), np.float64)
    scaled: np.ndarray = probabilities / probabilities.sum(axis=1, keepdims=True)
    return scaled
