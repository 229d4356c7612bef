"""The figures the README and docs/soba_plus.md state, on real CLIP features."""

import pytest
from conftest import REAL_DATA

import soba
from soba.bench.evaluate import evaluate, summarise
from soba.studies.scenarios import build
from soba.studies.stress import make, run_one

BARS = {  # zero-shot, least gain of soba over ncm, least tda
    "clip_rn50": (71.54, 2.0, 80.0),
    "clip_vitb32": (81.29, 1.0, 85.0),
}
# Set -> zero-shot, and the least mean of SOBA+ over five orders. Measured were 88.36, 91.62, 66.49,
# and on PACS 97.96, 99.25 and 100.00; what lies between is for other kernels' rounding.
SOBA_PLUS = {
    "whurs19/clip_rn50": (71.54, 87.9),
    "whurs19/clip_vitb32": (81.29, 91.2),
    "cars/clip_vitb32": (62.72, 66.2),
    "pacs/art_painting_vitb16": (97.52, 97.8),
    "pacs/cartoon_vitb16": (99.29, 99.1),
    "pacs/photo_vitb16": (100.0, 99.8),
}


def means(path, methods, **overrides):
    records = evaluate(soba.FeatureSet.load(path), methods, orders=5, overrides=overrides)
    return {row["method"]: row["accuracy_mean"] for row in summarise(records)}


def test_the_paper_as_we_read_it(whurs19):
    zero_shot, gain, tda = BARS[whurs19.stem]
    accuracy = means(whurs19, ["zero-shot", "ncm", "soba", "tda"])
    assert accuracy["zero-shot"] == pytest.approx(zero_shot, abs=0.005)
    assert accuracy["soba"] - accuracy["ncm"] >= gain
    assert accuracy["tda"] >= tda


def test_the_formula_as_printed_stays_at_zero_shot(whurs19):
    accuracy = means(whurs19, ["zero-shot", "soba"], reading="literal")
    assert abs(accuracy["soba"] - accuracy["zero-shot"]) <= 2.5


@pytest.mark.long
def test_a_stream_that_is_sorted_by_class_gains():
    """196 classes, one after the other."""
    path = REAL_DATA / "cars" / "clip_vitb32.npz"
    if not path.is_file():
        pytest.skip(f"no real features at {path}; set SOBA_REAL_DATA")
    features = soba.FeatureSet.load(path)
    stream = build("sorted by class", features, 0)

    def accuracy(method):
        return run_one(make(method, stream, features.logit_scale), stream)["accuracy"]

    assert accuracy("soba+") >= accuracy("zero-shot") + 2.0


@pytest.mark.parametrize("name", SOBA_PLUS)
def test_soba_plus_gains_and_does_no_harm(name):
    path = REAL_DATA / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no real features at {path}; set SOBA_REAL_DATA")
    zero_shot, least = SOBA_PLUS[name]
    accuracy = means(path, ["zero-shot", "soba+"])
    assert accuracy["zero-shot"] == pytest.approx(zero_shot, abs=0.005)
    assert accuracy["soba+"] >= least
    assert accuracy["soba+"] >= zero_shot - 0.3
