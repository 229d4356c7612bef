"""Scores and sums of rows that belong to a few classes each, against plain loops."""

from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from soba.adapt.soba_plus import segments


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(0, 60),
    few=st.integers(1, 4),
    classes=st.integers(1, 9),
    block=st.sampled_from([1, 4, 256]),
    piece=st.sampled_from([1, 3, 256]),
    seed=st.integers(0, 10_000),
)
def test_against_loops(n, few, classes, block, piece, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(70, 6)).astype(np.float32)
    at = rng.permutation(70)[:n]
    options = rng.integers(classes, size=(n, few))
    weights = rng.normal(size=(classes, 6)).astype(np.float32)
    share = rng.random((n, few))
    sums = np.ones((classes, 6), np.float32)
    expected_sums, expected = sums.astype(float), np.zeros((n, few))
    for i in range(n):
        for j, k in enumerate(options[i]):
            expected[i, j] = sum(
                float(a) * float(b) for a, b in zip(rows[at[i]], weights[k], strict=True)
            )
            expected_sums[k] += share[i, j] * rows[at[i]]
    with mock.patch.multiple(segments, _BLOCK_ROWS=block, _PIECE_ROWS=piece):
        scores = segments.option_scores(rows, at, weights, options)
        everywhere = np.repeat(at, few), options.reshape(-1), share.reshape(-1)
        segments.add_segments(sums, rows, *everywhere)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    np.testing.assert_allclose(sums, expected_sums, atol=1e-4)


def test_equal_samples_in_other_slots_give_equal_bits():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(500, 8)).astype(np.float32), rng.integers(7, size=500)
    weights, places = rng.random(500), rng.permutation(500)
    moved = np.empty_like(rows)
    moved[places] = rows
    sums = np.zeros((2, 7, 8), np.float32)
    segments.add_segments(sums[0], rows, np.arange(500), labels, weights)
    segments.add_segments(sums[1], moved, places, labels, weights)
    assert np.array_equal(sums[0], sums[1])
