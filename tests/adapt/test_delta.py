"""Deltas as values and as bytes: whole, or refused."""

import dataclasses

import numpy as np
import pytest

import soba
from soba._files import checked_bytes, read_checked_bytes
from soba.adapt._ids import packed, unpacked
from soba.adapt.delta import Delta
from soba.testing import example_stream

FEATURES, _, TEXT = example_stream(n=60)


def make(name="soba+", **options):
    return soba.create_adapter(name, TEXT, logit_scale=20.0, **options)


def example(name="soba+", **options):
    return make(name, **options).learn_changes(FEATURES, ids=np.arange(60))


def test_it_carries_what_a_queue_keeps_and_no_more():
    adapter = make("soba", capacity=2)
    delta = adapter.learn_changes(FEATURES, ids=np.arange(100, 160))
    arrays = adapter.state()["arrays"]
    carried = delta.ids[delta.positions]
    assert delta.entered["queue"].tolist() == list(range(len(carried)))
    assert set(arrays["queue.ids"].tolist()) <= set(carried.tolist()) and len(carried) <= 2 * 6
    at = np.searchsorted(carried, arrays["queue.ids"])
    for name in ("features", "labels", "entropies"):
        assert np.array_equal(getattr(delta, name)[at], arrays[f"queue.{name}"])
    assert np.array_equal(delta.features, FEATURES.astype(np.float32)[delta.positions])


def test_it_carries_what_a_sample_keeps_and_when_it_came():
    adapter = make(sample_size=5)
    adapter.learn(FEATURES[:20], ids=np.arange(20))
    delta = adapter.learn_changes(FEATURES[10:], ids=np.arange(10, 60))  # some are known
    arrays = adapter.state()["arrays"]
    assert len(delta) == 40 and len(delta.positions) <= 5
    late = arrays["sample.ids"] >= 20
    assert set(arrays["sample.ids"][late].tolist()) <= set(delta.ids[delta.positions].tolist())
    # As 8 bytes each, the lowest first: how many had been learned before.
    places = [int.from_bytes(row.tobytes(), "little") for row in delta.extra["sample"]]
    assert places == delta.ids[delta.positions].tolist()
    assert np.array_equal(arrays["sample.places"], arrays["sample.ids"])
    twin = make(sample_size=5).absorb(Delta.from_bytes(delta.to_bytes()))
    theirs = twin.state()["arrays"]
    assert set(theirs["sample.ids"]) == set(places)
    assert np.array_equal(theirs["sample.places"], theirs["sample.ids"])


def test_it_cannot_be_written_to():
    delta = Delta.from_bytes(example().to_bytes())
    for array in (*example().entered.values(), delta.features, delta.ids, *delta.extra.values()):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        delta.refreshes = True


def test_an_empty_delta_is_a_delta():
    adapter = make()
    for delta in (adapter.learn_changes(FEATURES[:0]), adapter.adapt_changes(FEATURES[:0])[1]):
        again = Delta.from_bytes(delta.to_bytes())
        assert len(again) == len(again.positions) == 0
        before = adapter.state()
        assert adapter.absorb(again, again).n_seen == 0
        assert adapter.state()["meta"] == before["meta"]
    assert adapter.absorb() is adapter


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ids": np.zeros(60, np.int64)}, "twice"),
        ({"ids": -1 - np.arange(60)}, "not of space given"),
        ({"id_space": "count"}, "not of space count"),
        ({"id_space": 3}, "in words"),
        ({"refreshes": 1}, "true or false"),
        ({"ids": np.arange(60.0)}, "ids are float64"),
        ({"ids": np.arange(59)}, "do not end"),
        ({"ends": np.array([30, 30, 60])}, "do not end"),
        ({"ends": np.empty(0, np.int64)}, "do not end"),
        ({"positions": np.arange(60)[::-1]}, "order"),
        ({"positions": np.arange(1, 61)}, "order"),
        ({"features": np.zeros((60, 24))}, "features are float64"),
        ({"features": np.full((60, 24), np.nan, np.float32)}, "NaN"),
        ({"entropies": np.full(60, np.inf)}, "NaN"),
        ({"labels": np.full(60, -1)}, "does not exist"),
        ({"labels": np.zeros(59, int)}, "labels are int64 of shape"),
        ({"entered": {}}, "same stores"),
        (
            {"entered": {"queue": np.array([60])}, "extra": {"queue": np.zeros((1, 0), np.uint8)}},
            "was not carried",
        ),
        (
            {"entered": {"queue": np.array([5])}, "extra": {"queue": np.zeros((2, 0), np.uint8)}},
            "row of bytes",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes, problem):
    delta = example()
    assert len(delta.positions) == 60
    with pytest.raises(ValueError, match=problem):
        dataclasses.replace(delta, **changes)


