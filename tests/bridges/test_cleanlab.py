"""Planted label errors are found by cleanlab on our probabilities, more of them than on CLIP's."""

import dataclasses
import sys

import numpy as np
import pytest

import soba
from soba.bridges import LabelError, find_label_errors
from soba.bridges.cleanlab import _probabilities
from soba.testing import example_stream

PLANTED = 50


def planted(feature_set, seed=0):
    """The set with some labels replaced by others, and which ones."""
    rng, labels = np.random.default_rng(seed), np.array(feature_set.labels)
    rows = rng.choice(len(labels), PLANTED, replace=False)
    classes = len(feature_set.text_features)
    labels[rows] = (labels[rows] + rng.integers(1, classes, PLANTED)) % classes
    return dataclasses.replace(feature_set, labels=labels), set(rows.tolist())


def hits(feature_set, rows, method):
    """How many of the first errors that are named are planted ones."""
    named = [error.index for error in find_label_errors(feature_set, method=method)]
    return len(rows & set(named[:PLANTED]))


def example():
    features, labels, text = example_stream()
    names = tuple(f"class {k}" for k in range(len(text)))
    keys = tuple(f"{k}.png" for k in range(len(features)))
    return soba.FeatureSet(
        features, text, logit_scale=20.0, labels=labels, class_names=names, keys=keys
    )


def test_planted_errors_are_found_and_what_the_label_should_be_is_told():
    original = example()
    feature_set, rows = planted(original)
    assert hits(feature_set, rows, "soba+") > hits(feature_set, rows, "zero-shot")
    errors = find_label_errors(feature_set)
    named = {error.index: error for error in errors}
    found = rows & named.keys()
    assert len(found) > 0.8 * PLANTED
    right = [f"class {original.labels[row]}" == named[row].suggested for row in found]
    assert np.mean(right) > 0.9
    assert [error.quality for error in errors] == sorted(error.quality for error in errors)
    for error in errors:
        assert error.key == f"{error.index}.png" and error.suggested != error.given
        assert error.given == f"class {feature_set.labels[error.index]}"


def test_a_set_that_is_sorted_by_class_is_answered_as_one_that_is_not():
    """Few classes of the list occur, so that it counts in which order they are learned."""
    features, labels, text = example_stream(n=2000, classes=24, width=16, seed=1)
    some = np.flatnonzero(labels < 4)
    answers = []
    for rows in (some, some[np.argsort(labels[some], kind="stable")]):
        made = soba.FeatureSet(features[rows], text, logit_scale=20.0)
        answers.append(_probabilities(made, "soba+").argmax(axis=1)[np.argsort(rows)])
    assert (answers[0] == answers[1]).mean() > 0.98


def test_more_are_found_in_real_features_than_without_adapting(whurs19):
    for seed in range(3):
        feature_set, rows = planted(soba.FeatureSet.load(whurs19), seed)
        adapted, plain = (hits(feature_set, rows, method) for method in ("soba+", "zero-shot"))
        assert adapted > plain and adapted >= 0.8 * PLANTED


def test_sets_without_names_and_options_of_cleanlab():
    feature_set, _ = planted(dataclasses.replace(example(), class_names=None, keys=None))
    errors = find_label_errors(feature_set)
    assert all(isinstance(error, LabelError) and error.given.isdigit() for error in errors)
    assert not any(error.key for error in errors)
    fewer = find_label_errors(feature_set, filter_by="both")
    assert {error.index for error in fewer} < {error.index for error in errors}


def test_what_is_missing_is_said(monkeypatch):
    with pytest.raises(ValueError, match="this set has none"):
        find_label_errors(dataclasses.replace(example(), labels=None))
    with pytest.raises(ValueError, match="tpt needs"):
        find_label_errors(example(), method="tpt")
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    with pytest.raises(ImportError, match=r"needs cleanlab: pip install 'soba-tta\[bridges\]'"):
        find_label_errors(example())
