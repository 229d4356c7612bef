import numpy as np
import pytest

import soba


def test_three_samples_by_hand():
    """C = 2, scale 10: logits, votes and the order of update and prediction, worked out by hand."""
    text = np.eye(2)
    tda = soba.TDA(text, logit_scale=10.0, alpha=1.0, beta=1.0, capacity=1, negative_alpha=0.0)
    # First: label 0, alone in its cache: it votes for itself with exp(0) = 1.
    first = np.array([0.8, 0.6])
    np.testing.assert_allclose(tda.adapt(first), [8.0 + 1.0, 6.0], rtol=1e-6)
    # Second: surer of class 0, so it replaces the first and votes alone.
    second = np.array([1.0, 0.0])
    np.testing.assert_allclose(tda.adapt(second), [10.0 + 1.0, 0.0], rtol=1e-6)
    # Third: label 1; the cache holds the second (cosine 0) and itself.
    third = np.array([0.0, 1.0])
    np.testing.assert_allclose(tda.adapt(third), [np.exp(-1.0), 10.0 + 1.0], rtol=1e-6)


def test_negative_cache_votes_against_the_likely_classes():
    text = np.eye(4)
    unsure = np.array([0.7, 0.6, 0.36, 0.0])
    options = {"logit_scale": 10.0, "alpha": 0.0, "negative_alpha": 0.5, "negative_beta": 1.0}
    tda = soba.TDA(text, **options)
    clip = soba.ZeroShot(text, logit_scale=10.0).logits(unsure)
    p = np.exp(clip - clip.max())
    p /= p.sum()
    entropy = -(p * np.log(p)).sum() / np.log2(4)
    assert 0.2 < entropy < 0.5
    np.testing.assert_allclose(tda.adapt(unsure), clip - 0.5 * (p > 0.03), rtol=1e-5)
    # Under the natural normalisation the same sample lies elsewhere in the window.
    window = {"entropy_window": (0.2, 1.2 * entropy)}
    assert entropy * np.log2(4) / np.log(4) > 1.2 * entropy
    kept = soba.TDA(text, **options, **window)
    kept.adapt(unsure)
    assert len(kept._queues["negative"]) == 1
    left_out = soba.TDA(text, **options, **window, entropy_norm="ln")
    left_out.adapt(unsure)
    assert len(left_out._queues["negative"]) == 0


def test_official_constants():
    constants_for = soba.TDA.card.paper.constants_for
    assert constants_for("imagenet-sketch") == {"alpha": 2.363, "beta": 7.45}
    assert constants_for("mnist") == {}


@pytest.mark.parametrize(
    "options",
    [{"capacity": 0}, {"beta": -1}, {"entropy_window": (0.5, 0.2)}, {"entropy_norm": "log10"}],
)
def test_bad_parameters(options):
    with pytest.raises(ValueError):
        soba.TDA(np.eye(2), **options)
