import numpy as np
import pytest

import soba
from soba.bench.evaluate import evaluate, method_settings, summarise
from soba.bench.metrics import accuracy, calibration_error
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=200, classes=5, width=12)
SET = soba.FeatureSet(
    FEATURES, TEXT, 20.0, LABELS, support_features=FEATURES[:50], support_labels=LABELS[:50]
)


def test_a_record_is_the_stream_in_the_order_of_its_seed():
    records = evaluate(SET, soba.list_adapters(), orders=3)
    assert [(r["method"], r["seed"]) for r in records] == [
        (m, s) for m in soba.list_adapters() for s in range(3)
    ]
    order = np.random.default_rng(2).permutation(200)
    adapter = soba.SOBA(TEXT, scale=20.0, refresh="tenths", total=200)
    expected = accuracy(adapter.adapt(FEATURES[order]), LABELS[order])
    assert (
        next(r for r in records if (r["method"], r["seed"]) == ("soba", 2))["accuracy"] == expected
    )


def test_paper_settings_and_overrides():
    assert method_settings("soba", 99) == {"refresh": "tenths", "total": 99}
    assert method_settings("tda", 99, {"alpha": 3.0, "reading": "gda"}) == {"alpha": 3.0}
    assert method_settings("ncm", 99, {"refresh": 7}) == {"refresh": 7}
    made = soba.adapter("tda", TEXT)
    assert (made.alpha, made.beta) == (2.0, 5.0)
    with pytest.raises(ValueError, match="none of tda has a reading"):
        evaluate(SET, ["tda"], overrides={"reading": "gda"})


def test_summary():
    runs = [
        {
            "method": m,
            "seed": s,
            "accuracy": a,
            "calibration_error": 1.0,
            "seconds": 2.0,
            "answered": 100.0,
            "accuracy_answered": a,
            "accuracy_at_coverage": [a],
        }
        for m, s, a in (
            ("zero-shot", 0, 50.0),
            ("zero-shot", 1, 50.0),
            ("soba", 0, 54.0),
            ("soba", 1, 58.0),
        )
    ]
    row = summarise(runs)[1]
    assert (row["accuracy_mean"], row["gain"]) == (56.0, 6.0)
    assert row["accuracy_std"] == pytest.approx(8**0.5)
    assert summarise(runs[2:])[0]["gain"] is None


def test_calibration_error_by_hand():
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.55, 0.45], [0.45, 0.55]])
    labels = np.array([0, 1, 0, 0])
    # Bin of 0.9: confidence 0.9, accuracy 0.5; bin of 0.55: confidence 0.55, accuracy 0.5.
    assert calibration_error(probabilities, labels) == pytest.approx(100 * (0.4 + 0.05) / 2)
    assert calibration_error(np.array([[1.0, 0.0]]), np.array([0])) == 0.0


def test_unlabelled_and_unsupported_sets():
    with pytest.raises(ValueError, match="no labels"):
        evaluate(soba.FeatureSet(FEATURES, TEXT), ["soba"])
    with pytest.raises(ValueError, match="needs labelled training samples"):
        evaluate(soba.FeatureSet(FEATURES, TEXT, labels=LABELS), ["gda"])
    with pytest.raises(ValueError, match="orders"):
        evaluate(SET, ["soba"], orders=0)
