import numpy as np
import pytest

import soba
from soba.adapt import tip_adapter
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=400, classes=5, width=20, seed=2)
SHOTS, VAL, TEST = slice(0, 100), slice(100, 200), slice(200, 400)


def test_gda_is_the_closed_form():
    gda = soba.GDA(TEXT, scale=20.0, alpha=2.0).fit(FEATURES[SHOTS], LABELS[SHOTS])
    x, y = FEATURES[SHOTS], LABELS[SHOTS]
    means = np.array([x[y == k].mean(0) for k in range(5)])
    covariance = np.cov((x - means[y]).T)
    precision = 20 * np.linalg.pinv(99 * covariance + np.trace(covariance) * np.eye(20))
    for row, found in zip(FEATURES[TEST], gda.predict(FEATURES[TEST]), strict=True):
        expected = [
            20.0 * row @ TEXT[k]
            + 2.0 * (row @ precision @ means[k] - np.log(5) - means[k] @ precision @ means[k] / 2)
            for k in range(5)
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_tip_adapter_is_a_sum_of_votes():
    tip = soba.TipAdapter(TEXT, scale=20.0, alpha=3.0, beta=2.0).fit(FEATURES[SHOTS], LABELS[SHOTS])
    row, expected = FEATURES[300], 20.0 * TEXT @ FEATURES[300]
    for key, label in zip(FEATURES[SHOTS], LABELS[SHOTS], strict=True):
        expected[label] += 3.0 * np.exp(-2.0 * (1.0 - key @ row))
    np.testing.assert_allclose(tip.predict(row), expected, rtol=1e-4)


@pytest.mark.parametrize("cls", [soba.GDA, soba.TipAdapter])
def test_search_takes_the_best_on_validation_and_looks_at_nothing_else(cls):
    shots, val = (FEATURES[SHOTS], LABELS[SHOTS]), (FEATURES[VAL], LABELS[VAL])
    searched = cls(TEXT, scale=20.0).fit(*shots, val=val)
    assert searched.tuned_on_ == "validation"
    found = {
        name: getattr(searched, name + "_") for name in ("alpha", "beta") if name in searched.params
    }

    def hits(**values):
        return (
            cls(TEXT, scale=20.0, **values).fit(*shots).predict(val[0]).argmax(1) == val[1]
        ).sum()

    best = hits(**found)
    for alpha in (0.0001, 0.1, 1.0, 2.95, 10.0):
        if cls is soba.TipAdapter and alpha > 3:
            continue
        assert hits(**found | {"alpha": alpha}) <= best
    assert best >= (20.0 * val[0] @ TEXT.T).argmax(1).__eq__(val[1]).sum()
    assert cls(TEXT).fit(*shots).tuned_on_ == "initial values"
    given = {name: 1.0 for name in found}
    assert cls(TEXT, **given).fit(*shots, val=val).tuned_on_ == "given"


@pytest.mark.parametrize("name", ["gda", "tip-adapter"])
def test_errors(name):
    adapter = soba.adapter(name, TEXT)
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
        adapter.predict(FEATURES)


def test_augmented_shots():
    """GDA takes every augmentation as a sample, Tip-Adapter their mean."""
    views = np.repeat(FEATURES[SHOTS][:, None], 3, axis=1)
    tip = soba.TipAdapter(TEXT, alpha=1.0, beta=1.0)
    plain = tip.fit(FEATURES[SHOTS], LABELS[SHOTS]).predict(FEATURES[TEST])
    np.testing.assert_allclose(
        tip.fit(views, LABELS[SHOTS]).predict(FEATURES[TEST]), plain, rtol=1e-5
    )
    gda = soba.GDA(TEXT, alpha=1.0)
    repeated = gda.fit(np.repeat(FEATURES[SHOTS], 3, 0), np.repeat(LABELS[SHOTS], 3)).predict(
        FEATURES[TEST]
    )
    np.testing.assert_allclose(
        gda.fit(views, LABELS[SHOTS]).predict(FEATURES[TEST]), repeated, rtol=1e-4
    )


def test_official_constants_construct():
    options = tip_adapter.official_constants("flowers102")
    assert soba.TipAdapter(TEXT, **options).params["alpha_range"] == 50.0
