"""What can go wrong behind a server: looks go on where they can, learning says 503, all is kept."""

import bisect
import threading

import numpy as np
import pytest
from onnx_models import model_folder
from served_features import CLASSES, assert_served, features

import soba
from soba.client import ServiceError

FEATURES = "--accept-features"


def send(stream, rows, **options):
    """The answers to these rows, called by their numbers."""
    return list(stream.classify(features=features(rows), ids=rows, **options))


def refused(stream, rows, status):
    with pytest.raises(ServiceError) as caught:
        send(stream, rows)
    assert caught.value.status == status, caught.value
    return caught.value.detail


@pytest.fixture
def client():
    """Of a server that a test starts; it takes the first no for an answer."""
    clients = []

    def of(server):
        clients.append(soba.Client(server.url, retries=0))
        return clients[-1]

    yield of
    for each in clients:
        each.close()


def test_the_database_goes_and_comes_back(postgres, farm, client, tmp_path):
    with farm.start(postgres.new_database(), tmp_path, FEATURES) as server:
        stream = client(server).create("cats", CLASSES)
        before = send(stream, range(40))
        assert not before[0].stale
        postgres.kill()
        try:
            refused(stream, range(40, 50), 503)
            looks = send(stream, range(40), learn=False)
            assert all(look.stale for look in looks)
            assert {look.version for look in looks} == {before[-1].version}
            assert stream.state()["stale"] and stream.state()["n_seen"] == 40
            assert server.get("/readyz") == 503 and server.get("/livez") == 200
            for change in (stream.freeze, stream.reset, stream.rollback, stream.delete):
                with pytest.raises(ServiceError) as caught:
                    change()
                assert caught.value.status == 503
        finally:
            postgres.start()
        server.wait("/readyz")
        assert not send(stream, range(40, 50))[0].stale
        assert not send(stream, range(40), learn=False)[0].stale
        assert_served(stream, range(50), tmp_path)


def test_a_database_that_hangs(postgres, farm, client, tmp_path):
    """Nobody waits for it but those who learn, and they are answered when it goes on."""
    options = (FEATURES, "--sync-seconds", "0.2")
    with farm.start(postgres.new_database(), tmp_path, *options) as server:
        stream = client(server).create("cats", CLASSES)
        version = send(stream, range(40))[-1].version
        learned = []
        learner = threading.Thread(target=lambda: learned.extend(send(stream, range(40, 50))))
        with postgres.hanging():
            learner.start()
            assert server.get("/readyz") == 503 and server.get("/livez") == 200
            looks = []
            while not looks or not looks[-1].stale:  # it takes a while to be taken for hanging
                looks = send(stream, range(40), learn=False)
            assert {look.version for look in looks} == {version}
            assert learner.is_alive() and not learned
        learner.join()
        server.wait("/readyz")
        assert len(learned) == 10
        while send(stream, [0], learn=False)[0].stale:
            pass
        assert_served(stream, range(50), tmp_path)


def test_a_full_disk(farm, client, tmp_path):
    with farm.start(f"sqlite:///{tmp_path}/streams.db", tmp_path, FEATURES) as server:
        stream = client(server).create("cats", CLASSES)
        send(stream, range(64), batch=16)
        done = 64
        size = max(path.stat().st_size for path in tmp_path.glob("streams.db*"))
        server.full_disk(size + 10_000)
        with pytest.raises(ServiceError) as caught:
            while done < 5000:
                send(stream, range(done, done + 16))
                done += 16
        assert caught.value.status == 503
        looks = send(stream, range(done), learn=False, batch=64)
        assert len(looks) == done
        server.full_disk(None)
        send(stream, range(done, done + 16))
        assert_served(stream, range(done + 16), tmp_path)


