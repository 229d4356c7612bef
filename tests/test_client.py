"""The client: what it sends again and what it does not, to real servers behind lines that fail."""

import io
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from lossy_proxy import LossyProxy
from PIL import Image
from served_features import CLASSES, assert_served, features
from server_farm import free_port

import soba
from soba import client as client_module
from soba.answers import write_answers
from soba.client import ServiceError


@pytest.fixture
def waits(monkeypatch):
    """How long the client meant to wait, each time; it does not."""
    waits = []
    monkeypatch.setattr(client_module, "time", SimpleNamespace(sleep=waits.append))
    return waits


@pytest.fixture(scope="module")
def server(farm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with farm.start(f"sqlite:///{folder}/streams.db", folder, "--accept-features") as server:
        yield server


@pytest.fixture
def proxy(server):
    with LossyProxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def stream(proxy, waits, request):
    """A new one, behind a line that fails when it is told to."""
    with soba.Client(proxy.url, retries=3) as client:
        stream = client.create(request.node.name.replace("[", "-").strip("]")[:64], CLASSES)
        proxy.passed.clear()
        yield stream


def calls(proxy):
    """What came through to the server, by the last part of its path."""
    return [(method, path.rpartition("/")[2], status) for method, path, status in proxy.passed]


# Retries ------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there(waits):
    port = free_port()
    client = soba.Client(f"http://127.0.0.1:{port}", retries=5)
    with client, pytest.raises(ServiceError, match=f"http://127.0.0.1:{port}") as caught:
        client.stream("cats").reset()  # not even this was done, so it was tried again
    assert caught.value.status is None
    assert len(waits) == 5
    for attempt, wait in enumerate(waits):
        assert 0.05 * 2**attempt <= wait <= 0.1 * 2**attempt


@pytest.mark.parametrize("fault", ["lose", "drop", 429, 502, 503, 504])
def test_samples_are_sent_again_and_learned_once(stream, proxy, waits, tmp_path, fault):
    proxy.faults = [fault, None, fault]
    answers = list(stream.classify(features=features(range(40)), ids=range(40), batch=20))
    assert [answer.name for answer in answers] == [str(row) for row in range(40)]
    assert len(waits) == 2
    assert stream.state()["n_seen"] == 40
    assert_served(stream, range(40), tmp_path)


def test_samples_without_ids_are_known_by_content(stream, proxy):
    proxy.faults = ["lose"]
    [answer] = stream.classify(Image.new("RGB", (32, 32), "red"))
    assert len(calls(proxy)) == 2
    assert stream.state()["n_seen"] == 1
    assert answer.name == f"{answer.id:016x}"


@pytest.mark.parametrize("verb", ["reset", "rollback", "import"])
def test_what_goes_back_or_forgets_is_not_done_twice(stream, proxy, waits, verb, tmp_path):
    list(stream.classify(features=features(range(20))))
    stream.export(tmp_path / "state")
    change = {
        "reset": stream.reset,
        "rollback": lambda: stream.rollback(0),
        "import": lambda: stream.import_state(tmp_path / "state"),
    }[verb]
    for fault, status in (("lose", None), ("drop", None), (503, 503), (502, 502)):
        proxy.passed.clear()
        proxy.faults = [fault]
        with pytest.raises(ServiceError) as caught:
            change()
        assert caught.value.status == status
        assert calls(proxy) == ([("POST", verb, 200)] if fault == "lose" else [])
    assert not waits
    proxy.faults = [429, 429]
    change()
    assert calls(proxy) == [("POST", verb, 200)] and len(waits) == 2


@pytest.mark.parametrize("fault", ["lose", "drop", 503])
def test_what_says_how_things_shall_be_is_said_again(stream, proxy, waits, fault):
    [answer] = stream.classify(features=features([1]))
    changes = [
        lambda: stream.client.create(stream.name, CLASSES),
        stream.freeze,
        stream.unfreeze,
        lambda: stream.set_classes(CLASSES[:6]),
        lambda: stream.feedback(answer, "cat"),
        lambda: stream.feedback(answer.name, "bug"),
        stream.delete,
    ]
    for change in changes:
        waits.clear()
        proxy.faults = [fault]
        change()
        assert len(waits) == 1
    with pytest.raises(ServiceError) as caught:
        stream.delete()  # of what was not there before
    assert caught.value.status == 404


def test_a_server_that_says_when_to_come_back(stream, proxy, waits):
    proxy.faults = [(429, {"Retry-After": "7"}), (503, {"Retry-After": "20"})]
    stream.state()
    assert 7 <= waits[0] <= 8.4 and 20 <= waits[1] <= 24
    proxy.faults = [(503, {"Retry-After": "3600"}), (503, {"Retry-After": "tomorrow"})]
    with pytest.raises(ServiceError, match="503: the proxy says no"):
        stream.state()
    assert len(waits) == 2
    stream.state()  # a date, or whatever it is, is left to the client's own patience
    assert waits[2] <= 0.1


def test_an_end_to_patience(stream, proxy, waits):
    proxy.faults = [503] * 10
    with pytest.raises(ServiceError, match="503"):
        stream.state()
    assert len(waits) == 3 and len(proxy.faults) == 6


# What goes over the line --------------------------------------------------------------------------


@pytest.fixture
def direct(server):
    with soba.Client(server.url, retries=0) as client:
        yield client


def test_images_from_wherever_they_are(direct, icon_folder, tmp_path):
    stream = direct.create("wherever", CLASSES)
    paths = sorted(icon_folder.rglob("*.png"))
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    picture = Image.open(paths[0]).resize((40, 40)).convert("CMYK")
    images = [icon_folder, str(paths[3]), paths[4].read_bytes(), picture, broken, "nowhere.png",
              np.zeros((8, 8, 3), np.uint8)]  # fmt: skip
    answers = list(stream.classify(images, batch=4, top=2, min_confidence=1.0))
    count = len(paths)
    assert [answer.image for answer in answers[: count + 1]] == [*map(str, paths), str(paths[3])]
    assert [bool(answer.error) for answer in answers[count:]] == [0, 0, 0, 1, 1, 0]
    assert answers[count].id == answers[3].id and answers[count + 1].id == answers[4].id
    assert stream.state()["n_seen"] == count + 2
    good = [answer for answer in answers if not answer.error]
    assert all(answer.unsure and len(answer.top) == 2 for answer in good)
    assert all(answer.changed == (answer.label != answer.zero_shot) for answer in good)
    write_answers(tmp_path / "answers.csv", answers)
    again = list(stream.classify(icon_folder, learn=False, ids=range(count)))
    assert [answer.name for answer in again] == list(map(str, range(count)))
    assert stream.state()["n_seen"] == count + 2


def test_a_batch_of_broken_images_is_not_the_end(direct, icon_folder):
    stream = direct.create("broken", CLASSES)
    good = next(icon_folder.rglob("*.png"))
    answers = list(stream.classify([b"no image", b"nor this", good], batch=2))
    assert [bool(answer.error) for answer in answers] == [True, True, False]


def test_large_images_go_in_requests_of_their_own(proxy):
    images = []
    for shade in range(5):
        file = io.BytesIO()
        Image.new("RGB", (1100, 1100), (shade, 0, 0)).save(file, "BMP")  # 3.6 MB
        images.append(file.getvalue())
    with soba.Client(proxy.url) as client:
        stream = client.create("large", CLASSES)
        proxy.passed.clear()
        assert len(list(stream.classify(images, learn=False))) == 5
        assert len(calls(proxy)) == 3


def test_what_is_not_iterated_is_not_sent(direct, icon_folder):
    stream = direct.create("lazy", CLASSES)
    answers = stream.classify(icon_folder, batch=4)
    assert stream.state()["n_seen"] == 0
    next(answers)
    assert stream.state()["n_seen"] == 4


def test_a_guard_a_queue_and_a_file(direct, icon_folder, tmp_path):
    names = sorted(path.name for path in icon_folder.iterdir())
    stream = direct.create("guarded", names)
    info = stream.set_guard({name: icon_folder / name for name in names})
    assert info["guard"]["images"] == len(list(icon_folder.rglob("*.png")))
    list(stream.classify(icon_folder))
    assert stream.timeline()["points"] is not None
    queued = stream.queue(names[0])
    assert queued["class"] == names[0]
    stream.export(tmp_path / "state")
    assert soba.load(tmp_path / "state").names == tuple(names)
    stream.reset()
    assert stream.import_state(tmp_path / "state")["n_seen"] > 0
    kinds = [change["kind"] for change in stream.history(limit=3)]
    assert kinds[:2] == ["import", "reset"]
    assert stream.remove_guard()["guard"] is None
    with pytest.raises(ValueError, match=r"nowhere\.png"):
        stream.set_guard({names[0]: "nowhere.png"})


@pytest.mark.parametrize("name", ["a/b", "..", "100 %", "ä?#&="])
def test_classes_of_any_name_have_a_queue(direct, name):
    stream = direct.create("names", ["other", "a/b", "..", "100 %", "ä?#&="])
    assert stream.queue(name)["class"] == name


def test_errors_say_what_the_server_said(direct):
    with pytest.raises(ServiceError, match=r"404: .*'nobody'") as caught:
        direct.stream("nobody").state()
    assert caught.value.status == 404 and "nobody" in caught.value.detail
    direct.create("taken", ["a", "b"])
    with pytest.raises(ServiceError, match="409"):
        direct.create("taken", ["a", "c"])
    assert "taken" in [stream.name for stream in direct.streams()]
    assert repr(direct.stream("taken")) == "RemoteStream(name='taken')"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, ValueError),
        ({"images": "a.png", "features": np.ones((1, 4))}, ValueError),
        ({"images": "a.png", "batch": 0}, ValueError),
        ({"images": "a.png", "lern": True}, TypeError),
        ({"images": ["a.png", "b.png"], "ids": ["a"]}, ValueError),
    ],
)
def test_what_makes_no_sense_is_not_sent(direct, options, error):
    with pytest.raises(error):
        list(direct.stream("nobody").classify(**options))


def test_a_key(farm, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("0123456789abcdef me\n")
    store = f"sqlite:///{tmp_path}/streams.db"
    with farm.start(store, tmp_path, "--keys-file", str(keys)) as server:
        with soba.Client(server.url, "0123456789abcdef") as client:
            client.create("cats", CLASSES)
        for key in ("", "0123456789abcdeF"):
            with soba.Client(server.url, key) as client, pytest.raises(ServiceError, match="401"):
                client.streams()


def test_without_httpx_it_says_what_to_install():
    code = "import sys; sys.modules['httpx'] = None; import soba; soba.Client('http://localhost')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'soba-tta[client]'" in run.stderr


def test_features_need_no_pillow(server):
    code = (
        "import sys; sys.modules['PIL'] = None; import numpy as np, soba; "
        f"stream = soba.Client({server.url!r}).create('bare', ['a', 'b']); "
        f"print(len(list(stream.classify(features=np.ones((2, {features([0]).shape[1]}))))))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "2\n", run.stderr