def entered(store, width, byte=0):
    """Two samples that entered a store, with so many bytes each."""
    return {
        "entered": {store: np.arange(2)},
        "extra": {store: np.full((2, width), byte, np.uint8)},
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"labels": np.full(60, 6)}, "classes or dimensions"),
        ({"features": np.zeros((60, 5), np.float32)}, "classes or dimensions"),
        (entered("cellar", 8), "a delta for a cellar"),
        (entered("sample", 0), "a delta for a sample"),
        (entered("sample", 9), "a delta for a sample"),
        (entered("sample", 8, byte=255), "before the stream began"),
        (entered("queue", 1), "a delta for a queue"),
    ],
)
def test_a_delta_that_cannot_be_of_this_adapter_is_refused(changes, problem):
    """Its fingerprint is right, and what it holds is not."""
    name = "soba" if "queue" in changes.get("entered", ()) else "soba+"
    delta, adapter = example(name), make(name)
    with pytest.raises(ValueError, match=problem):
        adapter.absorb(dataclasses.replace(delta, **changes))
    assert adapter.n_seen == 0


def test_bytes_of_something_else_are_refused():
    arrays, meta = read_checked_bytes("delta", example().to_bytes())
    for spoiled in (
        meta | {"format": 99},
        {key: value for key, value in meta.items() if key != "setup"},
        meta | {"stores": ["nothing"]},
        meta | {"stores": 5},
    ):
        with pytest.raises(ValueError, match=r"^delta: "):
            Delta.from_bytes(checked_bytes("delta", arrays, spoiled))
    for runs in ([[0, -60]], [[0, 2**62], [0, 2**62]], [[0, 0]]):
        with pytest.raises(ValueError, match="runs of ids"):
            Delta.from_bytes(checked_bytes("delta", arrays | {"ids": np.array(runs)}, meta))
    for blob in (b"", b"\0" * 7, b"\xff" * 100, b"delta"):
        with pytest.raises(ValueError, match=r"^delta: "):
            Delta.from_bytes(blob)


@pytest.mark.parametrize(
    "ids",
    [[], [5], [3, 4, 5], [9, 1, 2, 3, 7, 8, 9 + 1], [-1, -2, -3], [4, 2, 0], [-7, -8, -9, -10]],
)
def test_ids_are_packed_into_runs(ids):
    ids = np.array(ids, np.int64)
    assert np.array_equal(unpacked(packed(ids)), ids)
    assert packed(ids).size <= max(2, len(ids))


def test_a_long_count_takes_no_room():
    few, many = (
        make(sample_size=1).learn_changes(np.tile(FEATURES[:1], (n, 1)), ids=np.arange(n))
        for n in (10, 20_000)
    )
    assert len(many) == 20_000 and len(many.to_bytes()) < len(few.to_bytes()) + 200


def test_a_camera_that_is_stuck_fills_no_delta():
    """Every frame ties with what is kept, and none of them enters."""
    adapter = make("soba", capacity=4)
    adapter.learn(np.tile(FEATURES[:1], (50, 1)), ids=np.arange(50))
    for ids in (range(50, 90), range(200, 160, -1)):
        deltas = [adapter.learn_changes(FEATURES[:1], ids=[i]) for i in ids]
        assert all("queue" not in delta.entered for delta in deltas)
