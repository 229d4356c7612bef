"""What each regime promises, on any labels; and against the same regimes written out slowly."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soba.studies import regimes

ORDERED = {  # regime -> whether all images come
    "shuffled": (regimes.shuffled, True),
    "quarter": (regimes.quarter, False),
    "sorted": (regimes.by_class, True),
    "few": (regimes.few, False),
    "zipf": (regimes.zipf, False),
    "bursts 0.1": (lambda y, c, rng: regimes.bursts(y, c, rng, 0.1), True),
    "bursts 0.01": (lambda y, c, rng: regimes.bursts(y, c, rng, 0.01), True),
    "bursts 0.001": (lambda y, c, rng: regimes.bursts(y, c, rng, 0.001, slots=c), True),
}


@st.composite
def labelled(draw):
    """(labels, listed classes, seed): uneven, with classes that have no image."""
    classes = draw(st.integers(1, 30))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=120))
    return np.array(labels), classes, draw(st.integers(0, 1000))


@pytest.mark.parametrize("name", ORDERED)
@given(case=labelled())
def test_every_image_comes_once_at_most_and_the_seed_decides_when(name, case):
    labels, classes, seed = case
    arrange, whole = ORDERED[name]
    order, again = (arrange(labels, classes, np.random.default_rng(seed)) for _ in range(2))
    assert np.array_equal(order, again)
    assert 0 < len(order) == len(set(order.tolist()))
    assert set(order.tolist()) <= set(range(len(labels)))
    assert len(order) == len(labels) or not whole


@given(case=labelled())
def test_three_of_four_listed_classes_never_come(case):
    labels, classes, seed = case
    order = regimes.quarter(labels, classes, np.random.default_rng(seed))
    come = set(labels[order].tolist())
    assert len(come) == min(max(2, classes // 4), len(set(labels.tolist())))
    assert len(order) == np.isin(labels, list(come)).sum()  # those that come, come in full


@given(case=labelled(), most=st.integers(1, 5))
def test_few_are_as_many_as_said_or_all_there_are(case, most):
    labels, classes, seed = case
    order = regimes.few(labels, classes, np.random.default_rng(seed), most)
    counts = np.bincount(labels, minlength=classes)
    assert (
        np.bincount(labels[order], minlength=classes).tolist() == np.minimum(counts, most).tolist()
    )


@given(case=labelled())
def test_one_class_after_the_other(case):
    labels, classes, seed = case
    stream = labels[regimes.by_class(labels, classes, np.random.default_rng(seed))]
    assert (stream[1:] != stream[:-1]).sum() == len(set(labels.tolist())) - 1


@given(case=labelled())
def test_no_class_of_a_zipf_stream_has_more_than_its_rank_allows(case):
    labels, classes, seed = case
    stream = labels[regimes.zipf(labels, classes, np.random.default_rng(seed))]
    counts = np.sort(np.bincount(stream, minlength=classes))[::-1]
    allowed = np.maximum(1, np.bincount(labels).max() // np.arange(1, classes + 1))
    assert (counts <= allowed).all()
    assert set(stream.tolist()) == set(labels.tolist())  # none is absent


def test_a_zipf_stream_of_even_classes_is_what_zipf_says():
    labels = np.repeat(np.arange(8), 24)
    stream = labels[regimes.zipf(labels, 8, np.random.default_rng(0))]
    assert sorted(np.bincount(stream).tolist(), reverse=True) == [24, 12, 8, 6, 4, 4, 3, 3]


def spells(stream):
    """How often each class begins anew: neighbours of other classes between its images."""
    ends = np.flatnonzero(np.append(stream[1:] != stream[:-1], True))
    return np.mean([*collections.Counter(stream[ends].tolist()).values()])


def where(stream, label):
    """The places of a class, as shares of the stream."""
    return np.flatnonzero(stream == label) / len(stream)


def test_the_smaller_the_concentration_the_less_of_the_time_a_class_comes():
    """In how many twentieths of the stream a class of fifty images is seen."""
    labels = np.repeat(np.arange(40), 50)
    seen_in = []
    for concentration in (1000.0, 0.1, 0.01):
        streams = [
            labels[regimes.bursts(labels, 40, np.random.default_rng(seed), concentration)]
            for seed in range(3)
        ]
        slots = [len(set((20 * where(s, c)).astype(int))) for s in streams for c in range(40)]
        seen_in.append(np.mean(slots))
    assert seen_in[0] > 15  # even in time: nearly every twentieth has every class
    assert 5 < seen_in[1] < 11
    assert seen_in[2] < 5


def test_images_of_a_slot_are_mixed():
    """Bursts are of many classes at once where classes are many: they are not sorted."""
    labels = np.repeat(np.arange(100), 20)
    bursts = labels[regimes.bursts(labels, 100, np.random.default_rng(0), 0.01)]
    by_class = labels[regimes.by_class(labels, 100, np.random.default_rng(0))]
    assert spells(by_class) == 1 < 5 < spells(bursts)


def written_out(name, labels, classes, seed):
    """The definitions, image by image."""
    rng = np.random.default_rng(seed)
    order, place = rng.permutation(len(labels)).tolist(), rng.permutation(classes).tolist()
    if name == "quarter":
        present = place[: max(2, classes // 4)]
        return [i for i in order if labels[i] in present]
    if name == "sorted":
        return [i for turn in range(classes) for i in order if place[labels[i]] == turn]
    if name in ("few", "zipf"):
        largest = max(collections.Counter(labels.tolist()).values())
        seen, kept = collections.Counter(), []
        for i in order:
            most = 4 if name == "few" else max(1, int(largest / (1 + place[labels[i]])))
            if seen[labels[i]] < most:
                kept.append(i)
            seen[labels[i]] += 1
        return kept
    slots = [[] for _ in range(20)]
    slot_of = {}
    for label in range(classes):
        images = [i for i in order if labels[i] == label]
        share = rng.dirichlet([0.1] * 20)
        slot_of |= dict(zip(images, rng.choice(20, len(images), p=share), strict=True))
    for i in order:
        slots[slot_of[i]].append(i)
    return [i for slot in slots for i in slot]


@pytest.mark.parametrize("name", ["quarter", "sorted", "few", "zipf", "bursts 0.1"])
@pytest.mark.parametrize("seed", range(3))
def test_the_regimes_are_their_definitions(name, seed):
    labels = np.random.default_rng(9).permutation(np.arange(300) % 13)
    order = ORDERED[name][0](labels, 13, np.random.default_rng(seed))
    assert order.tolist() == written_out(name, labels, 13, seed)


@given(case=labelled(), together=st.integers(1, 6))
def test_batches_are_disjoint_sets_of_few_classes(case, together):
    labels, classes, seed = case
    sets = regimes.batches(labels, classes, np.random.default_rng(seed), together)
    rows = np.concatenate(sets)
    assert len(rows) == len(set(rows.tolist())) and len(sets) <= 10
    for some in sets:
        inside = set(labels[some].tolist())
        assert 0 < len(inside) <= together
        assert len(some) == np.isin(labels, list(inside)).sum()  # all images of a class
    if len(set(labels.tolist())) <= 10 * together:
        assert len(rows) == len(labels)


@given(case=labelled(), least=st.integers(1, 5), size=st.integers(1, 40))
def test_statas_batches_have_as_many_classes_and_images_as_said(case, least, size):
    labels, classes, seed = case
    rng = np.random.default_rng(seed)
    sets = regimes.stata_batches(labels, classes, rng, size, least, least + 3)
    assert len(sets) == -(-len(labels) // size)
    for rows in sets:
        assert 0 < len(rows) <= size
        assert len(rows) == len(set(rows.tolist()))
        assert len(set(labels[rows].tolist())) <= least + 3


def test_ten_sets_are_enough():
    labels = np.arange(300) % 50
    sets = regimes.batches(labels, 50, np.random.default_rng(0), 4)
    assert len(sets) == 10
    assert all(len(set(labels[rows].tolist())) == 4 for rows in sets)


def test_statas_batches_reach_both_ends_of_their_range():
    labels = np.repeat(np.arange(30), 100)
    sets = regimes.stata_batches(labels, 30, np.random.default_rng(0), 64, 1, 4)
    classes = collections.Counter(len(set(labels[rows].tolist())) for rows in sets)
    assert set(classes) == {1, 2, 3, 4}
    assert all(len(rows) == 64 for rows in sets)
