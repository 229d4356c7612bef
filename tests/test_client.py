"""The client: what it sends again and what it does not, against sockets that fail."""

import socket
from types import SimpleNamespace

import pytest
from lossy_proxy import LossyProxy

import soba
from soba import client as client_module
from soba.client import ServiceError


@pytest.fixture
def waits(monkeypatch):
    """How long the client meant to wait, each time; it does not."""
    waits = []
    monkeypatch.setattr(client_module, "time", SimpleNamespace(sleep=waits.append))
    return waits


def test_a_server_that_is_not_there(waits):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with soba.Client(f"http://127.0.0.1:{port}", retries=5) as client:
        with pytest.raises(ServiceError, match=f"http://127.0.0.1:{port}") as caught:
            client.stream("cats").reset()  # not even this was done, so it was tried again
    assert caught.value.status is None
    assert len(waits) == 5
    for attempt, wait in enumerate(waits):
        assert 0.05 * 2**attempt <= wait <= 0.1 * 2**attempt
