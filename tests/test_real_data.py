"""The figures the README states, on real CLIP features."""

import pytest

import soba
from soba.bench.evaluate import evaluate, summarise

BARS = {  # zero-shot, least gain of soba over ncm, least tda
    "clip_rn50": (71.54, 2.0, 80.0),
    "clip_vitb32": (81.29, 1.0, 85.0),
}


def means(path, methods, **overrides):
    records = evaluate(soba.FeatureSet.load(path), methods, orders=5, overrides=overrides)
    return {row["method"]: row["accuracy_mean"] for row in summarise(records)}


def test_the_paper_as_we_read_it(whurs19):
    zero_shot, gain, tda = BARS[whurs19.stem]
    found = means(whurs19, ["zero-shot", "ncm", "soba", "tda"])
    assert found["zero-shot"] == pytest.approx(zero_shot, abs=0.005)
    assert found["soba"] - found["ncm"] >= gain
    assert found["tda"] >= tda


def test_the_formula_as_printed_stays_at_zero_shot(whurs19):
    found = means(whurs19, ["zero-shot", "soba"], reading="literal")
    assert abs(found["soba"] - found["zero-shot"]) <= 2.5
