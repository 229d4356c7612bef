"""Refreshes ahead of the schedule, where a class comes more often than chance would have it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import assert_equal_bits

import soba
from soba.adapt._schedule import Schedule
from soba.adapt._surprise import Surprised
from soba.adapt.delta import Delta
from soba.testing import example_stream

CLASSES = 8
FEATURES, LABELS, TEXT = example_stream(n=480, classes=CLASSES, width=48, seed=1)
SORTED = FEATURES[np.argsort(LABELS, kind="stable")]


class Watched(soba.SOBAPlus):
    """SOBA+ that writes down after which samples its statistics were made."""

    def _statistics(self):
        self.refreshed_at = [*getattr(self, "refreshed_at", []), self.n_seen]
        return super()._statistics()


def make(**options):
    return Watched(TEXT, logit_scale=20.0, **options)


def refreshes(stream, **options):
    adapter = make(**options)
    adapter.adapt(stream)
    return adapter.refreshed_at


def growth(first, percent=25):
    return Schedule("growth", classes=CLASSES, first=first, percent=percent)


def one_by_one(labels, capacity, schedule):
    """When refreshes are due, sample after sample, in counters."""
    scheduled = set(schedule.boundaries(len(labels)))
    queued, known, last, due = [0] * CLASSES, [0] * CLASSES, 0, []
    for seen, label in enumerate(labels, 1):
        surprise = False
        if label >= 0 and queued[label] < capacity:
            queued[label] += 1
            new = queued[label] - known[label]
            if last and new >= 4 and new >= known[label]:
                expected = (seen - last) * (known[label] + 1) / (last + CLASSES)
                nats = new * math.log(new / expected) - new + expected
                usual = sum(size**2 for size in known) / max(sum(known), 1)
                goes_on = usual >= min(queued[label] + 4, 0.75 * capacity)
                surprise = new > expected and nats > math.log(CLASSES) + 3 and goes_on
        if seen in scheduled or surprise:
            due.append(seen)
            known, last = list(queued), seen
    return due


def pace(capacity, schedule):
    empty = np.zeros(CLASSES, np.int64)
    first = schedule.next_after(0)
    return Surprised(schedule, 0, first, sizes=empty, capacity=capacity, known=empty, refreshed=0)


runs = st.lists(st.tuples(st.integers(-1, CLASSES - 1), st.integers(1, 30)), max_size=30)


schedules = st.builds(growth, st.integers(4, 20), st.sampled_from([25, 10**4]))


@given(runs, st.integers(1, 40), schedules, st.lists(st.integers(0, 500), max_size=5))
def test_it_is_what_counters_say_however_the_stream_is_cut(runs, capacity, schedule, cuts):
    labels = np.repeat(*np.array(runs, np.int64).reshape(-1, 2).T)
    expected = one_by_one(labels.tolist(), capacity, schedule)
    for parts in ([labels], np.split(labels, sorted(cuts)), labels[:, None]):
        watched, numbers = pace(capacity, schedule), []
        for part in parts:
            start = watched.seen
            numbers += watched.refreshes(part)
            watched.learn(part[watched.seen - start :])
        assert numbers == expected


def test_a_surprise_is_found_however_far_it_is():
    """Behind many samples of classes that come as often as was to be expected."""
    usual = np.tile(np.arange(CLASSES - 1), 200)
    # The others have more than the new class will, by then, or queues that are nearly full.
    for capacity, first, distances in ((16, 84, (50, 64, 65, 190)), (10**6, 350, (50, 190, 1000))):
        for far in distances:
            labels = np.concatenate([usual[: first + far], np.full(40, CLASSES - 1)])
            expected = one_by_one(labels.tolist(), capacity, growth(first, 10**4))
            assert pace(capacity, growth(first, 10**4)).refreshes(labels) == expected
            assert first + far < expected[-1] <= len(labels)


@given(st.integers(0, 2**32), st.integers(1, 16))
def test_a_class_surprises_a_few_times_in_its_life(seed, capacity):
    """So what somebody who chooses the order can cost is bounded: queues do not grow for ever."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.integers(CLASSES, size=200), rng.integers(1, 30, size=200))
    early = set(pace(capacity, growth(16)).refreshes(labels)) - set(growth(16).boundaries(6000))
    assert len(early) <= CLASSES * (1 + max(0, math.log2(capacity / 4)))


def test_a_sorted_stream_is_refreshed_within_every_class_and_a_shuffled_one_on_schedule():
    scheduled = set(make()._schedule.boundaries(len(FEATURES)))
    assert len(set(refreshes(FEATURES)) - scheduled) <= 1
    early = sorted(set(refreshes(SORTED)) - scheduled)
    within = np.unique(np.sort(LABELS)[np.array(early) - 1])
    assert len(within) >= CLASSES - 2  # the first ones come while the schedule is dense


def test_classes_that_are_over_when_they_are_noticed_surprise_nobody():
    """Of five images each, four are gone by then; a single long class among them changes little."""
    schedule = growth(16, 10**4)
    short, long = np.repeat(np.arange(CLASSES), 5), np.repeat(np.arange(CLASSES), 14)
    assert pace(16, schedule).refreshes(short) == [16]
    assert len(pace(16, schedule).refreshes(long)) >= CLASSES - 2
    assert pace(None, schedule).refreshes(short) == [16]


