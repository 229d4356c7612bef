"""SOBA+ against the slow reference beside its docs, image by image and class by class."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import soba
from soba.testing import example_stream

DOCS = Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("reference", DOCS / "soba_plus_reference.py")
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)

TOLERANCE = 2e-3  # of logits up to 20: float32, and an inverse, against float64


def a_stream(seed, *, n=140, order="shuffled", noise=1.0):
    """Unit images and text in float64, and some copies of one image."""
    images, labels, text = example_stream(n=n, seed=seed)
    rng = np.random.default_rng(seed)
    images = images + noise * 0.02 * rng.normal(size=images.shape)
    if order == "sorted":
        images = images[np.argsort(labels, kind="stable")]
    if order == "few classes":
        images = images[labels < 2]
    images[20:24] = images[20]
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    text = text.astype(np.float64)
    return images, text / np.linalg.norm(text, axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("order", ["shuffled", "sorted", "few classes"])
def test_a_stream_is_answered_as_the_slow_reference_answers_it(seed, order):
    images, text = a_stream(seed, order=order)
    fast = soba.SOBAPlus(text, logit_scale=20.0).adapt(images)
    np.testing.assert_allclose(fast, reference.adapt(images, text, 20.0), atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("order", ["shuffled", "few classes"])
def test_a_whole_set_is_answered_as_the_slow_reference_answers_it(seed, order):
    images, text = a_stream(seed, order=order)
    fast = soba.SOBAPlus(text, logit_scale=20.0).transduce(images)
    np.testing.assert_allclose(fast, reference.transduce(images, text, 20.0), atol=TOLERANCE)


def test_the_reference_streams_use_every_part_of_the_formula():
    """Or the parity above would say nothing of it."""
    beliefs, overconfidences = [], []
    for order in ("shuffled", "sorted", "few classes"):
        images, text = a_stream(0, order=order)
        clips = [reference.Clip(image, text, 20.0) for image in images]
        weights = reference.copy_weights(images)
        model, log_pi = reference.fit(images, clips, text, weights)
        beliefs.append(reference.belief_in_stream(clips, weights))
        model["prior"] = beliefs[-1] * log_pi
        overconfidences.append(reference.overconfidence(model, model, images, clips, weights))
        assert min(weights) == pytest.approx(1 / 4)
    assert min(beliefs) == 0.0 and max(beliefs) > 0.1
    assert max(overconfidences) > 1.0
