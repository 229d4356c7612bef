"""NCM, SOBA and TDA agree with loops and dictionaries, on random and on real streams."""

import numpy as np
import pytest
from reference import ReferencePrototypes, ReferenceTDA

import soba
from soba.testing import example_stream

READINGS = ["whitened", "gda", "dual", "literal"]


def close(logits, expected):
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
    # The same answers, but where two classes are within rounding of each other.
    two = np.sort(expected, axis=1)[:, -2:]
    clear = two[:, 1] - two[:, 0] > 1e-4 * np.abs(expected).max()
    assert clear.mean() > 0.5
    assert np.array_equal(logits.argmax(1)[clear], expected.argmax(1)[clear])


# Refreshed at every 9th sample, the first covariances have no full rank, and then the basis is
# whatever LAPACK picks in the null space: for what depends on it there is nothing to compare.
CASES = [
    (reading, classifier, refresh)
    for reading in READINGS
    for classifier in ("linear", "l1", "l2")
    for refresh in ("tenths", "growth", 9)
    if (reading, classifier) != ("gda", "l1")
    if refresh != 9 or (reading != "literal" and (reading, classifier) != ("dual", "l1"))
]


@pytest.mark.parametrize(("reading", "classifier", "refresh"), CASES)
def test_soba(reading, classifier, refresh):
    features, _, text = example_stream(n=300, classes=8, width=16, seed=3)
    options = {"logit_scale": 20.0, "capacity": 5, "reading": reading, "classifier": classifier}
    reference = ReferencePrototypes(text, **options)
    expected = reference.run(features, refresh)
    adapter = soba.SOBA(text, **options, refresh=refresh, total=300)
    close(adapter.adapt(features, ids=np.arange(300)), expected)
    items = adapter.queue.items()
    for k, ids in reference.queue.members().items():
        assert items.ids[items.labels == k].tolist() == ids


@pytest.mark.parametrize(
    ("metric", "classifier"), [("cosine", "linear"), ("l1", "l1"), ("l2", "l2")]
)
def test_ncm(metric, classifier):
    features, _, text = example_stream(n=300, classes=8, width=16, seed=4)
    reading = "ncm" if metric == "cosine" else "means"
    reference = ReferencePrototypes(
        text, logit_scale=20.0, capacity=None, reading=reading, classifier=classifier
    )
    adapter = soba.NCM(text, logit_scale=20.0, capacity=None, metric=metric, refresh="growth")
    close(adapter.adapt(features), reference.run(features, "growth"))


@pytest.mark.parametrize("capacity", [1, 16])
def test_unseen_classes(capacity):
    """Most classes never win: they get the mean of the others' adapter logits."""
    features, _, text = example_stream(n=200, classes=30, width=12, seed=5)
    text[3:] = -text[3:]
    for reading in ("whitened", "gda"):
        reference = ReferencePrototypes(text, logit_scale=20.0, capacity=capacity, reading=reading)
        expected = reference.run(features, "tenths")
        assert len(reference.queue.members()) < 20
        adapter = soba.SOBA(
            text, logit_scale=20.0, capacity=capacity, reading=reading, refresh="tenths", total=200
        )
        close(adapter.adapt(features), expected)


def test_tda():
    features, _, text = example_stream(n=700, classes=8, width=16, seed=6)
    reference = ReferenceTDA(text, logit_scale=20.0)
    expected = np.array([reference.adapt(row) for row in features])
    assert len(reference.negative) > 2, "the stream should reach the negative cache"
    adapter = soba.TDA(text, logit_scale=20.0)
    close(adapter.adapt(features), expected)


def test_real_streams(whurs19):
    features = soba.FeatureSet.load(whurs19)
    order = np.random.default_rng(0).permutation(len(features))[:400]
    stream, text = features.image_features[order].astype(np.float32), features.text_features
    expected = ReferencePrototypes(text).run(stream, "tenths")
    close(soba.SOBA(text, refresh="tenths", total=400).adapt(stream), expected)
    expected = ReferencePrototypes(text, reading="ncm").run(stream, "tenths")
    close(soba.NCM(text, refresh="tenths", total=400).adapt(stream), expected)
    reference = ReferenceTDA(text)
    close(soba.TDA(text).adapt(stream), np.array([reference.adapt(row) for row in stream]))
