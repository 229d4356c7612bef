import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soba.adapt import _ids
from soba.adapt._ids import IdSet, SeenIds

batches = st.lists(st.lists(st.integers(0, 100), max_size=12), max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    batches,
    batches,
    st.sampled_from([1, 3, 4096]),
    st.sampled_from([0, 1, 4]),
    st.sampled_from([2, 8, 1 << 16]),
)
def test_behaves_like_a_set(one, other, pending, fall, large):
    with mock.patch.multiple(_ids, _PENDING=pending, _FALL=fall, _LARGE=large):
        sets = []
        for run in (one, other):
            ids, plain = IdSet(), set()
            for batch in run:
                batch = np.array(list(dict.fromkeys(batch)), np.int64)  # in any order
                known = ids.contains(batch)
                assert known.tolist() == [int(i) in plain for i in batch]
                ids.add(batch[~known])
                plain.update(batch.tolist())
                assert len(ids) == len(plain)
            sets.append((ids, plain))
        (a, plain_a), (b, plain_b) = sets
        union = a.union(b)
        assert len(union) == len(plain_a | plain_b)
        rebuilt = IdSet()
        rebuilt.add(np.array(sorted(plain_a | plain_b), np.int64))
        assert np.array_equal(union.intervals(), rebuilt.intervals())
        values = np.arange(-1, 102)
        assert union.contains(values).tolist() == [int(i) in plain_a | plain_b for i in values]
        for most in (0, 1, 5, 1000):
            due = sorted(plain_a)[max(0, len(plain_a) - most) :]
            assert a.largest(most).tolist() == due
        a.copy().add(np.array([1000]))  # a copy goes its own way
        assert len(a) == len(plain_a) and not a.contains(np.array([1000, 1001])).any()


def test_a_running_count_costs_one_interval():
    ids = IdSet()
    for start in range(0, 10_000, 7):
        ids.add(np.arange(start, start + 7))
    assert ids.intervals().shape == (1, 2)


def test_random_ids_one_by_one():
    rng = np.random.default_rng(0)
    values = rng.choice(2**62, 9_000, replace=False)
    ids = IdSet()
    for value in values:
        ids.add(np.array([value]))
    assert ids.contains(values).all()
    assert len(ids) == 9_000


def test_a_running_count_beside_scattered_ids_grows_in_place():
    ids = IdSet()
    scattered = 2 * np.random.default_rng(0).permutation(1000) + 10**6
    ids.add(scattered)
    for start in range(0, 10_000, 8):
        ids.add(np.arange(start, start + 8))
    expected = np.stack([np.sort(scattered), np.sort(scattered) + 1], axis=1)
    assert np.array_equal(ids.intervals(), [[0, 10_000], *expected])


def test_scattered_ids_move_a_few_times_only():
    values = 2 * np.random.default_rng(0).permutation(1 << 16)
    ids, moved, most_levels, join = IdSet(), 0, 0, _ids._join

    def counted(levels):
        nonlocal moved
        moved += sum(len(level) // 2 for level in levels)
        return join(levels)

    with mock.patch.object(_ids, "_join", counted):
        for batch in np.split(values, 512):
            ids.add(batch)
            most_levels = max(most_levels, len(ids._levels))
    assert len(ids) == 1 << 16 and ids.contains(values).all()
    # 512 batches make at most log_4(512) = 4.5 levels, and each id moves a few times in each; were
    # all joined at every batch, an id would move 256 times.
    assert most_levels <= 6
    assert moved <= 16 * len(values)


@settings(max_examples=200, deadline=None)
@given(batches, batches, st.sampled_from([1, 3, 4096]))
def test_ids_can_be_taken_out(added, removed, pending):
    with mock.patch.multiple(_ids, _PENDING=pending):
        ids, plain = IdSet(), set()
        for more, fewer in itertools.zip_longest(added, removed, fillvalue=[]):
            new = [i for i in dict.fromkeys(more) if i not in plain]
            for part in (new[:1], new[1:]):  # one alone waits to be settled
                ids.add(np.array(part, np.int64))
            plain.update(new)
            gone = [i for i in dict.fromkeys(fewer) if i in plain]
            ids.remove(np.array(gone, np.int64))
            plain.difference_update(gone)
            assert len(ids) == len(plain)
            values = np.arange(-1, 102)
            assert ids.contains(values).tolist() == [int(i) in plain for i in values]
        rebuilt = IdSet()
        rebuilt.add(np.array(sorted(plain), np.int64))
        assert np.array_equal(ids.intervals(), rebuilt.intervals())


def seen(ids, forgotten=()):
    known = SeenIds()
    known.add(np.array(ids, np.int64))
    known.forget(np.array(forgotten, np.int64))
    return known


def test_forgotten_ids_count_and_are_new_again():
    known = seen([1, 2, 3, 9], forgotten=[2, 9, 50])
    assert len(known) == 4 and known.space == "given"
    assert known.number(np.array([1, 2, 9]), 3)[1].tolist() == [1, 2]
    assert known.unknown(np.array([1, 2, 9])).tolist() == [False, True, True]
    known.forget(np.array([1, 3]))
    assert len(known) == 4 and known.space == "given" and known.arrays()["seen"].size == 0
    known.add(np.array([2]))
    assert len(known) == 5


def test_what_was_forgotten_is_in_a_state():
    known = seen([1, 2, 3], forgotten=[2])
    again = SeenIds.restored(known.arrays(), known.meta())
    assert (len(again), len(known.copy()), again.forgotten) == (3, 3, 1)
    assert "forgotten" not in seen([1]).meta()  # as files of before
    for bad in (-1, True, "1", 1.5):
        with pytest.raises(ValueError, match="forgotten"):
            SeenIds.restored(known.arrays(), known.meta() | {"forgotten": bad})


def test_a_union_counts_what_was_forgotten_once():
    one, other = seen([1, 2, 3], forgotten=[3]), seen([5, 6, 7], forgotten=[5, 6])
    for union in (one.union(other), other.union(one), one.union(other).union(other)):
        assert len(union) == 3 + 2 and union.given.intervals().tolist() == [[1, 3], [7, 8]]
    assert len(one.union(one)) == len(one)
