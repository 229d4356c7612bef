"""One adapter, several threads: nothing is lost, and no answer is of two minds."""

import pickle
import sys
import threading

import numpy as np
import pytest
from places import moved_to, places_of

import soba
from soba.testing import assert_same_samples, assert_same_state, example_stream

FEATURES, LABELS, TEXT = example_stream(n=800, classes=8, width=16, seed=2)
NAMES = ["soba+", "soba", "ncm", "tda", "oga", "adapt"]
RARELY = {"tda": {}, "oga": {"batch": 300}}  # how statistics are told to wait


@pytest.fixture(autouse=True)
def _restless_threads():
    """Threads take turns after nearly every step, so that what can go wrong does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run(*jobs):
    """All jobs at once, each in a thread of its own; what one raises is raised here."""
    failed, gate = [], threading.Barrier(len(jobs))

    def guarded(job):
        try:
            gate.wait()
            job()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    if failed:
        raise failed[0]


def fresh(name, **options):
    return soba.create_adapter(name, TEXT, logit_scale=20.0, **options)


@pytest.mark.parametrize("name", NAMES)
def test_no_sample_is_lost_or_counted_twice(name):
    adapter, given = fresh(name), fresh(name)

    def learn(part):
        for row in range(part, 800, 8):
            adapter.adapt(FEATURES[row])
            given.adapt(FEATURES[row], ids=[row])

    run(*(lambda part=part: learn(part) for part in range(8)))
    assert adapter.n_seen == given.n_seen == 800
    kept = [a for n, a in adapter.state()["arrays"].items() if n.endswith(".ids")]
    assert min(ids.min(initial=0) for ids in kept) >= -800
    whole = fresh(name)
    whole.adapt(FEATURES, ids=np.arange(800))
    assert_same_samples(given, whole)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_of_one_state(name):
    """While another thread forgets and learns again, an answer is of before or after."""
    options = RARELY.get(name, {"refresh": 300})
    adapter = fresh(name, **options)
    queries = np.repeat(FEATURES[300:], 4, axis=0)
    states = [adapter.logits(queries)]
    adapter.adapt(FEATURES[:300])
    states.append(adapter.logits(queries))
    done = threading.Event()

    def learn():
        try:
            for _ in range(30):
                adapter.reset()
                adapter.adapt(FEATURES[:300])
        finally:
            done.set()

    asked = []

    def ask():
        while not done.is_set():
            asked.append(adapter.logits(queries))

    run(learn, ask, ask)
    assert asked
    mixed = [
        logits
        for logits in asked
        if min(np.abs(logits - state).max() for state in states) > 1e-5 * np.abs(states[1]).max()
    ]
    assert not mixed, f"{len(mixed)} of {len(asked)} answers were of no state"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_one_state(name):
    adapter = fresh(name)
    copies = []

    def learn():
        for start in range(0, 800, 10):
            adapter.adapt(FEATURES[start : start + 10], ids=np.arange(start, start + 10))

    def read():
        for _ in range(20):
            copies.extend((adapter.copy(), pickle.loads(pickle.dumps(adapter))))

    run(learn, read)
    assert adapter.n_seen == 800
    for copy in copies:
        expected = fresh(name)
        for start in range(0, copy.n_seen, 10):
            rows = np.arange(start, start + 10)
            expected.adapt(FEATURES[rows], ids=rows)
        assert_same_state(copy.state(), expected.state())


@pytest.mark.parametrize("name", NAMES)
def test_adapters_may_merge_into_each_other(name):
    """No call holds two locks, so two that merge crosswise never wait for each other."""
    one, other, whole = fresh(name), fresh(name), fresh(name)
    one.adapt(FEATURES[:400], ids=np.arange(400))
    other.adapt(FEATURES[400:], ids=np.arange(400, 800))
    whole.adapt(FEATURES, ids=np.arange(800))

    def crosswise(a, b):
        for _ in range(10):
            a.merge(b)

    run(lambda: crosswise(one, other), lambda: crosswise(other, one), lambda: one.merge(one))
    for merged in (one, other):
        assert_same_samples(merged, whole)


def all_kept(adapter):
    """Whether all that was counted is kept."""
    return all(len(store) == adapter.n_seen for store in adapter._stores.values())


@pytest.mark.parametrize("name", ["soba+", "soba", "ncm"])
def test_what_is_merged_or_taken_over_is_one_state(name):
    """Everything is kept: what was read in the middle of a call holds less than was counted."""
    options = {"sample_size": 800} if name == "soba+" else {"capacity": None}
    teacher = fresh(name, **options)
    torn = []

    def learn():
        for start in range(0, 800, 4):
            teacher.adapt(FEATURES[start : start + 4], ids=np.arange(start, start + 4))

    def read():
        for _ in range(60):
            torn.append(not all_kept(fresh(name, **options).merge(teacher)))
            torn.append(not all_kept(teacher.with_text(TEXT[::-1].copy())))

    run(learn, read, read)
    assert all_kept(teacher)
    assert not any(torn), f"{sum(torn)} of {len(torn)} were torn"


class Watched:
    """A lock that minds if its thread holds another one already."""

    def __init__(self, held):
        self.held = held

    def __enter__(self):
        assert all(lock is self for lock in self.held), "two locks are held"
        self.held.append(self)

    def __exit__(self, *_):
        self.held.remove(self)


@pytest.mark.parametrize("name", NAMES)
def test_no_call_holds_two_locks(name):
    one, other, held = fresh(name), fresh(name), []
    one.adapt(FEATURES[:400], ids=np.arange(400))
    other.adapt(FEATURES[400:], ids=np.arange(400, 800))
    one._lock, other._lock = Watched(held), Watched(held)
    one.merge(other)
    one.merge(one)
    one.with_text(TEXT[:5]).merge(one.with_text(TEXT[:5]))
    assert one.n_seen == 800 and not held


def test_what_is_forgotten_is_forgotten_whole():
    """Everything is kept: a queue of fewer samples than were counted was torn by a reset."""
    adapter = fresh("soba", capacity=None)
    torn = []

    def learn():
        for row in range(600):
            adapter.adapt(FEATURES[row])

    def forget():
        for _ in range(600):
            adapter.reset()
            copy = adapter.copy()
            torn.append(len(copy.queue) != copy.n_seen)

    run(learn, forget)
    assert not any(torn) and len(adapter.queue) == adapter.n_seen


def test_a_view_shows_nothing_that_is_learned_later():
    for name in NAMES:
        adapter = fresh(name, **{"tda": {}, "oga": {"batch": 50}}.get(name, {"refresh": 50}))
        adapter.adapt(FEATURES[:100])
        view, expected = adapter._view(), adapter.logits(FEATURES)
        adapter.adapt(FEATURES[100:])
        assert np.abs(adapter.logits(FEATURES) - expected).max() > 1e-3
        assert np.array_equal(view.logits(FEATURES), expected)


@pytest.mark.parametrize("name", NAMES)
def test_learning_refreshing_and_merging_at_once_loses_nothing(name):
    adapter, other, whole = fresh(name), fresh(name), fresh(name)
    other.learn(FEATURES[600:], ids=np.arange(600, 800))
    whole.learn(FEATURES, ids=np.arange(800))

    def learn(part):
        for row in range(part, 600, 60):
            adapter.learn(FEATURES[row : row + 20], ids=np.arange(row, row + 20))

    def refresh():
        for _ in range(10):
            adapter.refresh()
            adapter.logits(FEATURES[:3])

    jobs = [lambda part=part: learn(part) for part in (0, 20, 40)]
    run(*jobs, refresh, lambda: adapter.merge(other, other))
    assert_same_samples(adapter, whole)
    expected = moved_to(whole, places_of(adapter)).logits(FEATURES)
    np.testing.assert_allclose(adapter.refresh().logits(FEATURES), expected, atol=2e-4)
