"""Near-copies in the sample share one weight, whatever way they came in."""

import itertools

import numpy as np
import pytest
from conftest import REAL_DATA
from hypothesis import given, settings
from hypothesis import strategies as st

import soba
from soba.adapt.sample import UniformSample
from soba.adapt.soba_plus import copies
from soba.adapt.soba_plus.copies import COPY_COSINE, LIMIT, TABLES, copy_weights

KEYS = st.integers(0, 2**32)


def unit(rows):
    rows = np.asarray(rows, np.float64)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def others(count, dim, random):
    """Images of which no two are near-copies; in a narrow cone, as CLIP's features are."""
    return unit(random.normal(size=(count, dim)) + 2.0)


def copies_of(image, count, random, noise=0.002):
    """What an attacker sends, or a camera that stands still."""
    return unit(image + random.normal(0, noise, (count, len(image))))


def at_cosine(image, cosine, random):
    """An image at this cosine to each row."""
    aside = random.normal(size=image.shape)
    aside -= (aside * image).sum(axis=1, keepdims=True) * image
    return unit(cosine * image + np.sqrt(1 - cosine**2) * unit(aside))


def slow_weights(features):
    """The definition: all pairs, one by one."""
    rows = [row.astype(np.float64) for row in features]
    return [1 / sum(bool(one @ other >= COPY_COSINE) for other in rows) for one in rows]


@pytest.fixture
def one_bucket(monkeypatch):
    """As if the hash put all images into one bucket of each table."""
    monkeypatch.setattr(copies, "_cells", lambda rows, key: np.zeros((TABLES, len(rows)), int))


@pytest.fixture
def cosines_computed(monkeypatch):
    """A list of how many cosines each product computed."""
    computed, original = [], copies._cosines

    def counting(rows, columns):
        cosines = original(rows, columns)
        computed.append(cosines.size)
        return cosines

    monkeypatch.setattr(copies, "_cosines", counting)
    return computed


# What a weight is --------------------------------------------------------------------------------


def chain(dim=64, links=3, angle=0.13):
    """Images on a great circle: neighbours are near-copies (0.9916), others are not (0.966)."""
    start, aside = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, 2)))[0].T
    turns = angle * np.arange(links)[:, None]
    return unit(np.cos(turns) * start + np.sin(turns) * aside)


def test_a_chain_is_not_closed(one_bucket):
    assert copy_weights(chain(), 0).tolist() == [1 / 2, 1 / 3, 1 / 2]
    assert copy_weights(chain(links=5), 0).tolist() == [1 / 2, 1 / 3, 1 / 3, 1 / 3, 1 / 2]


def test_most_keys_find_a_whole_chain():
    weights = [copy_weights(chain(), key).tolist() for key in range(100)]
    assert weights.count([1 / 2, 1 / 3, 1 / 2]) >= 75


@st.composite
def galaxies(draw, noise, most=40):
    """Images, copies of some of them, and one copied to the bit, in any order."""
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    dim = draw(st.sampled_from([48, 128]))
    single = others(draw(st.integers(1, most)), dim, random)
    sizes = draw(st.lists(st.integers(1, 12), max_size=4))
    groups = [
        copies_of(single[k % len(single)], size, random, noise) for k, size in enumerate(sizes)
    ]
    together = np.concatenate([single, single[:1], *groups])
    return together[random.permutation(len(together))]


@given(galaxies(noise=0.0005), KEYS)
def test_close_copies_weigh_what_the_definition_says(features, key):
    assert copy_weights(features, key).tolist() == slow_weights(features)


