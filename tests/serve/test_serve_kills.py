"""kill -9 of a server under load: its clients lose nothing that was acknowledged, and what they
send again is not learned twice."""

import threading
import time

import numpy as np
import pytest
from served_features import CLASSES, assert_served, features
from server_farm import free_port

import soba

BATCH = 3


class Feeder(threading.Thread):
    """A client that sends its samples over and over, until it is told that once is enough."""

    def __init__(self, url, rows, acknowledged):
        super().__init__()
        self._url, self._rows, self._acknowledged = url, rows, acknowledged
        self.enough, self.error = threading.Event(), None

    def run(self):
        try:
            with soba.Client(self._url, retries=40) as client:
                stream = client.create("cats", CLASSES)
                while True:
                    self._send_all(stream)
                    if self.enough.is_set():
                        return
        except BaseException as error:
            self.error = error
            self._acknowledged.release(1_000_000)  # nobody shall wait for more

    def _send_all(self, stream):
        for start in range(0, len(self._rows), BATCH):
            some = self._rows[start : start + BATCH]
            answers = list(stream.classify(features=features(some), ids=some))
            assert [answer.name for answer in answers] == list(map(str, some))
            self._acknowledged.release()


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.long)])
def test_killed_at_random_moments(url, farm, tmp_path, kills):
    rng, port = np.random.default_rng(kills), free_port()
    rows, acknowledged = rng.permutation(30 * kills).tolist(), threading.Semaphore(0)
    address = f"http://127.0.0.1:{port}"
    feeders = [Feeder(address, rows[k::4], acknowledged) for k in range(4)]
    options = ("--accept-features",)
    server = farm.start(url, tmp_path, *options, port=port)
    try:
        for feeder in feeders:
            feeder.start()
        for _ in range(kills):
            for _ in range(rng.integers(1, 12)):  # requests that are answered
                acknowledged.acquire()
            time.sleep(rng.uniform(0.0, 0.02))
            assert server.kill() == -9
            server = farm.start(url, tmp_path, *options, port=port, ready=False)
        for feeder in feeders:
            feeder.enough.set()
        for feeder in feeders:
            feeder.join()
            assert feeder.error is None
        with soba.Client(address) as client:
            assert_served(client.stream("cats"), sorted(rows), tmp_path)
    finally:
        with server:
            pass
