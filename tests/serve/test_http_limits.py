"""The service over HTTP with keys and limits: who comes in, how much at once, and how it ends."""

import base64
import concurrent.futures
import json
import os
import sqlite3
import struct
import time
import zlib
from pathlib import Path

import httpx
from asking import KEY, NAMES, form, pictures, png, problem
from PIL import Image
from serving import Server

OTHER_KEY = "o" * 24


def test_keys(limited, ask_limited):
    with httpx.Client(base_url=limited.url, timeout=60) as stranger:
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {KEY}"}):
            assert problem(stranger.get("/v1/streams", headers=headers), 401)
            assert problem(stranger.get("/metrics", headers=headers), 401)
        assert stranger.get("/livez").status_code == stranger.get("/readyz").status_code == 200
        assert stranger.get("/").status_code == 200
        assert ask_limited.get("/v1/streams").status_code == 200
        keys = Path(limited.env["SOBA_KEYS_FILE"])
        rotated = {"authorization": f"Bearer {OTHER_KEY}"}
        problem(stranger.get("/v1/streams", headers=rotated), 401)
        keys.write_text(f"{KEY} ann\n{OTHER_KEY} ann\n")
        assert stranger.get("/v1/streams", headers=rotated).status_code == 200
        keys.write_text(f"{OTHER_KEY} ann\n")
        problem(ask_limited.get("/v1/streams"), 401)
        keys.unlink()  # then nobody comes in
        problem(stranger.get("/v1/streams", headers=rotated), 401)
        keys.write_text(f"{KEY} ann\n")
        assert ask_limited.get("/v1/streams").status_code == 200
        named = {"host": "soba.test", "authorization": f"Bearer {KEY}"}
        assert stranger.get("/v1/streams", headers=named).status_code == 200


def test_limits(limited, ask_limited):
    ask = ask_limited
    new = {"name": "one", "classes": NAMES}
    assert ask.post("/v1/streams", json=new).status_code in (200, 201)
    many = {"name": "many", "classes": [f"class {n}" for n in range(51)]}
    assert "50 prompts" in problem(ask.post("/v1/streams", json=many), 413)
    eight = {"name": "eight", "classes": [f"class {n}" for n in range(8)]}
    assert "8 classes with 7" in problem(ask.post("/v1/streams", json=eight), 413)
    assert ask.post("/v1/streams", json=new | {"name": "two"}).status_code in (200, 201)
    assert "2 streams" in problem(ask.post("/v1/streams", json=new | {"name": "three"}), 413)
    images, _ = pictures(6)
    classify = "/v1/streams/one/classify"
    problem(ask.post(classify, files=form(images)), 400)  # the form's own reader counts files
    data = [{"data": base64.b64encode(image).decode()} for image in images]
    problem(ask.post(classify, json={"images": data}), 413)
    assert ask.post(classify, files=form(images[:4])).status_code == 200
    problem(ask.post(classify, content=b"x" * 200_001, headers={"content-type": "image/png"}), 413)
    problem(ask.post(classify, content=chunks(), headers={"content-type": "image/png"}), 413)
    large = png(Image.new("RGB", (200, 100)))
    detail = problem(ask.post(classify, content=large, headers={"content-type": "image/png"}), 422)
    assert "10000" in detail
    detail = problem(ask.post(classify, content=bomb(), headers={"content-type": "image/png"}), 422)
    assert "pixels" in detail
    assert ask.get("/v1/streams/two").status_code == 200  # one of them is in memory at a time
    assert 'stream="one"' not in ask.get("/metrics").text


def chunks():
    """More than is allowed, without saying so beforehand."""
    for _ in range(30):
        yield b"x" * 10_000


