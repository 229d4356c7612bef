"""The log itself: entries in order, whole or not there, on every database."""

import itertools
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soba.serve.databases import open_database, without_password
from soba.serve.snapshots import KEPT, surplus
from soba.serve.store import Damaged, Store, StoreError


@pytest.fixture
def store(database):
    store = Store(database)
    store.create(
        "cats", settings="{}", text=b"text", encoder="tiny", blob_at=lambda version: b"state 0"
    )
    yield store
    store.close()


def write(store, *blobs, kind="learn"):
    for blob in blobs:
        with store.locked("cats", None) as transaction:
            transaction.append(kind, blob, samples=1)


def compact(store, blob):
    with store.locked("cats", None) as transaction:
        transaction.compact(blob)


def blobs(entries):
    return [(entry.version, entry.blob) for entry in entries]


def test_entries_come_in_order_under_the_next_version(store):
    write(store, b"a", b"b", b"")
    assert blobs(store.entries("cats", 0)) == [(1, b"a"), (2, b"b"), (3, b"")]
    assert blobs(store.entries("cats", 2)) == [(3, b"")]
    assert store.entries("cats", 3) == []
    assert store.header("cats")[:4] == ("{}", b"text", "tiny", 3)


def test_streams_do_not_mix(store):
    store.create("dogs", settings="{}", text=b"", encoder="tiny", blob_at=lambda version: b"dogs")
    write(store, b"a")
    assert store.entries("dogs", 0) == []
    assert store.names() == ["cats", "dogs"]
    assert store.header("mice") is None
    with pytest.raises(ValueError, match="no stream 'mice'"), store.locked("mice", None):
        pass


def test_a_stream_is_made_once(store, database):
    other = Store(database)
    assert not other.create(
        "cats", settings="other", text=b"", encoder="other", blob_at=lambda version: b"other"
    )
    assert other.header("cats").encoder == "tiny"
    with other.locked("cats", None) as transaction:
        assert transaction.snapshot(0) == b"state 0"
    other.close()


def test_an_error_inside_leaves_nothing(store):
    with pytest.raises(ZeroDivisionError), store.locked("cats", None) as transaction:
        transaction.append("learn", b"a")
        raise ZeroDivisionError
    assert store.entries("cats", 0) == [] and store.header("cats").version == 0
    write(store, b"b")
    assert blobs(store.entries("cats", 0)) == [(1, b"b")]


