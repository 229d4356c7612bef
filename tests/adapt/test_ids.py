import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from soba.adapt import _ids
from soba.adapt._ids import IdSet

batches = st.lists(st.lists(st.integers(0, 100), max_size=12), max_size=12)


@settings(max_examples=300, deadline=None)
@given(batches, batches, st.sampled_from([1, 3, 4096]))
def test_behaves_like_a_set(one, other, pending):
    _ids._PENDING, kept = pending, _ids._PENDING
    try:
        sets = []
        for run in (one, other):
            ids, plain = IdSet(), set()
            for batch in run:
                batch = np.array(sorted(set(batch)), np.int64)
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
    finally:
        _ids._PENDING = kept


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
