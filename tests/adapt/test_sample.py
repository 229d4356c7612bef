"""The uniform sample equals the smallest hashes of all ids, whatever the order and the cuts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soba.adapt.sample import UniformSample, hash_ids

WIDTH = 2


def splitmix64(number):
    """As its authors give it, in Python's numbers: the output for a state before it is stepped."""
    number = (number + 0x9E3779B97F4A7C15) % 2**64
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % 2**64
    return number ^ (number >> 31)


def kept(ids, size, key=0):
    """Of all ids, the smallest by hash, in that order."""
    return sorted(set(ids), key=lambda i: splitmix64(i + key * 0x9E3779B97F4A7C15))[:size]


def features_of(ids):
    """Rows that tell their ids apart."""
    ids = np.asarray(ids, np.int64).reshape(-1)
    return np.stack([ids % 9973, ids // 9973 % 9973], axis=1).astype(np.float32)


def filled(ids, size, cuts=(), key=0, places=None):
    """A sample that was offered ids, in blocks; their places are their numbers, if not given."""
    sample = UniformSample(WIDTH, size, key=key)
    ids = np.asarray(ids, np.int64)
    places = np.arange(len(ids)) if places is None else np.asarray(places, np.int64)
    for start, stop in itertools.pairwise([0, *sorted(cuts), len(ids)]):
        some = slice(start, stop)
        sample.update(features_of(ids[some]), ids[some], places[some])
    return sample


def earliest(ids, places):
    """By id the earliest of its places, with a dictionary."""
    known = {}
    for id_, place in zip(ids, places, strict=True):
        known[id_] = min(place, known.get(id_, place))
    return known


def assert_holds(sample, ids, places=None):
    items = sample.items()
    assert items.ids.tolist() == ids
    assert len(sample) == len(ids)
    np.testing.assert_array_equal(items.features, features_of(ids))
    if places is not None:
        assert items.places.tolist() == [places[id_] for id_ in ids]


some_ids = st.lists(
    st.one_of(st.integers(0, 60), st.integers(-40, -1), st.integers(-(2**63), 2**63 - 2)),
    max_size=60,
)
sizes = st.sampled_from([1, 2, 5, 16, 60, 100])
keys = st.sampled_from([0, 1, 7, 2**63, 2**64 - 1, 2**70 + 3])


def test_the_hash_is_splitmix64():
    # The first outputs of the generator that starts at 1234567, from its authors' test vector.
    states = [(1234567 + step * 0x9E3779B97F4A7C15) % 2**64 for step in range(3)]
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [splitmix64(state) for state in states] == expected
    assert hash_ids(np.array([1234567]), 0).tolist() == expected[:1]


@settings(max_examples=300)
@given(some_ids, keys)
def test_hashes_equal_the_reference(ids, key):
    hashes = hash_ids(np.array(ids, np.int64), key)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [splitmix64(i + key * 0x9E3779B97F4A7C15) for i in ids]


@settings(max_examples=300)
@given(some_ids, sizes, keys, st.lists(st.integers(0, 60), max_size=6), st.integers(0, 9999))
def test_equals_the_reference_however_cut_and_repeated(ids, size, key, cuts, seed):
    cuts = [min(cut, len(ids)) for cut in cuts]
    places = np.random.default_rng(seed).integers(1000, size=len(ids)).tolist()
    expected = kept(ids, size, key), earliest(ids, places)
    for sample in (
        filled(ids, size, cuts, key, places),
        filled(ids, size, range(len(ids)), key, places),
        filled(ids, size, (), key, places),
        filled(ids[::-1], size, cuts, key, places[::-1]),
    ):
        assert_holds(sample, *expected)


@settings(max_examples=200)
@given(some_ids, sizes, st.randoms())
def test_new_ids_may_be_offered_in_any_order(ids, size, random):
    """What streams do: ids that are known to be new, and features only for those that stay."""
    ids = list(dict.fromkeys(ids))
    random.shuffle(ids)
    one_by_one, at_once, fetched = UniformSample(WIDTH, size), UniformSample(WIDTH, size), []

    def fetch(rows):
        fetched.extend(rows.tolist())
        return features_of(np.array(ids, np.int64)[rows])

    at_once.offer(np.array(ids, np.int64), np.arange(len(ids)), fetch)
    assert len(fetched) == min(size, len(ids))
    for place, id_ in enumerate(ids):
        one_by_one.offer(
            np.array([id_]), np.array([place]), lambda rows, id_=id_: features_of([id_])[rows]
        )
    for sample in (one_by_one, at_once):
        assert_holds(sample, kept(ids, size), earliest(ids, range(len(ids))))


def test_only_what_is_kept_is_seen_again():
    """An earlier place counts, a later one does not, and what is not in the sample stays out."""
    ids = np.arange(40)
    sample = filled(ids, 10, places=ids + 100)
    before = sample.arrays()
    sample.see(ids, ids + 101)
    for name, array in before.items():
        assert np.array_equal(sample.arrays()[name], array)
    sample.see(ids[::-2], ids[::-2] + 99)
    assert_holds(sample, kept(range(40), 10), {i: i + 100 - i % 2 for i in range(40)})


@st.composite
def trees(draw):
    """A merge of 0, 1, 2, 3 in some order and shape, some of them more than once."""
    leaves = draw(st.permutations(range(4)))
    leaves += draw(st.lists(st.integers(0, 3), max_size=3))
    while len(leaves) > 1:
        at = draw(st.integers(0, len(leaves) - 2))
        leaves[at : at + 2] = [(leaves[at], leaves[at + 1])]
    return leaves[0]


@settings(max_examples=200)
@given(st.lists(some_ids, min_size=4, max_size=4), sizes, keys, trees())
def test_any_tree_of_merges_equals_one_sample(parts, size, key, tree):
    """Each shard has a time of its own; of an image that several saw, the earliest place counts."""

    def merged(tree):
        if isinstance(tree, int):
            return filled(parts[tree], size, key=key)
        left, right = map(merged, tree)
        left.merge(right.items())
        return left

    every, places = (
        list(itertools.chain(*parts)),
        [place for part in parts for place in range(len(part))],
    )
    assert_holds(merged(tree), kept(every, size, key), earliest(every, places))


def test_the_ids_that_a_stream_counts_are_sampled_too():
    ids = -1 - np.arange(1000)
    for cuts in ((), (1, 2, 500), range(1000)):
        assert_holds(filled(ids, 20, cuts), kept(ids.tolist(), 20))


def test_the_key_decides_who_is_kept():
    chosen = [set(filled(np.arange(2000), 50, key=key).items().ids.tolist()) for key in range(4)]
    for one, other in itertools.combinations(chosen, 2):
        assert len(one & other) < 10  # by chance: 50 * 50 / 2000, about one


@pytest.mark.parametrize("key", [0, 1, 12345])
@pytest.mark.parametrize("ids", [np.arange(20_000), -1 - np.arange(20_000)], ids=["given", "count"])
def test_every_position_has_the_same_chance(key, ids):
    places = filled(ids, 200, range(0, 20_000, 512), key).items().places / 20_000
    # Uniform on [0, 1]: mean 1/2, spread 1/sqrt(12); four standard errors either way.
    assert abs(places.mean() - 0.5) < 4 / np.sqrt(12 * 200)
    assert abs(places.std() - 1 / np.sqrt(12)) < 4 * np.sqrt((1 / 80 - 1 / 144) / 200 * 12 / 4)
    tenths = np.bincount((10 * places).astype(int).clip(max=9), minlength=10)
    assert ((tenths - 20) ** 2 / 20).sum() < 30  # chi squared of 9 degrees: 0.04 %


def test_full_and_not_full():
    ids = list(range(30))
    sample = filled(ids[:4], 5)
    assert len(sample) == 4
    assert_holds(sample, kept(ids[:4], 5))
    sample.update(features_of(ids[4:5]), ids[4:5], ids[4:5])
    assert_holds(sample, kept(ids[:5], 5), ids)
    sample.update(features_of(ids[:5]), ids[:5], ids[10:15])  # known
    assert_holds(sample, kept(ids[:5], 5), ids)
    for id_ in ids[5:]:
        sample.update(features_of([id_]), [id_], [id_])
        assert_holds(sample, kept(ids[: id_ + 1], 5), ids)
    assert_holds(filled([], 5), [])


def test_of_size_one_the_smallest_hash_stays():
    sample = UniformSample(WIDTH, 1)
    for count in range(1, 200):
        sample.update(features_of([count]), [count], [count])
        assert_holds(sample, kept(range(1, count + 1), 1), range(200))


@settings(max_examples=100)
@given(some_ids, sizes, keys, st.integers(0, 59))
def test_arrays_and_restore_to_the_bit(ids, size, key, cut):
    places = [*range(7, 7 + len(ids)), *range(40)]
    sample = filled(ids, size, [min(cut, len(ids))], key, places[: len(ids)])
    restored = filled([3, 4], size, key=key)  # what was there goes
    restored.restore(sample.arrays())
    for one in (restored, sample.copy()):
        for name, array in sample.arrays().items():
            assert one.arrays()[name].dtype == array.dtype
            assert one.arrays()[name].tobytes() == array.tobytes()
    more = [*ids, *range(100, 140)]
    restored.update(features_of(range(100, 140)), np.arange(100, 140), np.arange(40))  # and goes on
    assert_holds(restored, kept(more, size, key), earliest(more, places))


@pytest.mark.parametrize(
    ("entry", "change", "message"),
    [
        ("ids", lambda a: a[::-1], "not in the order of its ids' hashes"),
        ("ids", lambda a: a[[0, 0, 1, 2]], "not in the order of its ids' hashes"),
        ("ids", lambda a: a[:-1], "features are float32 of shape (4, 2), where shape (3, 2)"),
        ("ids", lambda a: a[:, None], "ids of shape (4, 1)"),
        ("ids", lambda a: a.astype(float), "ids of shape (4,), float64"),
        ("ids", lambda a: a.astype(np.uint64), "ids of shape (4,), uint64"),
        ("features", lambda a: a[:, :1], "shape (4, 1), where shape (4, 2) is due"),
        ("features", lambda a: a[:-1], "shape (3, 2), where shape (4, 2) is due"),
        ("features", lambda a: a[0], "shape (2,), where shape (4, 2) is due"),
        ("features", lambda a: a.astype(int), "features are int64"),
        ("places", lambda a: a[:-1], "places in the stream are no whole numbers"),
        ("places", lambda a: a[:, None], "places in the stream are no whole numbers"),
        ("places", lambda a: a.astype(float), "places in the stream are no whole numbers"),
        ("places", lambda a: -1 - a, "places in the stream are no whole numbers"),
    ],
)
def test_restore_refuses_what_no_sample_gave(entry, change, message):
    arrays = filled(range(4), 5).arrays()
    sample = filled(range(50, 60), 5)
    before = sample.arrays()
    arrays[entry] = change(arrays[entry])
    with pytest.raises(ValueError) as caught:
        sample.restore(arrays)
    assert message in str(caught.value)
    assert all(np.array_equal(sample.arrays()[name], before[name]) for name in before)


def test_restore_refuses_more_than_the_size_and_another_key():
    with pytest.raises(ValueError, match="the stored sample has ids of shape"):
        UniformSample(WIDTH, 3).restore(filled(range(9), 4).arrays())
    with pytest.raises(ValueError, match="order of its ids' hashes"):
        UniformSample(WIDTH, 9, key=1).restore(filled(range(9), 9).arrays())


def test_copies_share_no_memory():
    sample = filled(range(100), 5)
    before = sample.arrays()
    copied, items = sample.copy(), sample.items()
    copied.update(features_of(range(100, 900)), np.arange(100, 900), np.arange(800))
    assert copied.items().ids.tolist() != before["ids"].tolist()
    items.features[:], items.ids[:], items.places[:] = 0.0, 0, 0
    for name, array in before.items():
        assert np.array_equal(sample.arrays()[name], array)