def test_writers_take_turns(database, store):
    stores = [Store(database) for _ in range(4)]

    def work(mine):
        for number in range(5):
            with mine.locked("cats", 0) as transaction:
                seen = len(transaction.entries())
                assert seen == transaction.version
                transaction.append("learn", f"{seen} {number}".encode())

    threads = [threading.Thread(target=work, args=(mine,)) for mine in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = store.entries("cats", 0)
    assert [entry.version for entry in entries] == list(range(1, 21))
    assert [int(entry.blob.split()[0]) for entry in entries] == list(range(20))
    for mine in stores:
        mine.close()


def test_tables_are_made_by_many_at_once(database):
    gate, stores = threading.Barrier(4), [Store(database) for _ in range(4)]
    made = []

    def work(mine):
        gate.wait()
        made.append(
            mine.create("cats", settings="", text=b"", encoder="", blob_at=lambda version: b"state")
        )

    threads = [threading.Thread(target=work, args=(mine,)) for mine in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False, False, False, True]
    for mine in stores:
        mine.close()


def test_compaction_keeps_what_the_snapshot_before_needs(store):
    write(store, b"a", b"b")
    compact(store, b"state 2")
    assert blobs(store.entries("cats", 0)) == [(1, b"a"), (2, b"b")]
    write(store, b"c")
    write(store, b"{}", kind="freeze")
    compact(store, b"state 4")
    assert store.snapshots("cats") == [4, 2, 0]
    assert store.entries("cats", 1) is None  # behind the trimmed log
    assert blobs(store.entries("cats", 2)) == [(3, b"c"), (4, b"{}")]
    assert store.header("cats")[4:] == (3, 7)
    write(store, b"d")
    compact(store, b"state 5")
    assert store.entries("cats", 2) is None
    # What is not of samples stays in the history for good.
    assert [row[:2] for row in store.history("cats", 9)] == [(5, "learn"), (4, "freeze")]


def test_compaction_twice_at_one_version(store):
    write(store, b"a")
    compact(store, b"state 1")
    compact(store, b"state 1 again")
    assert store.snapshots("cats") == [1, 0]
    assert blobs(store.entries("cats", 0)) == [(1, b"a")]
    with store.locked("cats", None) as transaction:
        assert transaction.snapshot(1) == b"state 1 again"


@pytest.mark.parametrize("table", ["delta", "snapshot"])
def test_damage_is_told(store, table):
    write(store, b"entry")
    version = 1 if table == "delta" else 0
    change(store, f"UPDATE {table} SET blob = ? WHERE version = ?", (b"entrx", version))
    with pytest.raises(Damaged, match=r"(learn 1|snapshot 0) of stream 'cats' is damaged"):
        store.entries("cats", 0)
        with store.locked("cats", None) as transaction:
            transaction.snapshot(0)


def test_an_entry_cannot_stand_in_for_another(store):
    write(store, b"a", b"b")
    for version, place in ((1, 9), (2, 1)):
        change(store, "UPDATE delta SET version = ? WHERE version = ?", (place, version))
    assert store.entries("cats", 0) is None  # the second is not there
    change(store, "UPDATE delta SET version = ? WHERE version = 9", (2,))
    with pytest.raises(Damaged, match="learn 1"):
        store.entries("cats", 0)


def change(store, statement, values):
    """What somebody else does to the database."""
    connection = store.database.connect()
    connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize("wrong", ["cats.db", "sqlite:///", "sqlite://cats.db", "mysql://host/db"])
def test_urls_that_are_none(wrong):
    with pytest.raises(ValueError, match="sqlite:///FILE"):
        open_database(wrong)


def test_an_unknown_durability():
    with pytest.raises(ValueError, match="durability"):
        open_database("sqlite:///cats.db", durability="high")


@pytest.mark.parametrize("wrong", ["sqlite:///{}/no/cats.db", "postgresql://u:secret@/x?host={}"])
def test_a_database_that_is_not_there(wrong, tmp_path):
    with pytest.raises(StoreError) as caught:
        Store(open_database(wrong.format(tmp_path))).names()
    assert re.search("cats.db: unable to open|postgresql://u@/x: ", str(caught.value))
    assert "secret" not in str(caught.value)


def test_passwords_are_not_printed():
    assert without_password("postgresql://u:p%40@[::1]:5432/db") == "postgresql://u@[::1]:5432/db"


def test_durability_is_what_the_database_is_told(url):
    for durability, words in (
        ("full", {"2", "on"}),
        ("normal", {"1", "off"}),
        ("off", {"0", "off"}),
    ):
        connection = open_database(url, durability=durability).connect()
        ask = "PRAGMA synchronous" if url.startswith("sqlite") else "SHOW synchronous_commit"
        assert str(connection.execute(ask).fetchone()[0]) in words
        connection.close()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_snapshots_are_few_and_ever_further_apart(steps):
    versions, newest = [0], 0
    for step in steps:
        newest += step
        versions.insert(0, newest)
        dropped = surplus(versions)
        assert set(dropped).isdisjoint({versions[0], versions[1], 0})
        versions = [version for version in versions if version not in dropped]
        assert len(versions) <= KEPT


def test_snapshots_span_the_whole_stream():
    versions = []
    for version in range(2000):
        versions.insert(0, version)
        dropped = surplus(versions)
        versions = [version for version in versions if version not in dropped]
    ages = [versions[0] - version for version in versions]
    assert ages[:2] == [0, 1] and ages[-1] == 1999
    assert all(later >= 1.5 * sooner for sooner, later in itertools.pairwise(ages))
