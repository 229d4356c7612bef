"""A stream that many threads or processes feed and look at at the same time."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streams import (
    FEATURES,
    adapter,
    assert_equal_bits,
    assert_learned,
    classifier,
    learn,
    state_of,
)

import soba
from soba.serve.names import ids_of_names


@pytest.fixture
def stream(url):
    with soba.DurableStream(url, "cats", classifier()) as stream:
        yield stream


def test_nobody_suffers_from_the_bad_ids_of_others(stream):
    learn(stream, 0)
    errors, gate = [], threading.Barrier(8)

    def work(row):
        gate.wait()
        try:
            stream.learn(FEATURES[[row]], ids=[row % 7])
        except ValueError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(row,)) for row in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 7 comes as 0, and 1 and 8 come both as 1.
    assert len(errors) == 2
    assert stream.n_seen == 7


def test_many_threads_feed_one_stream(stream):
    def work(part):
        for row in range(part, 320, 16):
            learn(stream, row)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_learned(state_of(stream), range(320))


def test_looks_are_of_one_version(stream):
    """Whatever is learned at the same time, a look is the state before or after it."""
    looks, done = [], threading.Event()

    def look():
        while not done.is_set():
            view = stream.view()
            looks.append((view.version, view.predictor.logits(FEATURES[:3]).tobytes()))

    watcher = threading.Thread(target=look)
    watcher.start()
    for start in range(0, 600, 20):
        learn(stream, *range(start, start + 20))
    done.set()
    watcher.join()
    expected, replayed = {}, adapter()
    replayed.id_space = "content"
    for version in range(31):
        expected[version] = replayed.logits(FEATURES[:3]).tobytes()
        rows = np.arange(20 * version, 20 * version + 20)
        replayed.adapt(FEATURES[rows], ids=ids_of_names(rows))
    assert len({version for version, _ in looks}) > 1
    assert all(expected[version] == logits for version, logits in looks)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_replica_any_cut_any_repetition(tmp_path_factory, data):
    """However samples are cut, repeated and spread over processes, the state is that of the set."""
    url = f"sqlite:///{tmp_path_factory.mktemp('any')}/db"
    streams = [soba.DurableStream(url, "cats", classifier(), durability="off") for _ in range(3)]
    rows = st.lists(st.integers(0, 99), min_size=1, max_size=30, unique=True)
    learned = set()
    for calls in data.draw(st.lists(st.tuples(st.integers(0, 2), rows), max_size=12)):
        learn(streams[calls[0]], *calls[1])
        learned |= set(calls[1])
    for stream in streams:
        stream.sync()
    if learned:
        assert_learned(state_of(streams[0]), sorted(learned))
    for other in streams[1:]:
        assert_equal_bits(state_of(streams[0]), state_of(other))
    for stream in streams:
        stream.close()
