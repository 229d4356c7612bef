"""Power cuts: a disk that loses what was not synced, and may lose it in any order."""

import apsw
import numpy as np
import pytest
from power_loss import Disk, PowerCut, connect
from streams import FEATURES, assert_learned, classifier

import soba
from soba.serve import replica
from soba.serve.databases import sqlite
from soba.serve.store import StoreError


@pytest.fixture(autouse=True)
def _compacts_often(monkeypatch):
    monkeypatch.setattr(replica, "_LEAST_LOG", 1 << 13)


def opened(disk, durability="full"):
    """The stream on a disk, by the statements that are run through sqlite3 elsewhere."""
    errors = (apsw.Error, PowerCut)
    database = sqlite(
        "database", durability=durability, connect=lambda: connect(disk), errors=errors
    )
    return soba.DurableStream(database, "cats", classifier())


def lost(durability, commits=40):
    """Of samples that were acknowledged, how many are gone after a power cut at each commit."""
    disk, missing = Disk(), 0
    for commit in range(commits):
        stream = opened(disk, durability)
        missing += 5 * commit - missing - stream.n_seen
        rows = range(5 * commit, 5 * commit + 5)
        assert stream.learn(FEATURES[list(rows)], ids=rows) == 5
        disk = disk.after_power_loss()
    stream = opened(disk)
    if durability == "full":
        assert_learned(stream.to_classifier().adapter, range(5 * commits))
        assert len(stream.snapshots()) > 2
    return 5 * commits - stream.n_seen


def test_nothing_acknowledged_is_lost():
    assert lost("full") == 0


def test_the_disk_does_lose_what_is_not_synced():
    assert lost("normal") > 0


@pytest.mark.parametrize("seed", range(3))
def test_the_power_goes_at_any_write_and_any_of_those_before_may_be_lost(seed):
    rng = np.random.default_rng(seed)
    disk, next_row, cuts = Disk(), 0, 0
    opened(disk).close()
    while next_row < 150:
        disk.cut_after = int(rng.integers(5, 100))
        try:
            stream = opened(disk)
            assert stream.n_seen >= next_row  # more, if it was written but not acknowledged
            while next_row < 150:
                rows = range(next_row, next_row + 3)
                stream.learn(FEATURES[list(rows)], ids=rows)
                next_row += 3
        except StoreError:
            cuts += 1
            assert cuts < 500
            disk = disk.after_power_loss(lambda: rng.random() < 0.5)
    disk.cut_after = None
    disk = disk.after_power_loss()
    assert cuts > 5
    assert_learned(opened(disk).to_classifier().adapter, range(150))