@pytest.mark.parametrize("seed", range(20))
def test_buckets_of_any_size_weigh_what_the_definition_says(one_bucket, seed):
    random = np.random.default_rng(seed)
    features = others(int(random.integers(1, LIMIT // 2)), 48, random)
    near = at_cosine(features, 0.992, random)[: random.integers(1, len(features) + 1)]
    again = at_cosine(near, 0.992, random)[: LIMIT - len(features) - len(near)]
    features = random.permutation(np.concatenate([features, near, again]))
    assert copy_weights(features, 0).tolist() == slow_weights(features)


def test_the_threshold():
    random = np.random.default_rng(0)
    for dim in (128, 512, 1024):
        images = others(300, dim, random)
        for cosine, least, most in ((0.992, 0.8, 1.0), (0.988, 0.0, 0.0)):
            pairs = np.concatenate([images, at_cosine(images, cosine, random)])
            assert least <= (copy_weights(pairs, 0) == 1 / 2).mean() <= most


def test_an_empty_sample_and_one_image():
    assert copy_weights(np.zeros((0, 8), np.float32), 0).shape == (0,)
    assert copy_weights(np.eye(1, 8, dtype=np.float32), 0).tolist() == [1.0]


# A function of the sample ------------------------------------------------------------------------


@given(galaxies(noise=0.01), KEYS, st.randoms(use_true_random=False))
def test_weights_go_with_their_rows(features, key, order):
    rows = list(range(len(features)))
    order.shuffle(rows)
    assert copy_weights(features[rows], key).tolist() == copy_weights(features, key)[rows].tolist()


def test_images_that_are_no_copies_change_nothing():
    """Pairs of which the hash misses some: which ones does not depend on the rest of the sample."""
    random = np.random.default_rng(0)
    images = others(600, 64, random)
    pairs = np.concatenate([images, at_cosine(images, 0.991, random)])
    alone = copy_weights(pairs, 0)
    assert 0 < (alone == 1.0).sum() < 300
    away = np.repeat(-images[:1], 50, axis=0)
    weights = copy_weights(np.concatenate([away, pairs]), 0)
    assert weights[50:].tolist() == alone.tolist()
    assert weights[:50].tolist() == [1 / 50] * 50


def test_sums_are_exact(monkeypatch):
    """Pairs at the threshold are decided alike in any precision, so in any order of summation."""
    random = np.random.default_rng(0)
    images = others(1000, 128, random)
    pairs = np.concatenate([images, at_cosine(images, COPY_COSINE, random)])
    weights = copy_weights(pairs, 0)
    assert 200 < (weights < 1.0).sum() < 1800
    products = {
        "float64": lambda a, b: a.astype(float) @ b.astype(float).transpose(0, 2, 1),
        "reversed": lambda a, b: a[..., ::-1] @ b[..., ::-1].transpose(0, 2, 1),
    }
    for product in products.values():
        monkeypatch.setattr(copies, "_cosines", product)
        assert copy_weights(pairs, 0).tolist() == weights.tolist()


@st.composite
def arrivals(draw):
    """A stream with copies and chains, how it is cut, and which shard each image goes to."""
    features = draw(galaxies(noise=0.01))
    features = np.concatenate([features, chain(features.shape[1], draw(st.integers(1, 6)))])
    count = len(features)
    homes = st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=count, max_size=count)
    cuts = st.lists(st.integers(0, count), max_size=4).map(sorted)
    return features, draw(st.permutations(range(count))), draw(cuts), draw(homes)


def sample_of(features, rows, size, key):
    sample = UniformSample(features.shape[1], size, key=key)
    sample.update(features[rows], np.asarray(rows, np.int64), np.arange(len(rows)))
    return sample


def weights_by_id(sample):
    items = sample.items()
    weights = copy_weights(items.features, sample.key)
    return dict(zip(items.ids.tolist(), weights.tolist(), strict=True))


@settings(max_examples=60)
@given(arrivals(), st.sampled_from([5, 24, 1000]), st.integers(0, 5))
def test_cuts_orders_shards_and_merges_give_the_same_weights(stream, size, key):
    features, order, cuts, homes = stream
    expected = weights_by_id(sample_of(features, list(range(len(features))), size, key))

    pieces = UniformSample(features.shape[1], size, key=key)
    for start, stop in itertools.pairwise([0, *cuts, len(order)]):
        rows = np.asarray(order[start:stop], np.int64)
        pieces.update(features[rows], rows, np.arange(start, stop))
    assert weights_by_id(pieces) == expected

    shards = [
        sample_of(features, [row for row in order if home in homes[row]], size, key)
        for home in range(3)
    ]
    for first, second, third in itertools.permutations(shards):
        merged = first.copy()
        merged.merge(second.items())
        merged.merge(third.items())
        merged.merge(first.items())
        assert weights_by_id(merged) == expected


# Attacks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [128, 512, 1024])
@pytest.mark.parametrize("count", [16, 300])
def test_copies_together_weigh_about_as_one_image(dim, count):
    random = np.random.default_rng(dim + count)
    for key in range(10):
        images = others(40, dim, random)
        attack = [copies_of(image, count, random) for image in images[:4]]
        order = random.permutation(36 + 4 * count)  # the sample's order is by chance
        weights = np.empty(len(order))
        weights[order] = copy_weights(np.concatenate([images[4:], *attack])[order], key)
        assert weights[:36].tolist() == [1.0] * 36
        assert (weights[36:].reshape(4, count).sum(axis=1) <= 1.5).all()


def test_who_does_not_know_the_key_cannot_aim_between_buckets():
    random = np.random.default_rng(0)
    images = others(4000, 128, random)
    pairs = np.concatenate([images, at_cosine(images, 0.992, random)])
    missed = np.flatnonzero(copy_weights(pairs, 0)[:4000] == 1.0)
    assert len(missed) > 50
    again = np.concatenate([pairs[missed], pairs[missed + 4000]])
    assert (copy_weights(again, 0) == 1.0).all()
    assert (copy_weights(again, 1) < 1.0).mean() > 0.7


def test_16_000_copies_are_not_all_compared(cosines_computed):
    random = np.random.default_rng(0)
    weights = copy_weights(copies_of(others(1, 128, random)[0], 16_000, random), 0)
    assert 0.5 <= weights.sum() <= 1.5
    assert sum(cosines_computed) <= 2 * TABLES * 16_000 * LIMIT < 16_000**2 / 5


def test_a_bucket_of_16_000_others_is_not_all_compared(cosines_computed, one_bucket):
    random = np.random.default_rng(0)
    assert (copy_weights(others(16_000, 128, random), 0) == 1.0).all()
    assert sum(cosines_computed) <= 2 * TABLES * 16_000 * LIMIT


def test_ordinary_images_are_hardly_compared(cosines_computed):
    random = np.random.default_rng(0)
    assert (copy_weights(others(4096, 128, random), 0) == 1.0).all()
    assert sum(cosines_computed) <= 4096**2 / 100


def test_a_bucket_beyond_the_limit_is_scaled_up(one_bucket):
    random = np.random.default_rng(0)
    images = others(2001, 128, random)
    same = copies_of(images[0], 1000, random)
    np.testing.assert_allclose(copy_weights(same, 0), 1 / 1000, rtol=1e-9)
    mixed = random.permutation(3000)
    weights = np.empty(3000)
    weights[mixed] = copy_weights(np.concatenate([same, images[1:]])[mixed], 0)
    assert 0.7 <= weights[:1000].sum() <= 1.4
    assert (weights[1000:] == 1.0).all()


# Real images -------------------------------------------------------------------------------------

SETS = sorted(str(path.relative_to(REAL_DATA)) for path in REAL_DATA.glob("*/*.npz"))


@pytest.mark.parametrize("name", SETS or ["whurs19/clip_rn50.npz"])
def test_fewer_than_one_real_image_in_a_hundred_loses_weight(name):
    path = REAL_DATA / name
    if not path.is_file():
        pytest.skip(f"no real features at {path}; set SOBA_REAL_DATA")
    features = unit(np.asarray(soba.FeatureSet.load(path).image_features))
    assert (copy_weights(features, 0) < 1.0).mean() < 0.01
