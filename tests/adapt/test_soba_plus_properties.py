"""What holds for SOBA+ whatever the features: of its formula, and of its estimate of accuracy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import assert_same_logits

import soba
from soba.adapt.soba_plus import SOBAPlus
from soba.adapt.soba_plus.model import Shares, fit_gaussians
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=400, classes=6, width=20, seed=7)


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


def test_lengths_do_not_matter_and_classes_may_be_renamed():
    plain = SOBAPlus(TEXT, logit_scale=15.0)
    expected = plain.adapt(FEATURES)
    lengths = np.random.default_rng(0).uniform(0.1, 9.0, (400, 1)).astype(np.float32)
    assert_same_logits(SOBAPlus(TEXT, logit_scale=15.0).adapt(FEATURES * lengths), expected)
    order = np.random.default_rng(1).permutation(6)
    renamed = SOBAPlus(TEXT[order], logit_scale=15.0).adapt(FEATURES)
    assert_same_logits(renamed, expected[:, order], tolerance=1e-4)


def pooled(told, logits):
    """What CLIP's logits are multiplied by in an explanation, beside the other experts."""
    part = float(told.clip @ logits / (logits @ logits))
    assert 0.0 < part < 1.0 + 1e-5
    return part


def test_a_class_without_evidence_keeps_clips_logit():
    """Images say nothing for it or against it; of the others they lower what is less likely."""
    text = np.concatenate([TEXT, -TEXT[:1] - TEXT[1:2]])  # nothing looks like the last class
    adapter = SOBAPlus(text, logit_scale=15.0)
    adapter.adapt(FEATURES)
    clip = soba.ZeroShot(text, logit_scale=15.0).logits(FEATURES)
    moved = []
    for row, logits in zip(FEATURES[:60], clip, strict=False):
        told = adapter.explain(row)
        assert told.mass[-1] < 0.1 and told.evidence[-1] < 0.01
        # All experts together are divided by their weight, which moves no class against another.
        np.testing.assert_allclose(told.clip, pooled(told, logits) * logits, atol=1e-4)
        moved.append(adapter.logits(row) - told.clip - told.prior)
    moved = np.array(moved)
    assert moved.max() < 1e-3
    assert np.abs(moved[:, :-1]).max() > 1.0
    assert np.abs(moved[:, -1]).max() < 0.02 * np.abs(moved).max()


def test_where_clip_is_sure_nothing_is_added():
    """All that is added is in proportion to CLIP's doubt."""
    adapter = SOBAPlus(TEXT, logit_scale=60.0)
    adapter.adapt(FEATURES)
    told = [adapter.explain(row) for row in FEATURES]
    clip = soba.ZeroShot(TEXT, logit_scale=60.0)
    logits, chances = clip.logits(FEATURES), clip.probabilities(FEATURES).astype(float)
    doubt = -(chances * np.log(np.maximum(chances, 1e-30))).sum(axis=1)
    np.testing.assert_allclose([each.doubt for each in told], doubt, atol=1e-4)
    added = np.abs(adapter.logits(FEATURES) - logits).max(axis=1)
    assert doubt.min() < 1e-6 and added[doubt < 1e-6].max() < 1e-3
    assert doubt.max() > 0.5 and added[doubt > 0.5].min() > 0.05
    unsure = int(doubt.argmax())
    whole = told[unsure].prior / pooled(told[unsure], logits[unsure]) / doubt[unsure]
    for each, row, weight in zip(told, logits, doubt, strict=True):
        due = whole * weight * pooled(each, row)
        np.testing.assert_allclose(each.prior, due, rtol=1e-3, atol=1e-4)


def test_more_images_give_more_evidence():
    evidence = []
    for n in (40, 400):
        adapter = SOBAPlus(TEXT, logit_scale=15.0, refresh=n)
        adapter.adapt(FEATURES[:n])
        evidence.append(adapter.explain(FEATURES[0]).evidence)
        assert evidence[-1].min() >= 0.0 and evidence[-1].max() < 1.0
    assert (evidence[1] > evidence[0]).all()


def gaussians(text, rows=FEATURES, labels=LABELS):
    r = np.eye(6)[labels]
    return fit_gaussians(Shares(r.sum(0), r.sum(0), r.T @ rows), rows.T @ rows, text)


def test_text_that_points_the_wrong_way_is_left_out():
    """Class means that fall where the text rises: then no length of it makes a difference."""
    means = np.stack([FEATURES[np.equal(LABELS, k)].mean(axis=0) for k in range(6)])
    away = [gaussians(length * (means.mean(axis=0) - means)) for length in (1.0, 7.0)]
    for name in ("weights", "bias", "evidence", "width", "text_worth"):
        np.testing.assert_allclose(getattr(away[0], name), getattr(away[1], name), atol=1e-5)
    towards = gaussians(means)
    assert towards.text_worth > 5 * away[0].text_worth  # it explains where the means are
    assert np.abs(towards.weights - away[0].weights).max() > 0.1


def test_shares_of_two_halves_add_up_to_those_of_both():
    r, rows = np.eye(6)[LABELS], FEATURES.astype(float)
    parts = [
        Shares(r[some].sum(0), (r[some] ** 2).sum(0), r[some].T @ rows[some])
        for some in (slice(0, 130), slice(130, 400))
    ]
    whole, text = gaussians(TEXT), TEXT.astype(float)
    summed = fit_gaussians(parts[0] + parts[1], rows.T @ rows, text)
    assert_same_logits(summed.weights, whole.weights, tolerance=1e-4)


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


def test_an_expected_accuracy_is_the_mean_adapted_probability_of_what_is_answered():
    adapter = SOBAPlus(TEXT, logit_scale=15.0, refresh=400, sample_size=400)
    adapter.adapt(FEATURES)
    chances, clip = adapter.probabilities(FEATURES), (FEATURES @ TEXT.T).argmax(axis=1)
    told = adapter.expected_accuracy()
    assert told.adapted == pytest.approx(chances.max(axis=1).mean(), abs=1e-5)
    assert told.zero_shot == pytest.approx(chances[np.arange(400), clip].mean(), abs=1e-5)


def test_the_expected_accuracy_is_cautious_where_clip_is_good():
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
    plain, adapted = np.array(gaps[True]).T
    assert np.abs(plain).max() < 0.07 and abs(plain.mean()) < 0.04
    # The pool holds back what both experts may know; here they share nothing, so it is cautious.
    assert adapted.max() < 0.02 and adapted.min() > -0.2
