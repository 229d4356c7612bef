"""Databases to keep streams in: each test runs on all of them."""

import postgres_server
import pytest
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
