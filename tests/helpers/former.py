"""What commit 788c39b has stored, and what it knew of it: tests/fixtures/788c39b/README.md."""

import base64
import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np

from soba.serve.databases import open_database
from soba.serve.store import Store

FOLDER = Path(__file__).parent.parent / "fixtures" / "788c39b"
KNOWN = json.loads((FOLDER / "known.json").read_text(encoding="utf-8"))
ROWS = np.load(FOLDER / "images.npy")
TABLES = ("stream", "delta", "snapshot", "removed")


def file(name):
    return FOLDER / f"{name}.safetensors"


def unpacked(text, dtype="<f4"):
    return np.frombuffer(base64.b64decode(text), dtype)


def assert_knows(adapter, known):
    """An adapter knows the ids that the former code knew, and keeps the samples it had."""
    assert adapter.n_seen == known["n_seen"]
    seen = adapter.state()["arrays"]["seen"]
    np.testing.assert_array_equal(seen.ravel(), unpacked(known["seen"], "<i8"))
    assert adapter._samples.keys() == known["ids"].keys()
    for name, sample in adapter._samples.items():
        kept = sample.items()
        np.testing.assert_array_equal(kept.ids, unpacked(known["ids"][name], "<i8"))
        if "features" in known:
            former = unpacked(known["features"][name]).reshape(kept.features.shape)
            np.testing.assert_array_equal(kept.features, former)


def copy_store(url):
    """Put the former store into an empty database."""
    if url.startswith("sqlite:///"):
        shutil.copy(FOLDER / "streams.db", url.removeprefix("sqlite:///"))
        return
    with connected(url) as connection:
        database = open_database(url)
        for table, statement in zip(TABLES, Store.tables, strict=False):
            assert f"EXISTS {table} " in statement
            connection.execute(statement.format(blob=database.blob))
            for row in rows(f"SELECT * FROM {table}"):
                marks = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)


@contextlib.contextmanager
def connected(url):
    """A connection to a database, beside those of streams."""
    connection = open_database(url).connect()
    try:
        yield connection
    finally:
        connection.close()


def rows(query, url=None, values=()):
    """What a database holds; by default the former store as it was written."""
    if url is None:
        with contextlib.closing(sqlite3.connect(FOLDER / "streams.db")) as store:
            return store.execute(query, values).fetchall()
    with connected(url) as connection:
        return [tuple(map(_plain, row)) for row in connection.execute(query, values).fetchall()]


def _plain(value):
    return bytes(value) if isinstance(value, memoryview) else value