def test_a_schedule_that_was_asked_for_is_kept():
    assert refreshes(SORTED, refresh=100) == [100, 200, 300, 400]
    assert len(refreshes(SORTED, refresh="tenths", total=480)) == 10
    horizon = make(horizon=200)
    horizon.adapt(SORTED)
    assert horizon.refreshed_at == horizon._schedule.boundaries(480)


@pytest.mark.parametrize("cut", [1, 37, 200, 331])
def test_it_goes_on_from_a_file_as_if_there_had_been_none(tmp_path, cut):
    one = soba.SOBAPlus(TEXT, logit_scale=20.0)
    one.adapt(SORTED[:cut])
    one.save(tmp_path / "state")
    other = soba.load(tmp_path / "state")
    assert np.array_equal(one.adapt(SORTED[cut:]), other.adapt(SORTED[cut:]))
    assert_equal_bits(one, other)


def test_rows_and_batches_agree():
    whole, rows = make(), make()
    logits = whole.adapt(SORTED)
    alone = np.concatenate([rows.adapt(row[None]) for row in SORTED])
    assert whole.refreshed_at == rows.refreshed_at
    np.testing.assert_allclose(logits, alone, rtol=1e-4, atol=1e-3)


parts = st.lists(st.tuples(st.booleans(), st.integers(1, 30)), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(parts, st.sampled_from([1, 6, 16, None]), st.integers(1, 40), st.sampled_from([1, 3, 100]))
def test_who_absorbs_is_surprised_where_the_other_was(parts, capacity, sample_size, at_a_time):
    """Also by what came unscored before, by `learn_changes`, and when nothing of it was kept."""
    options = {"capacity": capacity, "sample_size": sample_size}
    one, other = make(**options), make(**options)
    stream, deltas, start = SORTED[::-1], [], 0  # the first class comes last
    for scores, count in parts:
        ids = np.arange(start, min(start + count, len(stream)))
        learned = one.adapt_changes if scores else one.learn_changes
        changes = learned(stream[ids], ids=ids)
        deltas.append(changes[1] if scores else changes)
        start += len(ids)
    deltas = [Delta.from_bytes(delta.to_bytes()) for delta in deltas]
    for first in range(0, len(deltas), at_a_time):
        other.absorb(*deltas[first : first + at_a_time])
    assert_equal_bits(one, other)
    assert set(getattr(other, "refreshed_at", ())) <= set(getattr(one, "refreshed_at", ()))


def test_a_sample_that_enters_nothing_surprises_nobody():
    """Sixteen of a class are learned unscored and fill its queue; one more is not in the delta."""
    new = FEATURES[LABELS == 0]
    one, other = make(sample_size=1), make(sample_size=1)
    for row in (np.flatnonzero(LABELS != 0)[:100], None):
        features = FEATURES[row] if row is not None else new[:30]
        verb = one.adapt_changes if row is not None else one.learn_changes
        changes = verb(features, ids=np.arange(one.n_seen, one.n_seen + len(features)))
        other.absorb(changes[1] if row is not None else changes)
    assert one.queue.sizes.max() == 16
    for number, feature in enumerate(new[30:40], one.n_seen):
        other.absorb(one.adapt_changes(feature[None], ids=[number])[1])
        assert_equal_bits(one, other)


@pytest.mark.parametrize("seen", [6, 120])
def test_files_from_before_serve_and_go_on(seen):
    features, labels, text = example_stream(n=1200, classes=200, width=48)
    stream = features[np.argsort(labels, kind="stable")]
    adapter = Watched(text, logit_scale=20.0)
    adapter.adapt(stream[:seen])
    state = adapter.state()
    del state["arrays"]["known"], state["meta"]["refreshed"]
    older = Watched.from_state(state)
    assert np.array_equal(older.logits(features), adapter.logits(features))
    older.adapt(stream[seen:])
    assert older.n_seen == len(stream)
    assert older.refreshed_at[0] >= 100  # before the first boundary CLIP answers alone


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("arrays", "known", np.zeros(3, np.int64)),
        ("arrays", "known", np.zeros(CLASSES)),
        ("arrays", "known", np.full(CLASSES, -1)),
        ("arrays", "known", np.full(CLASSES, 17)),
        ("meta", "refreshed", 101),
    ],
)
def test_what_does_not_fit_is_refused(part, name, value):
    adapter = soba.SOBAPlus(TEXT, logit_scale=20.0)
    adapter.adapt(SORTED[:100])
    state = adapter.state()
    state[part][name] = value
    with pytest.raises(ValueError, match="last refresh"):
        soba.SOBAPlus.from_state(state)


def test_other_classes_do_not_make_it_forget_when_it_refreshed():
    adapter, early = make(), make()
    adapter.adapt(SORTED[:200])
    early.adapt(SORTED[:5])
    assert adapter.with_text(TEXT[:5])._refreshed == 200
    assert early.with_text(TEXT[:5])._refreshed == early._refreshed == 0


def test_many_classes_surprise_in_order_only():
    """Of a thousand, one is always unlikely; but a refresh takes long there."""
    labels, empty = np.random.default_rng(0).integers(1000, size=20_000), np.zeros(1000, np.int64)
    schedule = Schedule("growth", classes=1000, first=500, percent=60)

    def refreshes_of(labels):
        known = {"sizes": empty, "capacity": 16, "known": empty, "refreshed": 0}
        return Surprised(schedule, 0, 500, **known).refreshes(labels)

    scheduled = schedule.boundaries(20_000)
    assert refreshes_of(labels) == scheduled
    assert len(refreshes_of(np.sort(labels))) > 1000