def test_a_disk_that_can_only_be_read(farm, client, tmp_path):
    url = f"sqlite:///{tmp_path}/streams.db"
    with farm.start(url, tmp_path, FEATURES) as server:
        stream = client(server).create("cats", CLASSES)
        before = send(stream, range(32), learn=True)
        before = send(stream, range(32), learn=False)
    with farm.start(url, tmp_path, FEATURES, disk="read-only") as server:
        stream = client(server).stream("cats")
        refused(stream, range(32, 48), 503)
        after = send(stream, range(32), learn=False)
        assert [each.label for each in after] == [each.label for each in before]
        with pytest.raises(ServiceError) as caught:
            client(server).create("dogs", CLASSES)
        assert caught.value.status == 503
    with farm.start(url, tmp_path, FEATURES) as server:
        stream = client(server).stream("cats")
        send(stream, range(32, 48))
        assert_served(stream, range(48), tmp_path)


def test_another_encoder_than_the_streams(farm, client, tmp_path):
    url = f"sqlite:///{tmp_path}/streams.db"
    with farm.start(url, tmp_path, FEATURES) as server:
        stream = client(server).create("cats", CLASSES)
        send(stream, range(16))
    other = model_folder(tmp_path / "model")
    with farm.start(url, tmp_path, FEATURES, "--model", str(other)) as server:
        stream = client(server).stream("cats")
        calls = [
            stream.state,
            stream.freeze,
            stream.rollback,
            lambda: client(server).create("cats", CLASSES),
            lambda: stream.set_classes(CLASSES[:3]),
            lambda: list(stream.classify(features=np.ones((1, 4), np.float32))),
            lambda: stream.import_state(tmp_path / "streams.db"),
        ]
        for call in calls:
            with pytest.raises(ServiceError) as caught:
                call()
            assert caught.value.status == 409 and "encoder" in caught.value.detail
        client(server).create("colours", ["red", "blue"])  # others are welcome
    with farm.start(url, tmp_path, FEATURES) as server:
        assert_served(client(server).stream("cats"), range(16), tmp_path)


class Asker(threading.Thread):
    """Asks a stream again and again, and keeps what it is told."""

    def __init__(self, stream, rows, answered, *, learn):
        super().__init__()
        self._stream, self._rows, self._learn, self._answered = stream, rows, learn, answered
        self.answers, self.error, self.enough = [], None, threading.Event()

    def run(self):
        try:
            while not self.enough.is_set():
                for row in self._rows:
                    self.answers += send(self._stream, [row], learn=self._learn, top=20)
                    self._answered.release()
        except BaseException as error:
            self.error = error
            self._answered.release(1_000_000)  # nobody shall wait for more


@pytest.mark.parametrize("replicas", [1, 2])
def test_classes_change_while_others_ask(url, farm, tmp_path, replicas):
    """Every answer is of the classes of its version, and no request fails."""
    kinds = [tuple(CLASSES), tuple(CLASSES[:3]), (*CLASSES[::-1], "moon")]
    servers = [farm.start(url, tmp_path, FEATURES) for _ in range(replicas)]
    clients = [soba.Client(server.url, retries=0) for server in servers]
    try:
        changing = clients[0].create("cats", CLASSES)
        asked = clients[-1].stream("cats")
        answered = threading.Semaphore(0)
        askers = [
            Asker(asked, range(start, start + 20), answered, learn=learn)
            for start, learn in ((0, True), (20, True), (0, False))
        ]
        for asker in askers:
            asker.start()
        for turn in range(7):
            for _ in range(6):
                answered.acquire()
            changing.set_classes(kinds[(turn + 1) % 3])
        for asker in askers:
            asker.enough.set()
        for asker in askers:
            asker.join()
            assert asker.error is None
        entries = changing.history(limit=10_000)
        changed = sorted(each["version"] for each in entries if each["kind"] == "classes")
        assert len(changed) == 7
        answers = [answer for asker in askers for answer in asker.answers]
        for answer in answers:
            classes = kinds[bisect.bisect_right(changed, answer.version) % 3]
            assert {label for label, _ in answer.top} == set(classes)
            assert answer.zero_shot in classes
        assert len({len(answer.top) for answer in answers}) > 1  # it did change under their eyes
        assert changing.set_classes(CLASSES)["n_seen"] == 40
    finally:
        for client in clients:
            client.close()
        for server in servers:
            with server:
                pass
