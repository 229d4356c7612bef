"""The queue equals the paper's Algorithm 2, whatever the order, the cuts and the repetitions."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ReferenceQueue

from soba.adapt._lifetimes import lifetimes
from soba.adapt.queue import EntropyQueue

CLASSES, WIDTH = 3, 2


@st.composite
def samples(draw):
    """(labels, entropies, ids, features) with many ties, in an arrival order of their own."""
    n = draw(st.integers(0, 40))
    labels = draw(st.lists(st.integers(0, CLASSES - 1), min_size=n, max_size=n))
    entropies = draw(
        st.lists(st.sampled_from([0.0, 1e-9, 0.1, 0.2, 0.2000001, 3.0]), min_size=n, max_size=n)
    )
    ids = draw(st.lists(st.integers(-(2**62), 2**62), min_size=n, max_size=n, unique=True))
    features = np.random.default_rng(0).normal(size=(n, WIDTH)).astype(np.float32)
    return np.array(labels, int), np.array(entropies), np.array(ids, np.int64), features


def fill(capacity, data, cuts=(), **options):
    queue = EntropyQueue(CLASSES, WIDTH, capacity, **options)
    labels, entropies, ids, features = data
    edges = [0, *sorted(cuts), len(ids)]
    for start, stop in itertools.pairwise(edges):
        part = slice(start, stop)
        queue.update(features[part], labels[part], entropies[part], ids[part])
    return queue


def same(one, other):
    a, b = one.items(), other.items()
    assert all(
        np.array_equal(getattr(a, k), getattr(b, k))
        for k in ("features", "labels", "entropies", "ids")
    )


def members(queue):
    items = queue.items()
    return {k: items.ids[items.labels == k].tolist() for k in np.unique(items.labels).tolist()}


# Above 16 a queue makes room as it fills.
capacities = st.sampled_from([1, 2, 3, 7, 17, 30, 1 << 20, None])


@settings(max_examples=300, deadline=None)
@given(samples(), capacities, st.lists(st.integers(0, 40), max_size=6))
def test_equals_algorithm_2_however_cut(data, capacity, cuts):
    labels, entropies, ids, features = data
    reference = ReferenceQueue(capacity)
    for row in range(len(ids)):
        reference.update(features[row], labels[row], entropies[row], ids[row])
    cuts = [min(cut, len(ids)) for cut in cuts]
    queue = fill(capacity, data, cuts)
    assert members(queue) == reference.members()
    same(queue, fill(capacity, data, range(len(ids))))
    # A sample's features stay with it.
    by_id = dict(zip(ids.tolist(), features, strict=True))
    items = queue.items()
    assert all(
        np.array_equal(by_id[i], f) for i, f in zip(items.ids.tolist(), items.features, strict=True)
    )


@settings(max_examples=200, deadline=None)
@given(samples(), capacities, st.randoms())
def test_arrival_order_does_not_matter(data, capacity, random):
    order = list(range(len(data[2])))
    random.shuffle(order)
    order = np.array(order, int)
    same(
        fill(capacity, data), fill(capacity, [column[order] for column in data], [len(order) // 2])
    )


@settings(max_examples=200, deadline=None)
@given(samples(), capacities, st.integers(0, 40), st.integers(0, 40))
def test_merge_is_commutative_associative_idempotent(data, capacity, one, two):
    def part(a, b):
        return fill(capacity, [column[a:b] for column in data])

    one, two = sorted((min(one, len(data[2])), min(two, len(data[2]))))
    whole = fill(capacity, data)
    pieces = [(0, one), (one, two), (two, None)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        merged = EntropyQueue(CLASSES, WIDTH, capacity)
        for index in order:
            merged.merge(part(*pieces[index]).members())
        same(merged, whole)
    left = part(*pieces[0])
    right = part(*pieces[1])
    right.merge(part(*pieces[2]).members())
    left.merge(right.members())
    same(left, whole)
    left.merge(whole.members())
    left.merge(left.members())
    same(left, whole)


@settings(max_examples=200, deadline=None)
@given(samples(), st.sampled_from([1, 2, 3]), st.integers(0, 40))
def test_lifetimes_tell_the_story_of_one_by_one(data, capacity, start):
    labels, entropies, ids, features = data
    start = min(start, len(ids))
    queue = fill(capacity, [column[:start] for column in data])
    labels, entropies, ids, features = (column[start:] for column in data)
    enters, leaves, old_leaves = lifetimes(queue, labels, entropies, ids)
    present = {}
    for label in range(CLASSES):
        for rank in range(queue.sizes[label]):
            slot = queue.slots[label, rank]
            present[int(queue.ids[label, rank])] = old_leaves[label, slot]
    for step in range(len(ids)):
        queue.update(*(c[step : step + 1] for c in (features, labels, entropies, ids)))
        now = set(queue.items().ids.tolist())
        from_block = {int(ids[i]) for i in range(step + 1) if enters[i] and step < leaves[i]}
        from_before = {i for i, leave in present.items() if step < leave}
        assert now == from_block | from_before


@settings(max_examples=100, deadline=None)
@given(samples(), capacities)
def test_arrays_and_restore(data, capacity):
    queue = fill(capacity, data, [7] if len(data[2]) > 7 else [])
    same(queue.copy(), queue)


def test_twins_tie_though_their_entropies_round_differently():
    feature = np.array([[0.6, 0.8]], np.float32)
    kept = []
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        noise = np.array([0.5, 0.5 * (1 + 3e-7), 0.5 * (1 - 3e-7)])[order]
        for cuts in ((), (1, 2)):
            queue = EntropyQueue(1, 2, 2, twin_tolerance=1e-4)
            edges = [0, *cuts, 3]
            for a, b in itertools.pairwise(edges):
                rows = slice(a, b)
                n = b - a
                queue.update(
                    np.repeat(feature, n, 0), np.zeros(n, int), noise[rows], np.array(order)[rows]
                )
            kept.append(queue.items().ids.tolist())
    assert kept == [[0, 1]] * len(kept)


def test_different_images_of_near_equal_entropy_are_not_twins():
    queue = EntropyQueue(1, 2, 1, twin_tolerance=1e-4)
    rows = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    queue.update(rows, [0, 0], [0.5, 0.5 * (1 - 1e-6)], [0, 1])
    assert queue.items().ids.tolist() == [1]


def test_extra_bytes_travel_with_their_sample():
    queue = EntropyQueue(2, 1, 2, extra_width=1)
    for id_ in (5, 3, 9, 1, 7):
        queue.update(np.array([[id_]]), [id_ % 2], [float(id_)], [id_], np.array([[id_]], np.uint8))
    items = queue.items()
    assert (
        items.ids.tolist()
        == items.extra[:, 0].tolist()
        == items.features[:, 0].astype(int).tolist()
        == [1, 3]
    )


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "16"])
def test_bad_capacity(capacity):
    with pytest.raises(ValueError, match="capacity"):
        EntropyQueue(2, 2, capacity)


def test_memory_is_bounded():
    queue = EntropyQueue(100, 64, 16)
    rng = np.random.default_rng(0)
    for start in range(0, 20_000, 1000):
        ids = np.arange(start, start + 1000)
        queue.update(
            rng.normal(size=(1000, 64)), rng.integers(100, size=1000), rng.random(1000), ids
        )
    assert len(queue) == 1600
    assert queue.nbytes <= 1.3 * 100 * 16 * 64 * 4
