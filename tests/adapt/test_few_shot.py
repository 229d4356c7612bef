import numpy as np
import pytest

import soba
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=400, classes=5, width=20, seed=2)
SHOTS, VAL, TEST = slice(0, 100), slice(100, 200), slice(200, 400)


def test_gda_is_the_closed_form():
    gda = soba.GDA(TEXT, logit_scale=20.0, alpha=2.0).fit(FEATURES[SHOTS], LABELS[SHOTS])
    x, y = FEATURES[SHOTS], LABELS[SHOTS]
    means = np.array([x[y == k].mean(0) for k in range(5)])
    covariance = np.cov((x - means[y]).T)
    precision = 20 * np.linalg.pinv(99 * covariance + np.trace(covariance) * np.eye(20))
    for row, logits in zip(FEATURES[TEST], gda.logits(FEATURES[TEST]), strict=True):
        expected = [
            20.0 * row @ TEXT[k]
            + 2.0 * (row @ precision @ means[k] - np.log(5) - means[k] @ precision @ means[k] / 2)
            for k in range(5)
        ]
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


def test_tip_adapter_is_a_sum_of_votes():
    tip = soba.TipAdapter(TEXT, logit_scale=20.0, alpha=3.0, beta=2.0).fit(
        FEATURES[SHOTS], LABELS[SHOTS]
    )
    row, expected = FEATURES[300], 20.0 * TEXT @ FEATURES[300]
    for key, label in zip(FEATURES[SHOTS], LABELS[SHOTS], strict=True):
        expected[label] += 3.0 * np.exp(-2.0 * (1.0 - key @ row))
    np.testing.assert_allclose(tip.logits(row), expected, rtol=1e-4)


@pytest.mark.parametrize("cls", [soba.GDA, soba.TipAdapter])
def test_search_takes_the_best_on_validation_and_looks_at_nothing_else(cls):
    shots, val = (FEATURES[SHOTS], LABELS[SHOTS]), (FEATURES[VAL], LABELS[VAL])
    searched = cls(TEXT, logit_scale=20.0).fit(*shots, val=val)
    assert searched.tuned_on_ == "validation"
    chosen = {
        name: getattr(searched, name + "_") for name in ("alpha", "beta") if name in searched.params
    }

    def hits(**values):
        return (
            cls(TEXT, logit_scale=20.0, **values).fit(*shots).logits(val[0]).argmax(1) == val[1]
        ).sum()

    best = hits(**chosen)
    for alpha in (0.0001, 0.1, 1.0, 2.95, 10.0):
        if cls is soba.TipAdapter and alpha > 3:
            continue
        assert hits(**chosen | {"alpha": alpha}) <= best
    assert best >= (20.0 * val[0] @ TEXT.T).argmax(1).__eq__(val[1]).sum()
    assert cls(TEXT).fit(*shots).tuned_on_ == "initial values"
    given = {name: 1.0 for name in chosen}
    assert cls(TEXT, **given).fit(*shots, val=val).tuned_on_ == "given"


@pytest.mark.parametrize("name", ["gda", "tip-adapter"])
def test_errors(name):
    adapter = soba.create_adapter(name, TEXT)
    with pytest.raises(ValueError, match="fit first"):
        adapter.adapt(FEATURES)
    with pytest.raises(ValueError, match=r"2 classes: 3, 4"):
        adapter.fit(FEATURES[LABELS < 3], LABELS[LABELS < 3])
    with pytest.raises(ValueError, match="out of range"):
        adapter.fit(FEATURES, LABELS + 1)
    with pytest.raises(TypeError, match="integers"):
        adapter.fit(FEATURES, LABELS + 0.5)
    with pytest.raises(ValueError, match="one a sample"):
        adapter.fit(FEATURES, LABELS[:-1])
    with pytest.raises(ValueError, match="fit first"):
        adapter.logits(FEATURES)


def test_augmented_shots():
    """GDA takes every augmentation as a sample, Tip-Adapter their mean."""
    views = np.repeat(FEATURES[SHOTS][:, None], 3, axis=1)
    tip = soba.TipAdapter(TEXT, alpha=1.0, beta=1.0)
    plain = tip.fit(FEATURES[SHOTS], LABELS[SHOTS]).logits(FEATURES[TEST])
    np.testing.assert_allclose(
        tip.fit(views, LABELS[SHOTS]).logits(FEATURES[TEST]), plain, rtol=1e-5
    )
    gda = soba.GDA(TEXT, alpha=1.0)
    repeated = gda.fit(np.repeat(FEATURES[SHOTS], 3, 0), np.repeat(LABELS[SHOTS], 3)).logits(
        FEATURES[TEST]
    )
    np.testing.assert_allclose(
        gda.fit(views, LABELS[SHOTS]).logits(FEATURES[TEST]), repeated, rtol=1e-4
    )


def test_augmentations_count_by_their_length_in_tip_adapter_and_alike_in_gda():
    """As the official codes: Tip-Adapter averages raw features, GDA normalises each."""
    rng = np.random.default_rng(0)
    views = np.repeat(FEATURES[SHOTS][:, None], 3, axis=1) + 0.3 * rng.normal(size=(100, 3, 20))
    unit = views / np.linalg.norm(views, axis=-1, keepdims=True)
    lengths = rng.uniform(1, 9, size=(100, 3, 1))
    keys = (unit * lengths).sum(axis=1)
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)

    def scores(cls, shots, **options):
        return (
            cls(TEXT, logit_scale=20.0, alpha=2.0, **options)
            .fit(shots, LABELS[SHOTS])
            .predict(FEATURES[TEST])
        )

    by_hand = scores(soba.TipAdapter, keys, beta=5.0)
    np.testing.assert_allclose(
        scores(soba.TipAdapter, unit * lengths, beta=5.0), by_hand, rtol=1e-4, atol=1e-4
    )
    assert np.abs(scores(soba.TipAdapter, unit, beta=5.0) - by_hand).max() > 0.01
    np.testing.assert_allclose(
        scores(soba.GDA, unit * lengths), scores(soba.GDA, unit), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_the_mean_of_augmentations_has_a_direction_at_any_size(size):
    views = np.repeat(FEATURES[SHOTS][:, None], 2, axis=1)
    tip = soba.TipAdapter(TEXT, alpha=1.0, beta=1.0)
    expected = tip.fit(views, LABELS[SHOTS]).logits(FEATURES[TEST])
    logits = tip.fit((views * size).astype(np.float32), LABELS[SHOTS]).logits(FEATURES[TEST])
    np.testing.assert_allclose(logits, expected, rtol=1e-4)
    opposite = np.stack([FEATURES[SHOTS], -FEATURES[SHOTS]], axis=1)
    with pytest.raises(ValueError, match="mean of the augmentations: row 0 is all zeros"):
        tip.fit(opposite, LABELS[SHOTS])


def test_the_official_search_constructs():
    options = soba.TipAdapter.card.paper.search_for("flowers102")
    assert soba.TipAdapter(TEXT, **options).params["alpha_range"] == 50.0
