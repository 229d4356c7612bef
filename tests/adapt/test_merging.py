"""Any number of adapters, or of their files, at a time: the samples that the slow union keeps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import moved_to, places_of

import soba
from soba._files import save_checked
from soba.adapt import _gathering, _order, queue
from soba.adapt.merging import merge_files, merge_noted_files
from soba.registry import adapter_class
from soba.testing import assert_same_samples, assert_same_state, example_stream

FEATURES, _, TEXT = example_stream(n=300)
NAMES = ["soba+", "soba", "ncm", "tda", "oga", "adapt"]


def learned(rows, name="soba+", **options):
    adapter = soba.create_adapter(name, TEXT, logit_scale=20.0, **options)
    adapter.learn(FEATURES[rows], ids=rows)
    return adapter


def cut(seed, shards):
    """Shards that cover all rows, overlap and repeat."""
    rng = np.random.default_rng(seed)
    parts = np.array_split(rng.permutation(300), shards)
    return [np.union1d(part, rng.integers(300, size=rng.integers(0, 20))) for part in parts]


def slow_union(adapters, store, capacity):
    """By class the first ids, of all (entropy, id), with a dictionary and sorted()."""
    by_class = {}
    for adapter in adapters:
        items = adapter._queues[store].items()
        for label, entropy, id_ in zip(items.labels, items.entropies, items.ids, strict=True):
            by_class.setdefault(int(label), {}).setdefault(int(id_), float(entropy))
    return {
        label: [id_ for _, id_ in sorted((e, i) for i, e in known.items())[:capacity]]
        for label, known in by_class.items()
    }


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    shards=st.sampled_from([1, 2, 7, 20]),
    capacity=st.sampled_from([1, 4, 16]),
    name=st.sampled_from(["soba", "tda"]),
)
def test_many_at_once_keep_what_the_slow_union_keeps(seed, shards, capacity, name):
    parts = [learned(rows, name, capacity=capacity) for rows in cut(seed, shards)]
    before = [part.state() for part in parts[1:]]
    store = next(iter(parts[0]._queues))
    expected = slow_union(parts, store, capacity)
    merged = parts[0].merge(*parts[1:])
    items = merged._queues[store].items()
    kept = {int(k): items.ids[items.labels == k].tolist() for k in np.unique(items.labels)}
    assert kept == expected
    assert merged.n_seen == 300
    assert_same_samples(merged, learned(np.arange(300), name, capacity=capacity))
    for part, state in zip(parts[1:], before, strict=True):
        assert_same_state(part.state(), state)


@pytest.mark.parametrize("shards", [2, 7, 64])
def test_any_order_and_shape_ends_alike(shards):
    parts = [learned(rows, sample_size=100) for rows in cut(shards, shards)]
    at_once = parts[0].copy().merge(*parts[1:])
    backwards = parts[-1].copy().merge(*parts[-2::-1], *parts[:2])
    one_by_one = parts[0].copy()
    for part in parts[1:]:
        one_by_one.merge(part)
    halves = parts[0].copy().merge(*parts[1 : shards // 2])
    halves.merge(parts[-1].copy().merge(*parts[shards // 2 : -1]))
    for other in (backwards, one_by_one, halves):
        assert_same_samples(other, at_once)
        assert places_of(other) == places_of(at_once)
        np.testing.assert_allclose(other.logits(FEATURES), at_once.logits(FEATURES), atol=2e-4)
    whole = moved_to(learned(np.arange(300), sample_size=100), places_of(at_once))
    np.testing.assert_allclose(at_once.logits(FEATURES), whole.logits(FEATURES), atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_one_refresh_and_none_for_nothing(name, monkeypatch):
    cls, refreshes = adapter_class(name), []
    one, *others = (learned(rows, name) for rows in cut(0, 4))
    settle = cls._settle
    monkeypatch.setattr(cls, "_settle", lambda self: (refreshes.append(self), settle(self))[1])
    before = one.state()
    assert one.merge() is one
    assert_same_state(one.state(), before)
    assert refreshes == []
    one.merge(*others)
    assert refreshes == [one]
    assert_same_samples(one, learned(np.arange(300), name))


def test_an_error_about_the_last_leaves_the_first_as_it_was():
    one, *others = (learned(rows) for rows in cut(0, 4))
    clash = learned(np.arange(5))
    kept = one.sample.ids[:1]
    clash.learn(FEATURES[(kept + 150) % 300], ids=kept)
    counted = learned(np.arange(0))
    counted.learn(FEATURES)
    of_other_text = soba.SOBAPlus(TEXT[::-1].copy(), logit_scale=20.0)
    before, theirs = one.state(), [other.state() for other in others]
    for wrong, message in (
        (clash, f"id {kept[0]} names different samples"),
        (counted, "different spaces do not mix: count and given"),
        (of_other_text, "different text features"),
        (learned(np.arange(9), sample_size=3), "set up differently"),
        (learned(np.arange(9), "soba"), "set up differently"),
    ):
        with pytest.raises(ValueError, match=message):
            one.merge(*others, wrong)
    assert_same_state(one.state(), before)
    for other, state in zip(others, theirs, strict=True):
        assert_same_state(other.state(), state)


@pytest.mark.parametrize("name", ["soba+", "soba"])
def test_blocks_change_nothing(name, monkeypatch):
    """Rows are copied and compared a few at a time, copies of one image among them."""
    rows = np.arange(300)
    twins = FEATURES.copy()
    twins[200:260] = twins[:60]

    def merged():
        parts = [soba.create_adapter(name, TEXT, logit_scale=20.0) for _ in range(4)]
        for part, some in zip(parts, cut(3, 4), strict=True):
            part.learn(twins[some], ids=rows[some])
        return parts[0].merge(*parts[1:]).state()

    expected = merged()
    for module in (queue, _gathering, _order):
        monkeypatch.setattr(module, "_BLOCK_ROWS", 3)
    assert_same_state(merged(), expected)


# Files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_files_merge_as_their_adapters_do(name, tmp_path):
    parts = [learned(rows, name) for rows in cut(1, 5)]
    paths = [tmp_path / str(at) for at in range(5)]
    for part, path in zip(parts, paths, strict=True):
        part.save(path)
    merged = merge_files(adapter_class(name), paths)
    assert_same_state(merged.state(), parts[-1].merge(*parts[:-1]).state(), rounding=True)
    again = merge_files(adapter_class(name), [str(path) for path in (*paths[::-1], paths[2])])
    assert_same_samples(again, merged)
    merged.save(paths[0])  # over one of the files that it was made of
    assert_same_state(adapter_class(name).load(paths[0]).state(), merged.state())
    assert_same_state(merge_files(adapter_class(name), paths[:1]).state(), merged.state())


def test_notes_must_agree_but_for_how_the_encoder_was_opened(tmp_path):
    note = {"class_names": ["a"], "encoder": "1234", "opened_as": "/here/model"}
    for at, more in enumerate(({}, {"opened_as": "/there/model"}, {"encoder": "5678"})):
        learned(np.arange(at, 300, 3)).save(tmp_path / str(at), note=note | more)
    learned(np.arange(9)).save(tmp_path / "none")
    paths = [tmp_path / name for name in ("0", "1", "2", "none")]
    merged, kept = merge_noted_files(soba.SOBAPlus, paths[:2])
    assert kept == note and merged.n_seen == 200
    for wrong in (paths[2], paths[3]):
        with pytest.raises(ValueError, match=rf"{wrong.name}: .*its note is not that of the first"):
            merge_files(soba.SOBAPlus, [*paths[:2], wrong])
    assert merge_noted_files(soba.SOBAPlus, paths[3:])[1] is None


def wrong_states():
    def other_size(state):
        state["meta"]["params"]["sample_size"] = 3

    def other_text(state):
        state["arrays"]["text_features"] = TEXT[::-1].astype(np.float32)

    def drop(entry):
        return lambda state: state["arrays"].pop(entry)

    def change(entry, value):
        def changed(state):
            state["arrays"][entry] = np.ascontiguousarray(value(state["arrays"][entry]))

        return changed

    def other_method(state):
        state["meta"]["adapter"] = "tda"

    def horizon(state):
        state["meta"]["params"]["horizon"] = 100

    return [
        ("soba+", other_size, "set up differently"),
        ("soba+", horizon, "set up differently"),
        ("soba", other_method, "state of adapter 'tda'"),
        ("soba", other_text, "text features are others"),
        ("soba+", change("seen", lambda a: a[:1]), "never counted"),
        ("soba+", drop("sample.ids"), "sample.ids is missing"),
        ("soba+", drop("sample.places"), "sample.places is missing"),
        ("soba+", change("sample.features", lambda a: a * np.nan), "NaN"),
        ("soba+", change("sample.ids", lambda a: a[::-1]), "not in the order"),
        ("soba+", change("sample.places", lambda a: -1 - a), "places"),
        ("soba", drop("queue.ids"), "queue.ids is missing"),
        ("soba", change("queue.features", lambda a: a * np.nan), "NaN"),
        ("soba", change("queue.labels", lambda a: a + 99), "classes that do not exist"),
        ("soba", change("queue.entropies", lambda a: a[::-1]), "not in the order"),
    ]


@pytest.mark.parametrize(("name", "spoil", "message"), wrong_states())
def test_a_wrong_file_is_named(name, spoil, message, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    learned(np.arange(0, 300, 2), name).save(good)
    state = learned(np.arange(1, 300, 2), name).state()
    spoil(state)
    save_checked(bad, state["arrays"], state["meta"])
    with pytest.raises(ValueError, match=message) as caught:
        merge_files(adapter_class(name), [good, bad])
    assert str(caught.value).startswith(f"{bad}: ")


def test_what_cannot_merge_says_why(tmp_path):
    path = tmp_path / "state"
    learned(np.arange(90), horizon=50).save(path)
    with pytest.raises(ValueError, match=r"state: cannot merge adapters with a horizon \(50\)"):
        merge_files(soba.SOBAPlus, [path, path])
    learned(np.arange(90), "etta").save(path)
    with pytest.raises(ValueError, match=r"state: etta keeps sums and no samples"):
        merge_files(adapter_class("etta"), [path])
    with pytest.raises(ValueError, match="no state files"):
        merge_files(soba.SOBAPlus, [])
    with pytest.raises(FileNotFoundError):
        merge_files(soba.SOBAPlus, [tmp_path / "nowhere"])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="state: checksum mismatch"):
        merge_files(adapter_class("etta"), [path])
