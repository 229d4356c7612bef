"""A store that a former version wrote opens, once rewritten; that of a newer one is refused."""

import json
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from faulty import faulty
from former import KNOWN, ROWS, assert_knows, connected, copy_store, rows
from streams import assert_equal_bits, state_of

import soba
from soba._files import checked_bytes, read_checked_bytes
from soba._formats import FORMAT
from soba.serve.databases import open_database
from soba.serve.names import ids_of_names
from soba.serve.store import Store, StoreError
from soba.serve.stream_state import StreamState

STREAMS = {
    "cats": "cats",
    "aging": "aging stream",
    "reworded": "reworded",
    "centroids": "centroids",
}
BLOBS = {"snapshot": "'snapshot'", "delta": "kind"}


@pytest.fixture(name="former")
def former_url(url):
    """Where a copy of the former store is."""
    copy_store(url)
    return url


def upgrades(caplog):
    """The lines of the log that tell of streams that were rewritten."""
    return [record for record in caplog.records if "was of format" in record.getMessage()]


def blobs(url=None, stream="cats"):
    """What is stored of a stream, by kind and version."""
    return [
        (kind, version, bytes(digest), bytes(blob))
        for table, kinds in BLOBS.items()
        for kind, version, digest, blob in rows(
            f"SELECT {kinds}, version, digest, blob FROM {table} "
            f"WHERE stream = '{stream}' AND blob IS NOT NULL ORDER BY version",
            url,
        )
    ]


@pytest.mark.parametrize("name", STREAMS)
def test_a_log_is_replayed_and_what_was_known_is_known(former, name, caplog):
    caplog.set_level(logging.INFO, "soba")
    known = KNOWN[STREAMS[name]]
    with soba.DurableStream(former, name) as stream:
        assert_knows(state_of(stream), known)
        assert stream.version == known["version"] + 1
        assert stream.snapshots() == known["snapshots"]
        assert [change.kind for change in stream.history()] == ["upgrade", *known["kinds"]]
        if not stream.frozen:
            n = known["n_seen"]
            assert stream.learn(ROWS[:n], ids=range(n)) == 0
        assert stream.version == known["version"] + 1
    [line] = caplog.records
    assert f"{name!r} was of format 2" in line.getMessage()


def test_places_are_those_of_the_log_where_it_knows_them(former):
    with soba.DurableStream(former, "aging") as stream:
        adapter = state_of(stream)
    in_order = {id_: row for row, id_ in enumerate(ids_of_names(range(84)).tolist())}
    for kept in adapter._samples.values():
        items = kept.items()
        assert items.places.tolist() == [in_order[id_] for id_ in items.ids.tolist()]
    with soba.DurableStream(former, "cats") as stream:
        items = state_of(stream).sample
    due = [in_order[id_] for id_ in items.ids.tolist()]
    first = 48  # samples before the oldest delta that is kept since the last snapshot
    assert items.places.tolist() == [place if place >= first else 0 for place in due]
    assert any(items.places) and not all(items.places)


def test_answers_come_from_the_sample_and_the_guard_stays(former):
    with soba.DurableStream(former, "cats") as stream:
        adapter, view = state_of(stream), stream.view()
        assert adapter.statistics_.keys() == adapter.copy().refresh().statistics_.keys()
        zero_shot = soba.ZeroShot(adapter.text_features, logit_scale=30.0)
        assert np.abs(view.predictor.logits(ROWS) - zero_shot.logits(ROWS)).max() > 0.1
        assert view.settings["guard"] and view.settings["guard_score"]["version"] == view.version
        assert adapter.params["sample_size"] == 20 and "capacity" not in adapter.params
        header = json.loads(rows("SELECT settings FROM stream WHERE name = 'cats'", former)[0][0])
    assert header["format"] == FORMAT and header["params"] == adapter.params


def test_rows_are_backed_up_as_they_were(former):
    with soba.DurableStream(former, "cats"):
        pass
    query = "SELECT kind, version, digest, blob FROM backup WHERE stream = ? AND format = 2"
    backup = {(kind, version): blob for kind, version, _, blob in rows(query, former, ("cats",))}
    due = {(kind, version): blob for kind, version, _, blob in blobs()}
    [(settings, version)] = rows("SELECT settings, version FROM stream WHERE name = 'cats'")
    assert backup == due | {("settings", version): settings.encode()}
    now = {(kind, version): blob for kind, version, _, blob in blobs(former)}
    assert all(now[place] != due[place] for place in due if place[0] in ("snapshot", "learn"))
    assert rows("SELECT COUNT(*) FROM backup WHERE stream <> 'cats'", former) == [(0,)]


def test_the_backup_goes_with_the_stream(former):
    with soba.DurableStream(former, "cats"), soba.DurableStream(former, "aging"):
        pass
    store = Store(open_database(former))
    assert store.remove("cats")
    store.close()
    assert rows("SELECT DISTINCT stream FROM backup", former) == [("aging",)]


def test_a_stream_is_rewritten_once(former, caplog):
    with soba.DurableStream(former, "cats") as stream:
        first, stored = state_of(stream), blobs(former)
    with soba.DurableStream(former, "cats") as stream:
        assert_equal_bits(state_of(stream), first)
    assert blobs(former) == stored
    assert len(upgrades(caplog)) == 1


