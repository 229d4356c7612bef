"""A small stream of features, the classifier that a durable stream begins with, and what is due."""

import numpy as np
from colours import NAMES, ColourEncoder

import soba
from soba.serve.names import ids_of_names
from soba.testing import example_stream

SAMPLES = 6000
FEATURES, LABELS, TEXT = example_stream(n=SAMPLES, classes=len(NAMES), width=24, seed=3)
FEATURES = FEATURES.astype(np.float32)


def adapter(method="soba+", **settings):
    settings = ({"sample_size": 32} if method == "soba+" else {}) | settings
    return soba.create_adapter(method, TEXT, logit_scale=30.0, **settings)


def classifier(method="soba+", **settings):
    """Of colours, so that it takes pictures as well; its text features are the stream's."""
    return soba.Classifier(ColourEncoder(), NAMES, method=adapter(method, **settings), templates=())


def learn(stream, *rows):
    """How many of these samples were new."""
    return stream.learn(FEATURES[list(rows)], ids=rows)


def state_of(stream):
    return stream.to_classifier().adapter


def reference(rows):
    """An adapter that saw each of these samples once."""
    rows, single = np.asarray(rows), adapter()
    single.adapt(FEATURES[rows], ids=ids_of_names(rows))
    return single


def assert_learned(ours, rows, tolerance=1e-5):
    """A state is that of a reference that saw each of these samples once."""
    assert_same_samples(ours, reference(rows), tolerance)


def assert_same_samples(ours, theirs, tolerance=1e-5):
    """Ids in the sample, and the count, are equal; values to a tolerance.

    Places are those of each stream: they are equal where the samples came in the same order.
    """
    assert ours.n_seen == theirs.n_seen
    one, other = ours.state()["arrays"], theirs.state()["arrays"]
    for name in ("sample.ids", "seen"):
        np.testing.assert_array_equal(one[name], other[name])
    np.testing.assert_allclose(
        one["sample.features"], other["sample.features"], rtol=tolerance, atol=tolerance
    )
    assert (one["sample.places"] < ours.n_seen).all()


def assert_equal_bits(one, other):
    """Two adapters are equal in every bit of their states."""
    one, other = one.state(), other.state()
    assert one["meta"] == other["meta"] and one["arrays"].keys() == other["arrays"].keys()
    for name, array in one["arrays"].items():
        assert array.tobytes() == other["arrays"][name].tobytes(), name