def bomb():
    """A small file that says it has 10^9 pixels."""

    def chunk(kind, content):
        crc = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + crc

    head = struct.pack(">IIBBBBB", 40_000, 25_000, 8, 0, 0, 0, 0)
    body = zlib.compress(bytes(1_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_too_much_at_once_is_told_to_wait(ask_limited):
    ask_limited.post("/v1/streams", json={"name": "one", "classes": NAMES})
    images, _ = pictures(3)

    def sent(_):
        return ask_limited.post("/v1/streams/one/classify?learn=false", files=form(images))

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(sent, range(48)))
    assert {reply.status_code for reply in replies} == {200, 429}
    refused = next(reply for reply in replies if reply.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert "limit of 4" in problem(refused, 429)


def test_learners_that_wait_for_the_database_hold_no_look_up(limited, ask_limited):
    """Somebody else holds the database: those who learn wait, few of them; looks are answered."""
    ask_limited.post("/v1/streams", json={"name": "one", "classes": NAMES})
    images, _ = pictures(12)
    look = "/v1/streams/one/classify?learn=false"
    assert ask_limited.post(look, files=form(images[:1])).status_code == 200
    path = limited.store.removeprefix("sqlite:///")
    other = sqlite3.connect(path, isolation_level=None, timeout=60)
    other.execute("BEGIN IMMEDIATE")
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        learning = [
            threads.submit(ask_limited.post, "/v1/streams/one/classify", files=form([image]))
            for image in images[:3]
        ]
        answered = ask_limited.post(look, files=form(images[:1]))
        more = [ask_limited.post(look, files=form(images[:1])) for _ in range(4)]
        other.execute("ROLLBACK")
        other.close()
        assert {each.result().status_code for each in learning} == {200}
    assert answered.status_code == 200 and answered.json()["learned"] == 0
    assert {each.status_code for each in more} == {200}


def test_an_export_leaves_nothing_behind(limited, ask_limited):
    ask_limited.post("/v1/streams", json={"name": "one", "classes": NAMES})
    export = "/v1/streams/one/export"
    for headers in ({}, {"range": "bytes=5-2"}, {"range": "bytes=99999999999-"}):
        assert ask_limited.get(export, headers=headers).status_code == 200
    with ask_limited.stream("GET", export) as hung_up:
        assert int(hung_up.headers["content-length"]) > 1000
    assert list(Path(limited.env["TMPDIR"]).glob("tmp*")) == []


def test_the_end_comes_in_order(tmp_path):
    """Not ready first, while all is answered; then what has begun is finished; then the end."""
    images, _ = pictures(4)
    store = f"sqlite:///{tmp_path}/streams.db"
    with Server(store, "--classes", ",".join(NAMES), "--drain-seconds", "600") as server:
        with httpx.Client(base_url=server.url, timeout=60) as ask:
            assert ask.get("/readyz").status_code == 200
            server.process.terminate()
            while ask.get("/readyz").status_code == 200:
                time.sleep(0.01)
            assert ask.get("/livez").status_code == 200
            told = ask.post("/v1/streams/default/classify", files=form(images)).json()
            assert told["learned"] == 4
        server.process.terminate()  # asked twice: no more waiting, and still in order
        assert server.process.wait() == 0
        with Server(store) as again, httpx.Client(base_url=again.url, timeout=60) as ask:
            assert ask.get("/v1/streams/default").json()["n_seen"] == 4


def test_logs_are_json(limited, ask_limited):
    ask_limited.get("/v1/streams/nobody")
    lines = []
    while not lines:  # they come through a pipe
        lines = [line for line in limited.lines if "/v1/streams/nobody" in line]
        time.sleep(0.01)
    said = json.loads(lines[0])
    assert said["status"] == 404 and said["owner"] == "ann" and said["seconds"] >= 0
    assert KEY not in "".join(limited.lines)


def test_off_loopback_it_needs_keys(tmp_path):
    from run_cli import refused

    store = f"sqlite:///{tmp_path}/x.db"
    assert "--keys-file" in refused("serve", "--host", "0.0.0.0", "--port", 0, "--store", store)
    assert not os.path.exists(tmp_path / "x.db")
    short = tmp_path / "keys"
    short.write_text("short\n")
    told = refused("serve", "--keys-file", short, "--port", 0, "--store", store)
    assert "16 plain characters" in told
