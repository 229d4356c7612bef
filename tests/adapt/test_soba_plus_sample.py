"""SOBA+ and the uniform sample that it keeps: shards, other text, files, forgetting, nonsense."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import earliest, moved_to, places_of
from rounding import assert_same_logits

import soba
from soba._files import save_checked
from soba.adapt.soba_plus import SOBAPlus
from soba.testing import assert_same_state, example_stream

FEATURES, LABELS, TEXT = example_stream(n=400, classes=6, width=20, seed=7)


def learned(rows, ids=None, text=TEXT, **options):
    adapter = SOBAPlus(text, logit_scale=15.0, **options)
    adapter.adapt(FEATURES[rows], ids=np.asarray(rows if ids is None else ids))
    return adapter


def sampled(adapter, name="sample"):
    return adapter._samples[name].items()


# Shards ------------------------------------------------------------------------------------------


@st.composite
def shards(draw):
    """Four shards of n samples, in orders of their own, that overlap at will, and a merge order."""
    n = draw(st.integers(4, 200))
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    home = random.integers(4, size=n)
    overlap = draw(st.floats(0.0, 0.5))
    parts = [
        random.permutation(np.flatnonzero((home == k) | (random.random(n) < overlap)))
        for k in range(4)
    ]
    return n, parts, draw(st.permutations(range(4))), draw(st.booleans())


@settings(max_examples=60)
@given(shards(), st.sampled_from([1, 7, 64, 512]), st.integers(0, 3))
def test_shards_keep_the_samples_of_one_stream(shards, size, key):
    n, parts, order, by_pairs = shards
    options = {"sample_size": size, "sample_key": key}
    whole = learned(np.arange(n), **options)
    adapters = [learned(parts[k], **options) for k in order]
    if by_pairs:
        merged = adapters[0].merge(adapters[1]).merge(adapters[2].merge(adapters[3]))
    else:
        merged = adapters[0].merge(adapters[1]).merge(adapters[2]).merge(adapters[3])
    assert merged.n_seen == n
    one, other = merged.sample, whole.sample
    assert one.ids.tolist() == other.ids.tolist()
    assert len(one.ids) == min(n, size)
    np.testing.assert_allclose(one.features, other.features, atol=1e-6)
    shards_places = earliest(parts)
    assert one.places.tolist() == [shards_places[i] for i in one.ids.tolist()]
    assert other.places.tolist() == other.ids.tolist()
    # Put back in the time of the one stream, it answers as that does.
    in_time = moved_to(merged, places_of(whole))
    assert_same_state(in_time.state(), whole.refresh().state(), rounding=True)
    np.testing.assert_allclose(in_time.logits(FEATURES), whole.logits(FEATURES), atol=1e-4 * 15.0)


def test_an_id_that_names_two_samples_is_refused():
    one = learned(np.arange(200), sample_size=50)
    before = one.state()
    for id_ in one.sample.ids[:5].tolist():
        other = SOBAPlus(TEXT, **one.params)
        other.adapt(-FEATURES[id_ : id_ + 1], ids=[id_])
        other.adapt(FEATURES, ids=1000 + np.arange(400))
        assert id_ in other.sample.ids
        for a, b in ((one, other), (other, one)):
            with pytest.raises(ValueError, match=f"id {id_} names different samples"):
                a.merge(b)
        assert_same_state(one.state(), before)


def test_one_image_that_was_rounded_otherwise_is_one_sample():
    """Encoders round by batch and machine; what differs by more than that is another image."""
    one = learned(np.arange(100))
    for noise, conflict in ((1e-5, False), (0.03, True)):
        moved = FEATURES[:100].copy()
        moved[40] += noise * np.random.default_rng(0).normal(size=20).astype(np.float32)
        other = SOBAPlus(TEXT, logit_scale=15.0)
        other.adapt(moved, ids=np.arange(100))
        if conflict:
            with pytest.raises(ValueError, match="id 40 names different samples"):
                one.merge(other)
        else:
            assert one.copy().merge(other).n_seen == 100


def test_a_merge_leaves_what_readers_hold_as_it_was():
    one, other = learned(np.arange(100)), learned(np.arange(100, 400))
    sample, theirs = one._samples["sample"], other.state()
    before = sample.items().ids.tolist()
    one.merge(other)
    assert sample.items().ids.tolist() == before != one.sample.ids.tolist()
    assert_same_state(other.state(), theirs)


def test_adapters_of_other_text_do_not_merge():
    one, other = learned(np.arange(100)), learned(np.arange(100, 200), text=TEXT[::-1].copy())
    with pytest.raises(ValueError, match="different text features"):
        one.merge(other)


# Other text, files, forgetting -------------------------------------------------------------------


def test_other_text_keeps_the_sample():
    adapter = learned(np.arange(300), sample_size=40, sample_key=3)
    renamed = adapter.with_text(TEXT[::-1].copy())
    assert sampled(renamed).ids.tolist() == sampled(adapter).ids.tolist()
    np.testing.assert_array_equal(sampled(renamed).features, sampled(adapter).features)
    renamed.adapt(FEATURES[300:], ids=np.arange(300, 400))  # it goes on, and the other stays
    assert (
        sampled(renamed).ids.tolist()
        == sampled(learned(np.arange(400), sample_size=40, sample_key=3)).ids.tolist()
    )
    assert sampled(adapter).ids.max() < 300


@settings(max_examples=30)
@given(
    n=st.integers(1, 400),
    size=st.sampled_from([1, 20, 400]),
    horizon=st.sampled_from([None, 100]),
    classes=st.sampled_from([2, 6, 9]),
    seed=st.integers(0, 1000),
)
def test_other_text_is_as_if_it_had_been_there_from_the_start(n, size, horizon, classes, seed):
    """A sample does not depend on text, so nothing of it was thrown away under the old one."""
    rng = np.random.default_rng(seed)
    text = np.concatenate([TEXT + 0.1 * rng.normal(size=TEXT.shape), rng.normal(size=(3, 20))])
    text = text[rng.permutation(9)[:classes]].astype(np.float32)
    options = {"sample_size": size, "horizon": horizon}
    renamed = learned(np.arange(n), **options).refresh().with_text(text)
    always = learned(np.arange(n), text=text, **options).refresh()
    assert_same_state(renamed.refresh().state(), always.state())
    assert np.array_equal(renamed.logits(FEATURES), always.logits(FEATURES))


@settings(max_examples=30)
@given(
    cuts=st.lists(st.integers(0, 400), max_size=6).map(sorted),
    again=st.integers(0, 60),
    size=st.sampled_from([5, 50, 400]),
    seed=st.integers(0, 1000),
)
def test_a_place_is_how_many_had_been_learned_before(cuts, again, size, seed):
    """Known images count no further, and nothing that is done with an adapter moves what it has."""
    ids, verbs = np.random.default_rng(seed).permutation(900)[:400], ("adapt", "learn")
    adapter = SOBAPlus(TEXT, logit_scale=15.0, sample_size=size)
    for turn, (a, b) in enumerate(itertools.pairwise([0, *cuts, 400])):
        first = max(a - again, 0)  # some come once more
        getattr(adapter, verbs[turn % 2])(FEATURES[first:b], ids=ids[first:b])
    place = {id_: at for at, id_ in enumerate(ids.tolist())}
    expected = {id_: place[id_] for id_ in adapter.sample.ids.tolist()}
    assert len(expected) == size
    loaded = SOBAPlus.from_state(adapter.state())
    others = adapter.copy(), adapter.with_text(TEXT[::-1].copy()), adapter.copy().merge(adapter)
    for one in (adapter, loaded, *others):
        assert places_of(one) == expected


@pytest.mark.parametrize("horizon", [None, 100])
@pytest.mark.parametrize("n", [5, 130, 400])
def test_a_file_keeps_the_sample_to_the_bit(tmp_path, n, horizon):
    adapter = learned(np.arange(n), sample_size=64, horizon=horizon)
    adapter.save(tmp_path / "state")
    loaded = SOBAPlus.load(tmp_path / "state")
    for name in adapter._samples:
        for part in ("ids", "places", "features"):
            mine, theirs = (getattr(sampled(one, name), part) for one in (adapter, loaded))
            assert mine.tobytes() == theirs.tobytes()
    for one in (adapter, loaded):
        one.adapt(FEATURES[::-1], ids=1000 + np.arange(400))
    assert_same_state(loaded.state(), adapter.state())


def test_a_copy_and_a_reset():
    adapter = learned(np.arange(200))
    before = adapter.state()
    copied = adapter.copy()
    copied.adapt(FEATURES[200:], ids=np.arange(200, 400))
    assert_same_state(adapter.state(), before)
    assert len(copied.reset()._samples["sample"]) == 0


def test_both_generations_of_the_sample_forget():
    horizon = 100
    adapter = SOBAPlus(TEXT, logit_scale=15.0, horizon=horizon, sample_size=512)
    for start in range(0, 400, 7):
        ids = np.arange(start, min(start + 7, 400))
        adapter.adapt(FEATURES[ids], ids=ids)
        younger, older = (sampled(adapter, name).ids for name in ("sample", "older_sample"))
        age = adapter.n_seen - np.concatenate([younger, older])
        assert age.max() <= horizon
        # With room for all, all of the half horizons are there, each in its generation.
        turn = adapter.n_seen // 50 * 50
        assert sorted(younger) == list(range(turn, adapter.n_seen))
        assert sorted(older) == list(range(max(turn - 50, 0), turn))


def test_statistics_of_a_horizon_are_those_of_what_is_kept():
    """What was forgotten leaves no trace: the same as an adapter that saw the rest only."""
    settings_ = {"horizon": 100, "sample_size": 30}
    adapter = learned(np.arange(380), **settings_).refresh()
    kept = learned(np.arange(300, 380), **settings_).refresh()
    assert (
        kept._samples["older_sample"].items().ids.tolist()
        == sampled(adapter, "older_sample").ids.tolist()
    )
    assert_same_logits(adapter.logits(FEATURES), kept.logits(FEATURES))


# States that hold nonsense -----------------------------------------------------------------------


def no_sample(arrays):
    del arrays["sample.ids"]


def no_features(arrays):
    del arrays["sample.features"]


def change(entry, value):
    def changed(arrays):
        arrays[entry] = np.ascontiguousarray(value(arrays[entry]))

    return changed


def never_counted(arrays):
    """In the order of their hashes, so that only the count can tell."""
    hashes = soba.adapt.sample.hash_ids
    ids = np.arange(5000, 5000 + len(arrays["sample.ids"]))
    arrays["sample.ids"] = ids[np.argsort(hashes(ids, 0))]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_sample, "sample.ids is missing from the state"),
        (no_features, "sample.features is missing from the state"),
        (change("sample.ids", lambda a: a[:-1]), "the stored sample's features"),
        (change("sample.ids", lambda a: a[::-1]), "the order of its ids' hashes"),
        (change("sample.ids", lambda a: a.astype(float)), "the stored sample has ids of shape"),
        (change("sample.features", lambda a: a[:, :-1]), "the stored sample's features"),
        (change("sample.features", lambda a: a[0]), "the stored sample's features"),
        (change("sample.features", lambda a: a * np.nan), "sample.features holds NaN"),
        (change("sample.places", lambda a: a[:-1]), "the stored sample's places"),
        (change("sample.places", lambda a: a.astype(float)), "the stored sample's places"),
        (never_counted, "the stored sample holds samples that were never counted"),
    ],
)
def test_a_wrong_sample_is_named_with_its_file(tmp_path, spoil, message):
    state = learned(np.arange(100)).state()
    path = tmp_path / "wrong.safetensors"
    save_checked(path, state["arrays"], state["meta"])
    soba.load(path)  # as it was
    spoil(state["arrays"])
    save_checked(path, state["arrays"], state["meta"])
    with pytest.raises(ValueError) as caught:
        soba.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("entry", ["sample_size", "sample_key"])
def test_another_size_or_key_in_a_state_is_named(tmp_path, entry):
    state = learned(np.arange(100)).state()
    state["meta"]["params"][entry] = 9
    save_checked(tmp_path / "wrong", state["arrays"], state["meta"])
    with pytest.raises(ValueError, match=r"wrong: .*the stored sample"):
        soba.load(tmp_path / "wrong")


@pytest.mark.parametrize("name", ["sample_size", "sample_key"])
@pytest.mark.parametrize("value", [-1, 1.5, "many", None, True, np.nan])
def test_bad_settings_of_the_sample(name, value):
    if (name, value) == ("sample_size", None):  # the usual one
        assert SOBAPlus(TEXT, sample_size=value).params["sample_size"] is None
        return
    with pytest.raises(ValueError, match=name):
        SOBAPlus(TEXT, **{name: value})


@pytest.mark.parametrize(
    ("classes", "size"), [(2, 512), (32, 512), (33, 528), (1000, 16_000), (4096, 65_536)]
)
def test_the_usual_size_grows_with_the_classes(classes, size):
    samples = SOBAPlus(np.ones((classes, 1), np.float32))._empty_samples()
    assert [sample.size for sample in samples.values()] == [size]


def test_more_classes_than_a_sample_has_room_for_have_two_images_each():
    text = np.ones((40_000, 1), np.float32)
    assert SOBAPlus(text)._empty_samples()["sample"].size == 80_000


def test_the_least_settings_of_the_sample():
    with pytest.raises(ValueError, match="sample_size"):
        SOBAPlus(TEXT, sample_size=0)
    adapter = learned(np.arange(400), sample_size=1, sample_key=0)
    assert len(sampled(adapter).ids) == 1
    assert np.isfinite(adapter.logits(FEATURES)).all()
    keyed = learned(np.arange(400), sample_size=40, sample_key=2**64 + 5)
    assert set(sampled(keyed).ids) != set(sampled(learned(np.arange(400), sample_size=40)).ids)
    other = learned(np.arange(400), sample_size=40)
    with pytest.raises(ValueError, match="set up differently"):
        keyed.merge(other)
