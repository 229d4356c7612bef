"""However a stream is cut into calls: the same state, the same answers."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import soba
from soba.registry import adapter_class
from soba.testing import assert_same_samples, example_stream

# Few-shot methods learn nothing from a stream, and to episodic ones it is no stream.
NAMES = soba.list_methods(family="stream")


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 10_000),
    n=st.integers(1, 160),
    classes=st.integers(1, 9),
    width=st.integers(2, 20),
    copies=st.integers(0, 30),
    refresh=st.sampled_from(["growth", "tenths", 1, 3, 10, 64]),
    capacity=st.sampled_from([1, 2, 5, 16]),
    cuts=st.lists(st.integers(0, 160), max_size=8),
    known=st.integers(0, 20),
)
def test_cuts(name, seed, n, classes, width, copies, refresh, capacity, cuts, known):
    features, _, text = example_stream(n=n, classes=classes, width=width, seed=seed)
    copies = min(copies, n // 2)
    if copies:
        features[-copies:] = features[:copies]  # the same image again, as another sample
    ids = np.random.default_rng(seed).permutation(10 * n)[:n]
    # Some samples come twice under one id: the second time they teach nothing.
    again = np.random.default_rng(seed).integers(n, size=known)
    rows = np.concatenate([np.arange(n), again])
    options = {"logit_scale": 20.0}
    if "refresh" in adapter_class(name)(text).params:
        options |= {"refresh": refresh, "total": n}
    if "capacity" in adapter_class(name)(text).params:
        options["capacity"] = capacity

    def run(edges):
        adapter = soba.create_adapter(name, text, **options)
        out = [
            adapter.adapt(features[rows[a:b]], ids=ids[rows[a:b]])
            for a, b in itertools.pairwise(edges)
            if a < b
        ]
        return adapter, np.concatenate(out)

    # A call may not repeat ids, so the repeated rows come one by one.
    tail = list(range(n, len(rows) + 1))
    whole, expected = run([0, *tail])
    for middle in (range(1, n), sorted(min(cut, n) for cut in cuts)):
        adapter, logits = run([0, *middle, *tail])
        assert_same_samples(adapter, whole)
        assert np.abs(logits - expected).max() <= 1e-5 * max(np.abs(expected).max(), 1.0)
        np.testing.assert_allclose(
            adapter.logits(features), whole.logits(features), atol=1e-5 * np.abs(expected).max()
        )
