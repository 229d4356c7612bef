import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_clip
from colours import ColourEncoder

import soba
from soba.encode.prompts import classifier
from soba.report.read import read_results
from soba.studies import efficiency
from soba.studies.efficiency import (
    MOST_TUNED,
    MOST_WITH_VIEWS,
    Measured,
    costs,
    costs_of,
    encode_rate,
    prepared,
    shown,
    write_costs,
)
from soba.testing import example_stream, example_views

FEATURES, LABELS, TEXT = example_stream(n=200, classes=5, width=12)
VIEWS = soba.FeatureSet(example_views(FEATURES, 6), TEXT, 20.0, LABELS)


def measure(features, methods, **options):
    given, problems = prepared(features, methods)
    assert not problems
    return costs(given, **options)


def test_ratios_are_to_zero_shot_and_views_are_paid_for():
    steps = []
    priced = measure(
        VIEWS,
        ["soba", "mta"],
        seconds_per_image=0.01,
        repeats=2,
        step=lambda name, streams: steps.append((name, streams)),
    )
    assert [cost.method for cost in priced] == ["zero-shot", "soba", "mta"]
    assert steps == [(cost.method, n) for cost in priced for n in (0, 1, 1)]
    zero_shot, ours, mta = priced
    assert (zero_shot.adapt_ratio, zero_shot.total_ratio) == (1.0, 1.0)
    assert (ours.images, mta.images) == (200, MOST_WITH_VIEWS)
    assert (ours.encode, mta.encode) == (
        pytest.approx(2.0),
        pytest.approx(MOST_WITH_VIEWS * 6 * 0.01),
    )
    assert ours.adapt_ratio == pytest.approx(ours.adapt / zero_shot.adapt)
    per_image = mta.adapt / MOST_WITH_VIEWS / (zero_shot.adapt / 200)
    assert mta.adapt_ratio == pytest.approx(per_image)
    totals = [(cost.encode + cost.adapt) / cost.images for cost in (mta, zero_shot)]
    assert mta.total_ratio == pytest.approx(totals[0] / totals[1])
    assert (ours.quoted_seconds, ours.quoted_ratio) == (826, pytest.approx(826 / 720))
    assert mta.quoted_seconds is None


def test_an_encoder_that_was_not_timed_is_left_out():
    [zero_shot] = measure(VIEWS, [], repeats=1)
    assert (zero_shot.encode, zero_shot.total_ratio) == (None, None)


def test_what_cannot_run_is_known_before_anything_is_timed():
    given, problems = prepared(VIEWS, ["soba", "tip-adapter", "tpt"])
    assert list(given) == ["zero-shot", "soba"]
    assert "labelled training samples" in problems["tip-adapter"]
    assert "V of 10 at least" in problems["tpt"]
    plain = soba.FeatureSet(FEATURES, TEXT, 20.0, LABELS)
    assert "needs views" in prepared(plain, ["mta"])[1]["mta"]
    views = soba.FeatureSet(example_views(FEATURES[:9], 6), TEXT, 20.0, LABELS[:9])
    given, _ = prepared(plain, ["mta"], views=views)
    assert (len(given["zero-shot"].features), len(given["mta"].features)) == (200, 9)


def test_methods_that_tune_run_on_a_few_images():
    encoder = tiny_clip.tiny_clip()
    names = ("ant", "bee", "cat")
    text = classifier(encoder.encode_texts, names, ("a {}.",))
    pixels = np.random.default_rng(0).normal(size=(MOST_TUNED + 4, 3, 32, 32)).astype(np.float32)
    images = encoder.encode_pixels(pixels)
    features = soba.FeatureSet(
        example_views(images, 10), text, 20.0, np.arange(len(images)) % 3, names, ("a {}.",)
    )
    given, problems = prepared(features, ["soba", "tpt", "difftpt"], tunable=encoder)
    assert list(problems) == ["difftpt"] and "diffusion" in problems["difftpt"]
    few = dataclasses.replace(features, image_features=features.image_features[:, :6])
    assert "V of 10 at least" in prepared(few, ["tpt"], tunable=encoder)[1]["tpt"]
    zero_shot, ours, tpt = costs(given, seconds_per_image=0.01, repeats=1)
    assert (zero_shot.images, ours.images, tpt.images) == (len(images), len(images), MOST_TUNED)
    assert tpt.encode == pytest.approx(MOST_TUNED * 10 * 0.01)
    per_image = tpt.adapt / MOST_TUNED / (zero_shot.adapt / len(images))
    assert tpt.adapt_ratio == pytest.approx(per_image)
    assert tpt.quoted_seconds == 46200


def test_the_rate_of_an_encoder(monkeypatch):
    encoder, readings = ColourEncoder(), iter([100.0, 105.0])

    def perf_counter():
        """Read once the encoder is warm, and once all is encoded."""
        assert encoder.images_encoded in (1, 11)
        return next(readings)

    monkeypatch.setattr(efficiency, "time", SimpleNamespace(perf_counter=perf_counter))
    assert encode_rate(encoder, images=10, batch=4) == 0.5
    assert encoder.images_encoded == 11


def test_what_is_written_is_read_and_holds_no_quoted_number(tmp_path):
    path = tmp_path / "efficiency.json"
    priced = measure(VIEWS, ["soba", "mta"], seconds_per_image=0.01, repeats=1)
    measured = Measured("made-up", 200, 5, tuple(priced))
    write_costs(path, measured)
    written = json.loads(path.read_text())
    assert "quoted" not in path.read_text()
    assert all(826 not in cost.values() for cost in written["costs"])
    assert costs_of(written) == measured
    assert shown(priced[1])[-2:] == ["13.8", "1.15"]


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


SOUND = {"method": "zero-shot", "images": 3, "encode_seconds": None, "adapt_seconds": 1.0}


@pytest.mark.parametrize("number", [None, "3", 0, -1, 2.5, True, [], {}, float("nan"), 10**400])
@pytest.mark.parametrize("where", ["images", "classes", "row"])
def test_damaged_counts_are_refused(number, where, tmp_path):
    content = {"features": "x", "images": 3, "classes": 2, "costs": [SOUND]}
    assert costs_of(content).images == 3
    if where == "row":
        content["costs"] = [SOUND | {"images": number}]
    else:
        content[where] = number
    with pytest.raises(ValueError, match=r"bench efficiency`: (images|classes)"):
        costs_of(content)
    # In a folder of results such a file is named and left out.
    (tmp_path / "efficiency.json").write_text(json.dumps(content))
    content |= {"images": 3, "classes": 2, "costs": [SOUND]}
    (tmp_path / "efficiency-sound.json").write_text(json.dumps(content))
    results = read_results(tmp_path)
    assert len(results.costs) == 1
    [problem] = results.problems
    assert problem.startswith("efficiency.json: ")


def test_numbers_beyond_all_measure_are_damage():
    content = {"features": "x", "images": 3, "classes": 2}
    content["costs"] = [SOUND | {"adapt_seconds": 10**400}]
    with pytest.raises(ValueError, match="not a cost"):
        costs_of(content)


def test_the_first_files_had_one_number_of_images():
    row = {key: value for key, value in SOUND.items() if key != "images"}
    content = {"features": "x", "images": 5, "classes": 2, "costs": [row]}
    assert costs_of(content).costs[0].images == 5
