"""What holds for SOBA+ whatever the features: of its formula, and of its estimate of accuracy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import assert_same_logits

import soba
from soba.adapt.soba_plus import SOBAPlus
from soba.testing import example_stream

FEATURES, _, TEXT = example_stream(n=400, classes=6, width=20, seed=7)


# Properties of the formula -----------------------------------------------------------------------


def padded(features, seed):
    return np.concatenate([features, np.zeros((len(features), 3 * features.shape[1]))], axis=1)


def rotated(features, seed):
    d = features.shape[1]
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]
    return features.astype(np.float64) @ turn


def assert_unmoved(moved, images, text, **options):
    """Images and text as they are, and moved: the same answers."""
    answers, logits = [], []
    for move in (lambda features, seed: features, moved):
        adapter = SOBAPlus(move(text, 1).astype(np.float32), **options)
        rows = move(images, 1).astype(np.float32)
        answers.append(adapter.adapt(rows))
        logits.append(adapter.logits(rows))
        assert adapter.statistics_ is not None
    assert_same_logits(answers[1], answers[0], tolerance=1e-4)
    assert_same_logits(logits[1], logits[0], tolerance=1e-4)


@pytest.mark.parametrize("moved", [padded, rotated])
def test_neither_columns_of_zeros_nor_a_rotation_change_an_answer(moved):
    for scale in (15.0, 60.0):
        assert_unmoved(moved, FEATURES, TEXT, logit_scale=scale)


@pytest.mark.parametrize("moved", [padded, rotated])
def test_nor_on_real_features(whurs19, moved):
    features = soba.FeatureSet.load(whurs19)
    rows = np.random.default_rng(0).permutation(len(features))[:300]
    images = features.image_features[rows].astype(np.float32)
    assert_unmoved(moved, images, features.text_features, refresh=300)  # once: d^3 are many


def test_a_class_never_seen_keeps_clips_logit_beside_the_likeliest():
    """Its correction is nothing, and so is that of the class the Gaussians hold likeliest."""
    text = np.concatenate([TEXT, -TEXT[:1] - TEXT[1:2]])  # nothing looks like the last class
    adapter = SOBAPlus(text, logit_scale=15.0)
    adapter.adapt(FEATURES)
    statistics = adapter.statistics_
    assert statistics["mass"][-1] < 1e-3
    temperature = float(statistics["temperature"][0])
    clip = soba.ZeroShot(text, logit_scale=15.0).logits(FEATURES)
    moved = temperature * adapter.logits(FEATURES) - clip  # s(f) e_k (G_k - max G)
    assert np.abs(moved[:, :-1]).max() > 1.0
    assert np.abs(moved[:, -1]).max() < 0.02 * np.abs(moved).max()
    assert moved.max() < 1e-3  # nothing is raised: the likeliest stays where it is
    np.testing.assert_allclose(moved.max(axis=1), 0.0, atol=1e-3)


# The estimate of accuracy ------------------------------------------------------------------------


def test_before_the_first_refresh_no_accuracy_is_expected():
    adapter = SOBAPlus(TEXT, logit_scale=15.0)
    assert adapter.expected_accuracy() is None
    adapter.adapt(FEATURES[:5])
    assert adapter.expected_accuracy() is None
    adapter.adapt(FEATURES[5:])
    assert adapter.expected_accuracy() is not None
    assert adapter.reset().expected_accuracy() is None


@settings(max_examples=40)
@given(
    st.integers(0, 1000),
    st.integers(20, 200),
    st.sampled_from([8.0, 20.0, 100.0]),
    st.sampled_from([1, 16, 512]),
)
def test_an_expected_accuracy_is_a_share(seed, n, scale, size):
    features, _, text = example_stream(n=n, classes=5, width=12, seed=seed)
    adapter = SOBAPlus(text, logit_scale=scale, refresh=n, sample_size=size)
    adapter.adapt(features)
    told = adapter.expected_accuracy()
    if told is not None:
        assert 0.0 <= told.zero_shot <= told.adapted <= 1.0


def test_the_expected_accuracy_is_near_the_truth_where_clip_is_good():
    gaps = {True: [], False: []}
    for seed in range(12):
        features, labels, text = example_stream(n=600, classes=6, width=20, seed=seed)
        adapter = SOBAPlus(text, logit_scale=20.0)
        adapter.adapt(features)
        told = adapter.expected_accuracy()
        plain = (features @ text.T).argmax(axis=1) == labels
        adapted = adapter.logits(features).argmax(axis=1) == labels
        easy = bool(plain.mean() > 0.7)
        gaps[easy].append((told.zero_shot - plain.mean(), told.adapted - adapted.mean()))
        assert SOBAPlus.from_state(adapter.state()).expected_accuracy() == told
    assert len(gaps[True]) >= 8
    assert np.abs(gaps[True]).max() < 0.07
    assert np.abs(np.mean(gaps[True], axis=0)).max() < 0.04
    assert np.abs(gaps[False]).max() < 0.15  # the others are not far off
