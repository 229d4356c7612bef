"""How far apart logits may lie that other kernels, libraries or batches computed."""

import numpy as np

from soba._assertions import ROUNDING


def assert_same_logits(logits, expected, tolerance=ROUNDING):
    """Equal to 1e-5 of their size; the same answers, but where two classes are within that."""
    logits, expected = np.asarray(logits), np.asarray(expected)
    gap = tolerance * np.abs(expected).max()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=gap)
    second, first = np.sort(expected, axis=-1)[..., -2:].T
    clear = first - second > 2 * gap
    assert clear.any()
    np.testing.assert_array_equal(logits.argmax(axis=-1)[clear], expected.argmax(axis=-1)[clear])
