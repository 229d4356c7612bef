"""What can go wrong with a database: nothing is lost or learned twice, and callers are told."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from disks import full_disk
from faulty import faulty
from streams import FEATURES, assert_equal_bits, assert_learned, classifier, learn, state_of

import soba
from soba.serve import databases, replica
from soba.serve.databases import open_database, sqlite
from soba.serve.store import StoreError, Transaction
from soba.serve.stream_state import StreamState


@pytest.mark.parametrize("before", [True, False])
def test_a_commit_that_fails_after_learning(url, before):
    """Memory is ahead of the log, or so it seems: it is dropped, and the caller may repeat."""
    database, broken = open_database(url), []

    def fault(statement, before):
        if statement == "COMMIT" and broken == [before]:
            broken.clear()
            raise database.errors[0]("the line broke")

    with soba.DurableStream(faulty(url, fault), "cats", classifier()) as stream:
        learn(stream, *range(30))
        view = stream.view()
        broken.append(before)
        with pytest.raises(StoreError, match="the line broke; what was not acknowledged can be"):
            learn(stream, *range(30, 60))
        assert not broken
        assert stream.view() is view  # nobody saw what was not committed
        with soba.DurableStream(url, "cats") as other:  # takes the version that was not written
            learn(other, *range(60, 70))
            assert learn(stream, *range(30, 60)) == (30 if before else 0)
            other.sync()
            assert_equal_bits(state_of(stream), state_of(other))
        assert_learned(state_of(stream), range(70))


def test_a_database_that_lost_its_last_commits(url):
    """As a server without synced commits may: processes that know more than it start over."""
    with soba.DurableStream(url, "cats", classifier()) as stream:
        learn(stream, *range(30))
        learn(stream, *range(30, 60))
        connection = open_database(url).connect()
        connection.execute("DELETE FROM delta WHERE version = ?", (2,))
        connection.execute("UPDATE stream SET version = ?", (1,))
        connection.close()
        assert learn(stream, *range(30, 60)) == 30
        assert_learned(state_of(stream), range(60))


def test_the_server_goes_and_comes_back(postgres):
    with soba.DurableStream(postgres.new_database(), "cats", classifier()) as stream:
        learn(stream, *range(40))
        postgres.kill()
        try:
            with pytest.raises(StoreError):
                learn(stream, *range(40, 50))
            with pytest.raises(StoreError):
                stream.sync()
            assert stream.view().predictor.logits(FEATURES[:2]).shape == (2, 8)
        finally:
            postgres.start()
        assert learn(stream, *range(40, 50)) == 10
        assert_learned(state_of(stream), range(50))


def test_a_writer_that_hangs_holds_others_up_for_a_while_only(url, monkeypatch):
    hanging = open_database(url)
    connection = hanging.connect()  # with the usual patience: it hangs as long as it is told to
    monkeypatch.setattr(databases, "_PATIENCE", 1)
    with soba.DurableStream(url, "cats", classifier()) as stream:
        learn(stream, *range(30))
        connection.execute(hanging.begin)
        connection.execute(f"SELECT name FROM stream{hanging.lock}").fetchall()
        with pytest.raises(StoreError, match="lock"):
            learn(stream, *range(30, 60))
        connection.execute("ROLLBACK")
        connection.close()
        assert learn(stream, *range(30, 60)) == 30
        assert_learned(state_of(stream), range(60))


def test_a_full_disk(tmp_path):
    url = f"sqlite:///{tmp_path}/streams.db"
    with soba.DurableStream(url, "cats", classifier()) as stream:
        learn(stream, *range(100))
        size = max(path.stat().st_size for path in tmp_path.iterdir())
        with full_disk(size + 10_000):
            done = 100
            with pytest.raises(StoreError, match=r"streams\.db: .*(full|I/O)"):
                while done < 6000:
                    learn(stream, *range(done, done + 10))
                    done += 10
        learn(stream, *range(done, done + 10))
        assert_learned(state_of(stream), range(done + 10))


def test_a_disk_that_can_only_be_read(tmp_path):
    path = tmp_path / "streams.db"
    with soba.DurableStream(f"sqlite:///{path}", "cats", classifier()) as stream:
        learn(stream, *range(40))
        state = state_of(stream)

    def read_only():
        address = f"file:{path}?mode=ro"
        return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)

    with soba.DurableStream(sqlite(str(path), connect=read_only), "cats") as stream:
        assert_equal_bits(state_of(stream), state)
        with pytest.raises(StoreError, match="readonly"):
            learn(stream, *range(40, 50))
    with soba.DurableStream(f"sqlite:///{path}", "cats") as stream:
        assert_equal_bits(state_of(stream), state)


def damage(url, table, version, *, stream="cats"):
    connection = open_database(url).connect()
    statement = f"SELECT blob FROM {table} WHERE stream = ? AND version = ?"
    [(blob,)] = connection.execute(statement, (stream, version)).fetchall()
    blob = bytearray(blob)
    blob[len(blob) // 2] ^= 1
    connection.execute(f"UPDATE {table} SET blob = ? WHERE version = ?", (bytes(blob), version))
    connection.close()


@pytest.fixture
def compacted(url, monkeypatch):
    """The URL of a stream whose log was compacted, and its state."""
    monkeypatch.setattr(replica, "_LEAST_LOG", 1 << 13)
    with soba.DurableStream(url, "cats", classifier()) as stream:
        while len(stream.snapshots()) < 4:
            learn(stream, *range(stream.n_seen, stream.n_seen + 5))
        stream.freeze()
        return url, state_of(stream), stream.snapshots()


def test_a_damaged_snapshot_is_made_up_for_by_the_one_before(compacted):
    url, state, snapshots = compacted
    damage(url, "snapshot", snapshots[0])
    with soba.DurableStream(url, "cats") as stream:
        assert_equal_bits(state_of(stream), state)
        stream.unfreeze()
        while stream.snapshots()[0] == snapshots[0]:  # until the next one takes its place
            learn(stream, *range(stream.n_seen, stream.n_seen + 5))
        state = state_of(stream)
    with soba.DurableStream(url, "cats") as stream:
        assert_equal_bits(state_of(stream), state)


def test_two_damaged_snapshots_are_too_many(compacted):
    url, _, snapshots = compacted
    for version in snapshots[:2]:
        damage(url, "snapshot", version)
    with pytest.raises(ValueError, match=rf"snapshot {snapshots[0]} of stream 'cats' is damaged"):
        soba.DurableStream(url, "cats")


def test_a_damaged_entry_is_refused(compacted):
    url, _, snapshots = compacted
    damage(url, "delta", snapshots[0] + 1)
    with pytest.raises(ValueError, match=rf"(learn|freeze) {snapshots[0] + 1} of stream .* damag"):
        soba.DurableStream(url, "cats")


@pytest.mark.parametrize("when", ["INSERT INTO snapshot", "DELETE FROM delta", "UPDATE delta"])
def test_killed_during_compaction(url, workers, when):
    soba.DurableStream(url, "cats", classifier()).close()
    job, acknowledged = workers.start(url, range(3000), threads=1, die_after=when), set()
    while (rows := workers.acknowledged(job)) is not None:
        acknowledged |= set(rows)
    with soba.DurableStream(url, "cats") as stream:
        assert stream.snapshots() == [0]
        # The last call was in the log when it was killed, and no answer had been given.
        assert 0 < len(acknowledged) < 2000 and stream.n_seen - len(acknowledged) in (0, 3)
        assert_learned(state_of(stream), range(stream.n_seen))


def test_an_entry_of_a_later_version_of_soba(url):
    with soba.DurableStream(url, "cats", classifier()) as stream:
        stream._replica.set("paint", lambda state: {"colour": "red"})
        with pytest.raises(ValueError, match="'paint' is no change that this version"):
            soba.DurableStream(url, "cats")


def test_a_stream_without_psycopg_says_what_to_install():
    code = (
        "import sys; sys.modules['psycopg'] = None; import soba; "
        "soba.DurableStream('postgresql://host/db', 'cats')"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(soba.__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert "pip install 'soba-tta[serve]'" in run.stderr


def test_a_state_is_not_written_twice(url, monkeypatch):
    """After a reset the log of the larger state outweighs the small one for long."""
    monkeypatch.setattr(replica, "_LEAST_LOG", 1 << 13)
    written = []
    monkeypatch.setattr(
        Transaction,
        "compact",
        lambda self, blob, compact=Transaction.compact: (written.append(1), compact(self, blob)),
    )
    with soba.DurableStream(url, "cats", classifier()) as stream:
        for start in range(0, 3000, 20):
            learn(stream, *range(start, start + 20))
        stream.reset()
        start, before = 3000, len(written)
        while len(written) == before:
            learn(stream, *range(start, start + 5))
            start += 5
        for _ in range(5):  # known: nothing new is in the log
            assert learn(stream, *range(3000, 3005)) == 0
        assert len(written) == before + 1


def test_what_fails_after_a_commit_is_nobodys_error(url, monkeypatch):
    monkeypatch.setattr(replica, "_PATIENCE", 0.0)  # the next one tries again
    monkeypatch.setattr(replica, "_LEAST_LOG", 1 << 10)

    def no_memory(self):
        raise MemoryError

    with soba.DurableStream(url, "cats", classifier()) as stream:
        with monkeypatch.context() as patch:
            patch.setattr(StreamState, "to_bytes", no_memory)
            for start in range(0, 60, 20):
                assert learn(stream, *range(start, start + 20)) == 20
        assert learn(stream, *range(60, 80)) == 20
        assert_learned(state_of(stream), range(80))
        assert stream.snapshots()[0] == stream.version  # it was made up for


def test_a_store_without_a_write_ahead_log_is_refused():
    with pytest.raises(ValueError, match="write-ahead log"):
        soba.DurableStream("sqlite:///:memory:", "cats", classifier())


def test_a_file_that_others_create_at_the_same_time(tmp_path):
    """SQLite says at once that it is locked where others turn the log on; we wait."""
    path, told = str(tmp_path / "streams.db"), []

    class Busy:
        def __init__(self):
            self.inside = sqlite3.connect(path, isolation_level=None)

        def execute(self, statement, *values):
            if "journal_mode" in statement and len(told) < 3:
                told.append(statement)
                raise sqlite3.OperationalError("database is locked")
            return self.inside.execute(statement, *values)

        def close(self):
            self.inside.close()

    sqlite(path, connect=Busy).connect().close()
    assert len(told) == 3


def test_settings_in_place_of_a_url_are_not_repeated():
    with pytest.raises(ValueError, match="sqlite:///FILE") as caught:
        open_database("host=db user=me password=secret")
    assert "secret" not in str(caught.value)
