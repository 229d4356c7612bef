import numpy as np
import pytest
from colours import ColourEncoder

import soba
from soba.bench.efficiency import costs, encode_rate
from soba.testing import example_stream, example_views

FEATURES, LABELS, TEXT = example_stream(n=200, classes=5, width=12)
VIEWS = soba.FeatureSet(example_views(FEATURES, 6), TEXT, 20.0, LABELS)


def test_ratios_are_to_zero_shot_and_views_are_paid_for():
    steps = []
    found = costs(VIEWS, ["soba", "mta"], seconds_per_image=0.01, repeats=1, step=steps.append)
    assert [cost.method for cost in found] == steps == ["zero-shot", "soba", "mta"]
    zero_shot, ours, mta = found
    assert (zero_shot.adapt_ratio, zero_shot.total_ratio) == (1.0, 1.0)
    assert (ours.encode, mta.encode) == (pytest.approx(2.0), pytest.approx(12.0))
    assert ours.adapt_ratio == pytest.approx(ours.adapt / zero_shot.adapt)
    assert mta.total_ratio > 5.0
    assert (ours.quoted_seconds, ours.quoted_ratio) == (826, pytest.approx(826 / 720))
    assert mta.quoted_seconds is None


def test_an_encoder_that_was_not_timed_is_left_out():
    [zero_shot] = costs(VIEWS, [], repeats=1)
    assert (zero_shot.encode, zero_shot.total_ratio) == (None, None)


def test_the_rate_of_an_encoder():
    encoder = ColourEncoder()
    assert 0 < encode_rate(encoder, images=10, batch=4) < 1
    assert encoder.images_encoded == 11  # one to warm up
    assert np.isfinite(encode_rate(encoder, images=1))
