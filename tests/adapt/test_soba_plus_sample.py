"""SOBA+ with the uniform sample that it keeps beside its queue."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
@given(shards(), st.sampled_from([1, 7, 64, 512]), st.sampled_from([1, 4, 16]), st.integers(0, 3))
def test_shards_keep_the_samples_of_one_stream(shards, size, capacity, key):
    n, parts, order, by_pairs = shards
    options = {"sample_size": size, "capacity": capacity, "sample_key": key}
    whole = learned(np.arange(n), **options)
    adapters = [learned(parts[k], **options) for k in order]
    if by_pairs:
        merged = adapters[0].merge(adapters[1]).merge(adapters[2].merge(adapters[3]))
    else:
        merged = adapters[0].merge(adapters[1]).merge(adapters[2]).merge(adapters[3])
    assert merged.n_seen == n
    whole.merge(merged)  # refreshes: it has nothing new to teach
    for one, other in (
        (merged.queue.items(), whole.queue.items()),
        (sampled(merged), sampled(whole)),
    ):
        assert one.ids.tolist() == other.ids.tolist()
        np.testing.assert_allclose(one.features, other.features, atol=1e-6)
    assert len(sampled(whole).ids) == min(n, size)
    assert_same_state(merged.state(), whole.state(), rounding=True)
    np.testing.assert_allclose(merged.logits(FEATURES), whole.logits(FEATURES), atol=1e-4 * 15.0)


def other_image(adapter, id_):
    """An adapter whose sample alone holds this id, for an image that is not the adapter's."""
    at = int(np.flatnonzero(sampled(adapter).ids == id_)[0])
    shown = sampled(adapter).features[at]
    other = SOBAPlus(TEXT, **adapter.params)
    far = FEATURES[np.argsort(np.abs(FEATURES - shown).max(axis=1))[-30:]]
    by_doubt = np.argsort(np.sort(far @ TEXT.T, axis=1)[:, -1])  # those CLIP is in doubt of first
    other.adapt(far[by_doubt[:1]], ids=[id_])
    other.adapt(FEATURES, ids=1000 + np.arange(400))
    return other


def test_an_id_that_names_two_samples_is_refused_wherever_it_is_kept():
    """Queues of one sample a class hold next to nothing: only the samples can tell."""
    one = learned(np.arange(200), capacity=1)
    in_queue = set(one.queue.items().ids.tolist())
    tried = 0
    for id_ in sampled(one).ids.tolist():
        if id_ in in_queue:
            continue
        other = other_image(one, id_)
        if id_ in other.queue.items().ids or id_ not in sampled(other).ids:
            continue
        before = one.state()
        with pytest.raises(ValueError, match=f"id {id_} names different samples"):
            one.merge(other)
        with pytest.raises(ValueError, match=f"id {id_} names different samples"):
            other.merge(one)
        assert_same_state(one.state(), before)
        tried += 1
        if tried == 5:
            break
    assert tried == 5


def test_an_id_in_the_queue_of_one_and_the_sample_of_the_other_is_refused():
    """A short stream samples ids that a long one leaves out."""
    options = {"capacity": 8, "sample_size": 20}
    one = learned(np.arange(400), **options)
    tried = 0
    for id_ in sorted(set(one.queue.items().ids.tolist()) - set(sampled(one).ids.tolist())):
        other = SOBAPlus(TEXT, logit_scale=15.0, **options)
        other.adapt(-FEATURES[:1], ids=[id_])  # like no class: not for the queue
        other.adapt(FEATURES[:100], ids=1000 + np.arange(100))
        if id_ in other.queue.items().ids or id_ not in sampled(other).ids:
            continue
        for a, b in ((one, other), (other, one)):
            with pytest.raises(ValueError, match=f"id {id_} names different samples"):
                a.merge(b)
        tried += 1
    assert tried


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
    queue, sample = one.queue, one._samples["sample"]
    theirs = other.state()
    before = queue.items().ids.tolist(), sample.items().ids.tolist()
    one.merge(other)
    assert (queue.items().ids.tolist(), sample.items().ids.tolist()) == before
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


@pytest.mark.parametrize("horizon", [None, 100])
@pytest.mark.parametrize("n", [5, 130, 400])
def test_a_file_keeps_the_sample_to_the_bit(tmp_path, n, horizon):
    adapter = learned(np.arange(n), sample_size=64, horizon=horizon)
    adapter.save(tmp_path / "state")
    loaded = SOBAPlus.load(tmp_path / "state")
    for name in adapter._samples:
        assert sampled(loaded, name).ids.tobytes() == sampled(adapter, name).ids.tobytes()
        assert sampled(loaded, name).features.tobytes() == sampled(adapter, name).features.tobytes()
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
    adapter = learned(np.arange(380), **settings_)
    kept = learned(np.arange(300, 380), **settings_)
    for one in (adapter, kept):
        one._settle()
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
    with pytest.raises(ValueError, match=name):
        SOBAPlus(TEXT, **{name: value})


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
