import json

import numpy as np
import pytest
from colours import ColourEncoder

import soba
from soba.bench.efficiency import Measured, costs, costs_of, encode_rate, shown, write_costs
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


def test_what_is_written_is_read_and_holds_no_quoted_number(tmp_path):
    path = tmp_path / "efficiency.json"
    found = costs(VIEWS, ["soba", "mta"], seconds_per_image=0.01, repeats=1)
    measured = Measured("made-up", 200, 5, tuple(found))
    write_costs(path, measured)
    assert "826" not in path.read_text() and "quoted" not in path.read_text()
    assert costs_of(json.loads(path.read_text())) == measured
    assert shown(found[1])[-2:] == ["13.8", "1.15"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([], "not a file of `soba bench efficiency`"),
        ({"costs": [{"method": "soba"}]}, "not a file of `soba bench efficiency`"),
        ({"costs": [["soba", "zero-shot", 1.0]]}, "no zero-shot|not a file"),
        ({"costs": [{"method": "soba", "encode_seconds": None, "adapt_seconds": 1.0}]}, "zero-sho"),
        ({"costs": [{"method": "soba", "encode_seconds": None, "adapt_seconds": 0}]}, "0 seconds"),
    ],
)
def test_damaged_costs_are_refused(content, problem):
    if isinstance(content, dict):
        content |= {"features": "x", "images": 1, "classes": 1}
    with pytest.raises(ValueError, match=problem):
        costs_of(content)
