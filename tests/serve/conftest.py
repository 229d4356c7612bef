"""Databases to keep streams in: each test runs on all of them. And a server with limits."""

import httpx
import postgres_server
import pytest
from asking import KEY
from serving import Server
from stream_workers import Workers

from soba.serve.databases import open_database


@pytest.fixture(scope="session")
def postgres():
    """A server for all tests; whoever kills it starts it again."""
    if postgres_server.binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    server = postgres_server.PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Where an empty database is."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/streams.db"
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def database(url):
    return open_database(url)


@pytest.fixture(scope="session")
def workers():
    """Processes that feed streams, and can be killed."""
    workers = Workers()
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """A server with keys and small limits, said by the environment."""
    folder = tmp_path_factory.mktemp("limited")
    keys = folder / "keys"
    keys.write_text(f"# keys\n{KEY} ann\n")
    limits = {"BODY": 200_000, "IMAGES": 4, "PIXELS": 10_000, "PROMPTS": 50, "STREAMS": 2}
    limits |= {"WAITING": 4, "LOADED": 1}
    env = {f"SOBA_MAX_{name}": str(value) for name, value in limits.items()}
    env |= {"SOBA_KEYS_FILE": str(keys), "SOBA_LOG_FORMAT": "json", "SOBA_ALLOW_HOST": "soba.test"}
    env["TMPDIR"] = str(folder / "tmp")
    (folder / "tmp").mkdir()
    with Server(f"sqlite:///{folder}/streams.db", env=env) as server:
        yield server


@pytest.fixture
def ask_limited(limited):
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=limited.url, timeout=60, headers=headers) as client:
        yield client
