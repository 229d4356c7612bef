"""However shards overlap, repeat and are merged: the samples of one adapter that saw them all.

Only the places of samples in the stream are those of the shards, which have no common time; where
they are put right, all answers are those of one stream.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import earliest, moved_to, places_of

import soba
from soba.testing import assert_same_samples, assert_same_state, example_stream

NAMES = ["soba+", "soba", "ncm", "tda"]


@st.composite
def shards(draw):
    """Samples, and shards of them that cover all, overlap and repeat at will."""
    n = draw(st.integers(2, 90))
    home = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    more = draw(st.lists(st.lists(st.integers(0, n - 1), max_size=12), min_size=5, max_size=5))
    return n, [
        np.unique([i for i, k in enumerate(home) if k == shard] + more[shard]).astype(int)
        for shard in range(5)
    ]


@st.composite
def trees(draw):
    """A merge of 0, 1, ..., 4 in some order and shape, some of them more than once."""
    leaves = draw(st.permutations(range(5)))
    leaves += draw(st.lists(st.integers(0, 4), max_size=3))
    while len(leaves) > 1:
        at = draw(st.integers(0, len(leaves) - 2))
        leaves[at : at + 2] = [(leaves[at], leaves[at + 1])]
    return leaves[0]


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 1000),
    shards=shards(),
    tree=trees(),
    size=st.sampled_from([1, 3, 16]),
    copies=st.integers(0, 20),
    other_tree=trees(),
)
def test_any_tree_of_merges_equals_one_stream(name, seed, shards, tree, size, copies, other_tree):
    n, parts = shards
    features, _, text = example_stream(n=n, classes=5, width=12, seed=seed)
    copies = min(copies, n // 2)
    features[n - copies :] = features[:copies]  # the same image under another id
    ids = np.random.default_rng(seed).permutation(3 * n)[:n]

    def learned(rows):
        kept = {"sample_size": 2 * size} if name == "soba+" else {"capacity": size}
        adapter = soba.create_adapter(name, text, logit_scale=20.0, **kept)
        adapter.adapt(features[rows], ids=ids[rows])
        return adapter

    def merged(tree):
        return (
            learned(parts[tree])
            if isinstance(tree, int)
            else merged(tree[0]).merge(merged(tree[1]))
        )

    whole = learned(np.arange(n))
    joined = merged(tree)
    assert joined.n_seen == n
    assert_same_samples(joined, whole)
    # Any two trees end alike, in every statistic.
    other = merged(other_tree)
    assert_same_state(other.state(), joined.state(), rounding=True)
    np.testing.assert_allclose(other.logits(features), joined.logits(features), atol=1e-5 * 20.0)
    # And as the one stream ends, but for the places.
    shards_places = earliest(ids[part] for part in parts)
    assert places_of(joined) == {id_: shards_places[id_] for id_ in places_of(whole)}
    in_time = moved_to(joined, places_of(whole))
    assert_same_state(in_time.state(), whole.refresh().state(), rounding=True)
    np.testing.assert_allclose(in_time.logits(features), whole.logits(features), atol=1e-5 * 20.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_merge_changes_nothing(name):
    features, _, text = example_stream()
    one, other = (
        soba.create_adapter(name, text, logit_scale=20.0),
        soba.create_adapter(name, text, logit_scale=20.0),
    )
    one.adapt(features[:100])
    other.adapt(features[100:])
    before = one.state()
    with pytest.raises(ValueError, match=r"numbered their samples themselves.*ids="):
        one.merge(other)
    named = soba.create_adapter(name, text, logit_scale=20.0)
    named.adapt(features, ids=np.arange(240))
    with pytest.raises(ValueError, match="different spaces do not mix: count and given"):
        one.merge(named)
    assert_same_state(one.state(), before)


def test_a_space_has_one_name():
    adapter = soba.SOBAPlus(np.eye(3))
    assert adapter.id_space is None
    adapter.id_space = "content"
    adapter.adapt(np.eye(3), ids=[4, 5, 6])
    adapter.id_space = "content"
    assert soba.SOBAPlus.from_state(adapter.state()).id_space == "content"
    for other in ("manifest 7", "count", "", 3):
        with pytest.raises(ValueError, match="space"):
            adapter.id_space = other
    assert adapter.copy().reset().id_space == "content"
    counted = soba.SOBAPlus(np.eye(3))
    counted.adapt(np.eye(3))
    assert counted.id_space == "count" and counted.reset().id_space is None
