import numpy as np
import pytest

import soba
from soba.report.plots import curves, heat_map
from soba.studies.scenarios import SCENARIOS, build
from soba.studies.stress import stress, summarise
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=400, classes=8, width=16, seed=9)
SET = soba.FeatureSet(FEATURES, TEXT, 20.0, LABELS)
COUNTS = np.bincount(LABELS, minlength=8)


@pytest.mark.parametrize("name", SCENARIOS)
def test_seeded_and_sound(name):
    one, again, other = build(name, SET, 3), build(name, SET, 3), build(name, SET, 4)
    assert np.array_equal(one.features, again.features)
    assert not np.array_equal(one.features, other.features)
    assert one.labels.max() < len(one.text_features)
    np.testing.assert_allclose(np.linalg.norm(one.features, axis=1), 1.0, atol=1e-5)
    assert np.array_equal(SET.image_features, FEATURES)


def test_images_per_class():
    for most in (2, 4, 8, 16):
        counts = np.bincount(build(f"{most} per class", SET, 0).labels, minlength=8)
        assert np.array_equal(counts, np.minimum(COUNTS, most))
    assert len(build("all", SET, 0).labels) == 400
    order = np.random.default_rng(0).permutation(400)
    assert np.array_equal(build("all", SET, 0).labels, LABELS[order])


def test_absent_skewed_and_sorted():
    assert len(np.unique(build("quarter of classes", SET, 0).labels)) == 2
    counts = np.sort(np.bincount(build("zipf", SET, 0).labels, minlength=8))[::-1]
    expected = np.maximum(1, np.round(counts[0] / np.arange(1, 9)))
    assert np.all(counts <= np.maximum(expected, 1))
    assert counts[3] < counts[0] / 2
    labels = build("sorted by class", SET, 0).labels
    assert (np.diff(labels) != 0).sum() == 7


def test_shift_starts_in_the_middle():
    plain, shifted = build("all", SET, 1), build("shift", SET, 1)
    np.testing.assert_allclose(shifted.features[:200], plain.features[:200], atol=1e-6)
    moved = plain.features[200:] - 0.5 * FEATURES.mean(0)
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    np.testing.assert_allclose(shifted.features[200:], moved, atol=1e-5)


def test_unrelated_images_have_no_class_and_are_not_scored():
    for share in (0.1, 0.3):
        stream = build(f"{share:.0%} unrelated", SET, 0)
        assert len(stream.labels) == 400
        assert (stream.labels < 0).mean() >= share
        assert len(stream.text_features) < 8
        kept = stream.text_features[stream.labels[stream.scored]]
        order = np.random.default_rng(0)
        order.permutation(8)
        order = order.permutation(400)
        np.testing.assert_allclose(kept, TEXT[LABELS[order]][stream.scored], atol=1e-6)


def test_duplicates_and_wrong_text():
    stream = build("near-duplicates", SET, 0)
    assert len(stream.labels) == 400 + 5 * 80
    similar = np.sort(stream.features @ stream.features.T, axis=1)[:, -2]
    assert (similar > 0.99).sum() >= 400
    wrong = build("wrong text", SET, 0).text_features
    changed = np.flatnonzero(np.abs(wrong - TEXT).max(axis=1) > 1e-6)
    assert len(changed) == 2
    np.testing.assert_allclose(wrong[changed], TEXT[changed[::-1]], atol=1e-6)


def test_summary_measures_gains_against_the_same_order():
    rows = summarise(stress(SET, ["zero-shot", "ncm"], scenarios=["all", "2 per class"]))
    by = {(row["scenario"], row["method"]): row for row in rows}
    assert by["all", "ncm"]["orders"] == 20  # fewer than 500 images
    control, ncm = by["all", "zero-shot"], by["all", "ncm"]
    assert control["gain"] == control["gain_worst"] == 0.0
    assert ncm["gain"] == pytest.approx(ncm["accuracy_mean"] - control["accuracy_mean"])
    assert ncm["gain_worst"] <= ncm["gain"]


def test_refusals():
    with pytest.raises(ValueError, match="learns from labels"):
        stress(SET, ["gda"])
    with pytest.raises(ValueError, match="tunes prompts"):
        stress(SET, ["tpt"])
    with pytest.raises(ValueError, match="no labels"):
        stress(soba.FeatureSet(FEATURES, TEXT), ["ncm"])
    with pytest.raises(ValueError, match="not views"):
        views = np.repeat(FEATURES[:, None], 2, axis=1)
        stress(soba.FeatureSet(views, TEXT, labels=LABELS), ["ncm"])


def test_pictures(tmp_path):
    values = np.array([[1.0, -3.0], [0.0, 2.0]])
    heat_map(tmp_path / "h.png", values, ["a", "b"], ["x", "y"], title="t", label="l")
    curves(
        tmp_path / "c.png", {"a": (np.arange(3), np.arange(3))}, title="t", x_label="x", y_label="y"
    )
    for name in ("h.png", "c.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