@pytest.mark.parametrize("name", STREAMS)
def test_servers_that_open_it_at_once_rewrite_it_once(former, name, caplog):
    gate, states = threading.Barrier(3), []

    def work():
        gate.wait()
        with soba.DurableStream(former, name) as stream:
            states.append(state_of(stream))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(states) == 3
    for state in states:
        assert_equal_bits(state, states[0])
    assert len(upgrades(caplog)) == 1
    [(count,)] = rows("SELECT COUNT(*) FROM delta WHERE kind = 'upgrade'", former)
    assert count == 1


@pytest.mark.parametrize("name", ["cats", "aging"])
def test_learning_goes_on_and_all_replicas_agree(former, name):
    with soba.DurableStream(former, name) as one, soba.DurableStream(former, name) as other:
        for start in range(84, 120, 9):
            stream = (one, other)[start // 9 % 2]
            assert stream.learn(ROWS[start : start + 9], ids=range(start, start + 9)) == 9
        assert one.sync() == other.sync()
        assert one.n_seen == other.n_seen == 120
        with soba.DurableStream(former, name) as late:
            for stream in (one, other):
                assert_equal_bits(state_of(stream), state_of(late))


def test_former_versions_can_be_gone_back_to(former):
    known = KNOWN["cats"]
    with soba.DurableStream(former, "cats") as stream:
        ids = state_of(stream).state()["arrays"]["seen"]
        for version in (known["snapshots"][1], known["snapshots"][0] + 1, known["version"]):
            stream.rollback(version)
            adapter = state_of(stream)
            np.testing.assert_array_equal(adapter.state()["arrays"]["seen"], ids)
            assert adapter.n_seen == known["n_seen"]
        assert_knows(adapter, known)  # of the last version before it was rewritten


def test_a_damaged_snapshot_is_passed_over_as_ever(former):
    newest = KNOWN["cats"]["snapshots"][0]
    with connected(former) as connection:
        damage = "UPDATE snapshot SET blob = ? WHERE stream = 'cats' AND version = ?"
        connection.execute(damage, (b"damaged", newest))
    with soba.DurableStream(former, "cats") as stream:
        assert_knows(state_of(stream), KNOWN["cats"])
    [(blob,)] = rows(
        "SELECT blob FROM snapshot WHERE stream = 'cats' AND version = ?", former, (newest,)
    )
    assert blob == b"damaged"


KILLED = """
import os, signal, sys
from faulty import faulty
import soba
def fault(statement, before):
    if statement.startswith(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
soba.DurableStream(faulty(sys.argv[1], fault), "cats")
"""


@pytest.mark.parametrize("statement", ["UPDATE snapshot", "INSERT INTO delta"])
def test_a_kill_leaves_the_store_as_it_was(former, statement):
    folders = [Path(soba.__file__).parents[1], Path(__file__).parents[1] / "helpers"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, former, statement],
        env={"PYTHONPATH": ":".join(map(str, folders)), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert blobs(former) == blobs()
    assert rows("SELECT COUNT(*) FROM backup", former) == [(0,)]
    with soba.DurableStream(former, "cats") as stream:
        assert_knows(state_of(stream), KNOWN["cats"])


@pytest.mark.parametrize("statement", ["INSERT INTO backup", "UPDATE delta", "UPDATE stream"])
def test_a_database_that_fails_midway_is_as_it_was(former, statement, caplog):
    failing = open_database(former).errors[0]

    def fault(said, before):
        if before and said.startswith(statement):
            raise failing("the disk is full")

    with pytest.raises(StoreError, match="the disk is full"):
        soba.DurableStream(faulty(former, fault), "cats")
    assert blobs(former) == blobs() and not upgrades(caplog)
    with soba.DurableStream(former, "cats") as stream:
        assert_knows(state_of(stream), KNOWN["cats"])


def test_a_stream_of_a_newer_soba_is_refused_by_name(former):
    with connected(former) as connection:
        [(settings,)] = rows("SELECT settings FROM stream WHERE name = 'cats'")
        newer = json.dumps(json.loads(settings) | {"format": FORMAT + 1})
        connection.execute("UPDATE stream SET settings = ? WHERE name = 'cats'", (newer,))
    words = (
        rf"stream 'cats' was written by a newer soba \(format {FORMAT + 1}\); "
        rf"this one reads up to {FORMAT}: upgrade"
    )
    with pytest.raises(ValueError, match=words):
        soba.DurableStream(former, "cats")
    assert blobs(former) == blobs()


def test_a_newer_soba_that_rewrites_a_stream_in_use_stops_who_knows_it(former):
    with soba.DurableStream(former, "cats") as stream:
        version, store = stream.version, Store(open_database(former))
        arrays, meta = read_checked_bytes("state", stream._replica.read(StreamState.to_bytes))
        newer = checked_bytes("state", arrays, meta | {"format": FORMAT + 1})
        with store.locked("cats", None) as transaction:
            transaction.append("upgrade", newer)
        store.close()
        for _ in range(2):
            with pytest.raises(ValueError, match=rf"newer soba \(format {FORMAT + 1}\)"):
                stream.learn(ROWS[84:90], ids=range(84, 90))
        assert stream.view().version == version
    assert rows("SELECT version FROM stream WHERE name = 'cats'", former) == [(version + 1,)]


def test_new_streams_are_of_today(url, caplog):
    caplog.set_level(logging.INFO)
    copy_store(url)
    with soba.DurableStream(url, "centroids") as stream:
        classifier = stream.to_classifier()
    with soba.DurableStream(url, "new", classifier) as stream:
        assert stream.version == 0
    [(settings,)] = rows("SELECT settings FROM stream WHERE name = 'new'", url)
    assert json.loads(settings)["format"] == FORMAT
    assert len(upgrades(caplog)) == 1
