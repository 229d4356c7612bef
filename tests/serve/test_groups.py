"""Group commit on a disk that takes its time to sync, through apsw."""

import threading
import time

import apsw
import pytest
from power_loss import Disk, connect
from streams import FEATURES, assert_learned, classifier

import soba
from soba.serve import replica
from soba.serve.databases import sqlite

THREADS = 16


def opened(disk, **settings):
    database = sqlite("database", connect=lambda: connect(disk), errors=(apsw.Error,))
    return soba.DurableStream(database, "cats", classifier(**settings))


def feed(stream, samples):
    """A sample a call, by many threads; how many of them are not done yet is in the list."""
    working = list(range(THREADS))

    def work(part):
        try:
            for row in range(part, samples, THREADS):
                stream.learn(FEATURES[[row]], ids=[row])
        finally:
            working.remove(part)  # else the others would wait for it for ever

    threads = [threading.Thread(target=work, args=(part,)) for part in range(THREADS)]
    for thread in threads:
        thread.start()
    return threads, working


def test_sixteen_threads_need_a_quarter_of_the_commits(monkeypatch):
    samples, disk = 320, Disk()
    stream = opened(disk)
    groups, working = stream._replica._group, None
    commit = groups._commit

    def slow_commit(group):
        # It takes as long as it takes all others to queue up.
        while working is None or len(groups._waiting) < len(working) - len(group):
            threading.Event().wait(0.0005)
        commit(group)

    monkeypatch.setattr(groups, "_commit", slow_commit)
    threads, working = feed(stream, samples)
    for thread in threads:
        thread.join()
    assert stream.version <= samples / 4
    assert_learned(stream.to_classifier().adapter, range(samples))


@pytest.mark.long
def test_group_commit_is_four_times_as_fast(monkeypatch):
    """Durable samples a second, where a sync takes 5 ms, beside one commit each."""
    samples, speed = 1600, {}
    for limit in (1, 1024):
        monkeypatch.setattr(replica, "_GROUP", limit)
        disk = Disk()
        stream = opened(disk)
        disk.sync_seconds, begun = 0.005, time.perf_counter()
        for thread in feed(stream, samples)[0]:
            thread.join()
        speed[limit] = samples / (time.perf_counter() - begun)
        assert stream.n_seen == samples
        print(f"groups of {limit}: {speed[limit]:.0f} samples/s, {stream.version} commits")
    assert speed[1024] >= 4 * speed[1]


@pytest.mark.long
def test_twenty_thousand_looks():
    """Each look during refreshes is the state before or after: the versions are told apart."""
    stream, looks, done = opened(Disk(), refresh=7), [], threading.Event()

    def look():
        while len(looks) < 20_000 or len(states) <= 100:  # a busy machine may learn slowly
            view = stream.view()
            looks.append((view.version, view.predictor.logits(FEATURES[0]).tobytes()))
        done.set()

    watcher, expected, states = threading.Thread(target=look), {}, set()

    def note():
        expected[stream.version] = stream.view().predictor.logits(FEATURES[0]).tobytes()
        states.add(expected[stream.version])

    note()
    watcher.start()
    row = 0
    while not done.is_set():
        rows = [place % len(FEATURES) for place in range(row, row + 7)]
        stream.learn(FEATURES[rows], ids=range(row, row + 7))
        row += 7
        note()
    watcher.join()
    assert len({version for version, _ in looks}) > 100
    assert all(expected[version] == logits for version, logits in looks)
