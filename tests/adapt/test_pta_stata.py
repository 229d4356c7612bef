"""PTA and StatA: parity with slow references, examples worked by hand, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import rival_reference as slow
from conftest import REAL_DATA

import soba
from soba.adapt import _neighbours
from soba.registry import card
from soba.testing import example_stream

SCALE = 20.0
STREAM, _, TEXT = example_stream(n=150, classes=7, width=12, seed=3)
ABSENT = np.concatenate([TEXT, -TEXT.mean(axis=0, keepdims=True)])  # nothing is of the last class


def real(name="whurs19/clip_vitb32"):
    path = REAL_DATA / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no real features at {path}; set SOBA_REAL_DATA")
    return soba.FeatureSet.load(path)


def real_rows(rows):
    features = real()
    order = np.random.default_rng(0).permutation(len(features))[:rows]
    return features.image_features[order].astype(np.float64), features.text_features


def check(answers, expected, tolerance=1e-6):
    assert np.abs(answers - expected).max() <= tolerance * np.abs(expected).max()


def text_of(adapter):
    return adapter.text_features.astype(np.float64)


def shares(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


# PTA ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"time_constant": 3.0},
        {"threshold": 0.3, "memory": 0.5},
        {"threshold": 0.0, "memory": 0.0},
    ],
    ids=str,
)
def test_pta_parity_on_a_random_stream(params):
    adapter = soba.PTA(TEXT, logit_scale=SCALE, **params)
    check(adapter.adapt(STREAM), slow.pta(STREAM, text_of(adapter), SCALE, **params))


def test_pta_parity_on_real_features():
    x, text = real_rows(200)
    adapter = soba.PTA(text)
    logits, expected = adapter.adapt(x), slow.pta(x, text_of(adapter), 100.0)
    assert np.array_equal(logits.argmax(axis=1), expected.argmax(axis=1))
    check(logits, expected, 1e-5)


def test_pta_by_hand():
    adapter = soba.PTA(np.eye(2), logit_scale=10.0)
    f = np.array([0.8, 0.6])
    [[one, two]] = adapter.adapt(f[None])
    chances = 1 / (1 + math.exp(-2.0)), 1 / (1 + math.exp(2.0))  # 0.88 and 0.12: both teach
    prototypes = []
    for k, p in enumerate(chances):
        moved = 0.01 * np.eye(2)[k] + 0.99 * (1 - math.exp(-p / 20)) * f
        prototypes.append(moved / np.linalg.norm(moved))
    assert one == pytest.approx(8.0 + 10 * f @ prototypes[0], rel=1e-6)
    assert two == pytest.approx(6.0 + 10 * f @ prototypes[1], rel=1e-6)
    np.testing.assert_allclose(adapter.prototypes_, prototypes, atol=1e-7)


def test_pta_learns_only_of_the_classes_an_image_may_be():
    adapter = soba.PTA(np.eye(3), logit_scale=10.0)
    adapter.adapt(np.array([[0.8, 0.6, 0.0]]))  # the third has a probability of 0.0003
    assert adapter.prototypes_[2].tolist() == [0.0, 0.0, 1.0]
    assert (adapter.prototypes_[:2] != np.eye(3)[:2]).any(axis=1).all()
    deaf = soba.PTA(TEXT, logit_scale=SCALE, threshold=1.1)
    np.testing.assert_allclose(deaf.adapt(STREAM), 2 * SCALE * STREAM @ deaf.text_features.T, 1e-5)


def test_pta_forgets_what_came_first():
    one, other = (soba.PTA(TEXT, logit_scale=SCALE, time_constant=5.0) for _ in range(2))
    one.adapt(STREAM)
    other.adapt(STREAM[::-1])
    assert np.abs(one.prototypes_ - other.prototypes_).max() > 0.01


@pytest.mark.parametrize("cls", [soba.ETTA, soba.PTA])
def test_a_view_stays_as_it_was(cls):
    adapter = cls(TEXT, logit_scale=SCALE)
    adapter.adapt(STREAM[:50])
    view = adapter.view()
    before = view.logits(STREAM)
    adapter.adapt(STREAM[50:])
    assert np.array_equal(view.logits(STREAM), before)
    assert not np.array_equal(adapter.logits(STREAM), before)
    fresh = cls(TEXT, logit_scale=SCALE)
    assert np.array_equal(adapter.reset().logits(STREAM), fresh.logits(STREAM))


def test_pta_has_another_constant_for_caltech():
    paper = card("pta").paper
    assert paper.constants_for("caltech101") == {"time_constant": 50.0}
    assert paper.constants_for("cars") == {}


# StatA ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [TEXT, ABSENT], ids=["all present", "one absent"])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"rounds": 1},
        {"rounds": 3, "neighbours": 5, "steps": 2},
        {"rounds": 4, "anchor": 20.0, "weight": 0.1},
    ],
    ids=str,
)
def test_stata_parity(params, text):
    rounds = {name: value for name, value in params.items() if name == "rounds"}
    names = {"weight": "likelihood_weight"}
    given = {names.get(name, name): params[name] for name in params if name != "rounds"}
    adapter = soba.StatA(text, logit_scale=SCALE, **given)
    expected = slow.stata(STREAM[:80], text_of(adapter), SCALE, **params)
    check(shares(adapter.transduce(STREAM[:80], **rounds)), expected)


def test_stata_parity_on_real_features():
    x, text = real_rows(100)
    adapter = soba.StatA(text)
    check(shares(adapter.transduce(x)), slow.stata(x, text_of(adapter), 100.0), 1e-5)


def test_stata_by_hand():
    """One sample, no neighbours, one round: a class with it and a class without."""
    adapter = soba.StatA(np.eye(2), logit_scale=10.0, neighbours=0)
    f = np.array([0.8, 0.6])
    logits = adapter.transduce(f[None], rounds=1)[0]
    text, z = np.eye(2), np.array([8.0, 6.0])
    spread = sum(p * (f - t) ** 2 for p, t in zip(shares(z[None])[0], text, strict=True))
    first = (f + text[0]) / 2  # of 1 sample and its text, as its own anchor
    means = [first / np.linalg.norm(first), text[1]]
    variances = [0.5 * ((f - means[0]) ** 2 + spread + (text[0] - means[0]) ** 2), spread]
    density = [slow.log_density(f, m, v) for m, v in zip(means, variances, strict=True)]
    gap = 2.0 + 0.02 * (density[0] - density[1])
    assert logits[0] - logits[1] == pytest.approx(gap, rel=1e-6)


def test_a_class_that_is_out_of_the_question_leaves_stata_finite():
    adapter = soba.StatA(ABSENT, logit_scale=5000.0)
    logits = adapter.transduce(STREAM.astype(np.float64))
    assert shares(logits)[:, -1].max() == 0.0  # its labels underflow
    assert np.isfinite(logits).all()


def test_stata_is_the_same_whatever_the_blocks(monkeypatch):
    answers = []
    for block in (1, 300, 1 << 22):
        monkeypatch.setattr(_neighbours.blocks, "__defaults__", (block,))
        answers.append(soba.StatA(TEXT, logit_scale=SCALE).transduce(STREAM.astype(np.float64)))
    for one in answers[:2]:
        check(one, answers[2], 1e-9)


@pytest.mark.parametrize("encoder", ["clip_rn50", "clip_vitb32"])
def test_stata_gains_where_only_few_of_the_classes_occur(encoder):
    """What its anchors are for; TransCLIP, which has none, loses much there."""
    features = real(f"whurs19/{encoder}")
    hits = {"zero-shot": 0, "transclip": 0, "stata": 0}
    for first in range(0, 16, 4):
        rows = np.flatnonzero(np.isin(features.labels, np.arange(first, first + 4)))
        x, y = features.image_features[rows], features.labels[rows]
        for name in hits:
            adapter = soba.create_adapter(name, features)
            logits = adapter.logits(x) if name == "zero-shot" else adapter.transduce(x)
            hits[name] += int((logits.argmax(axis=1) == y).sum())
    assert hits["transclip"] < hits["zero-shot"] < hits["stata"]


# What they refuse -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "params", "message"),
    [
        (soba.PTA, {"time_constant": 0.0}, "time_constant must be positive"),
        (soba.PTA, {"threshold": -0.1}, "threshold must be positive"),
        (soba.PTA, {"memory": 1.5}, "memory must be between 0 and 1"),
        (soba.StatA, {"anchor": 0.0}, "anchor must be positive"),
        (soba.StatA, {"neighbours": -1}, "neighbours must be a whole number"),
        (soba.StatA, {"steps": 0}, "steps must be a whole number"),
        (soba.StatA, {"likelihood_weight": -1.0}, "likelihood_weight must be positive"),
    ],
)
def test_parameters_are_checked(cls, params, message):
    with pytest.raises(ValueError, match=message):
        cls(TEXT, **params)
