"""The service over HTTP: a real process, asked as strangers and operators ask."""

import base64
import io
import time

import httpx
import numpy as np
import pytest
from asking import NAMES, form, pictures, problem
from PIL import Image
from serving import Server

import soba


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    store = f"sqlite:///{tmp_path_factory.mktemp('serve')}/streams.db"
    with Server(store, "--accept-features") as server:
        yield server


@pytest.fixture
def ask(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def stream(ask, request):
    """A new stream of four classes; its address."""
    name = f"s{abs(hash(request.node.name))}"[:40]
    made = ask.post("/v1/streams", json={"name": name, "classes": NAMES})
    assert made.status_code == 201, made.text
    yield f"/v1/streams/{name}"
    ask.delete(f"/v1/streams/{name}")


# Answers ----------------------------------------------------------------------------------------


def test_every_way_to_send_an_image_gives_the_same_answer(ask, stream):
    [image], _ = pictures(1)
    data = base64.b64encode(image).decode()
    as_json = {"images": [{"data": data}]}
    as_uri = {"images": [{"data": f"data:image/png;base64,{data}"}]}
    look = f"{stream}/classify?learn=false"
    replies = [
        ask.post(look, files=form([image])),
        ask.post(look, content=image, headers={"content-type": "image/png"}),
        ask.post(look, json=as_json),
        ask.post(look, json=as_uri),
    ]
    answers = [reply.json()["answers"] for reply in replies]
    assert len({answer["label"] for [answer] in answers}) == 1
    assert len({answer["id"] for [answer] in answers}) == 1
    for [answer] in answers:
        assert answer["probability"] == pytest.approx(answers[0][0]["probability"], rel=1e-4)
    assert replies[0].json()["learned"] == 0 and replies[0].json()["version"] == 0


def test_what_is_answered_is_what_a_classifier_answers(ask, stream, tmp_path):
    images, _ = pictures(12)
    told = ask.post(f"{stream}/classify?top=2", files=form(images)).json()
    clf = soba.Classifier("tiny", NAMES)
    for number, image in enumerate(images):
        (tmp_path / f"{number:02d}.png").write_bytes(image)
    for ours, theirs in zip(told["answers"], clf.classify(tmp_path), strict=True):
        assert (ours["label"], ours["zero_shot"]["label"]) == (theirs.label, theirs.zero_shot)
        assert ours["probability"] == pytest.approx(theirs.probability, rel=1e-3)
        assert len(ours["top"]) == 2 and ours["id"] == ours["sample"]
        assert int(ours["id"], 16) == theirs.id
        assert ours["changed"] == (theirs.label != theirs.zero_shot)
        assert ours["unsure"] == (theirs.probability < 0.5)
    assert told["learned"] == 12 and told["version"] == 1
    again = ask.post(f"{stream}/classify", files=form(images)).json()
    assert again["learned"] == 0 and again["version"] == 1  # known by their content


def test_clients_may_name_samples(ask, stream):
    images, _ = pictures(3)
    sent = {"files": form(images), "data": {"id": ["a", "b", "c"]}}
    told = ask.post(f"{stream}/classify", **sent).json()
    assert [answer["id"] for answer in told["answers"]] == ["a", "b", "c"]
    assert ask.post(f"{stream}/classify", **sent).json()["learned"] == 0
    swapped = {"files": form(images[::-1]), "data": {"id": ["a", "b", "c"]}}
    assert "another sample" in problem(ask.post(f"{stream}/classify", **swapped), 409)
    listed = [
        sample["sample"]
        for name in NAMES
        for sample in ask.get(f"{stream}/queue/{name}").json()["samples"]
    ]
    assert sorted(listed) == sorted(answer["sample"] for answer in told["answers"])


def test_a_broken_image_is_an_answer_with_its_error(ask, stream):
    [image], _ = pictures(1)
    told = ask.post(f"{stream}/classify", files=form([image, b"rubbish", image[:200]])).json()
    good, *broken = told["answers"]
    assert good["error"] is None and told["learned"] == 1
    for answer in broken:
        assert answer["error"] and answer["label"] is None and answer["top"] == []


def test_features_are_taken_where_that_is_allowed(ask, stream, ask_limited):
    rows = np.random.default_rng(0).normal(size=(3, soba.load_encoder().width))
    content = io.BytesIO()
    np.save(content, rows.astype(np.float32))
    sent = {"content": content.getvalue(), "headers": {"content-type": "application/x-npy"}}
    told = ask.post(f"{stream}/classify?id=x&id=y&id=z", **sent).json()
    assert [answer["id"] for answer in told["answers"]] == ["x", "y", "z"]
    problem(ask_limited.post(f"{stream}/classify", **sent), 415)
    sent["content"] = b"\x93NUMPY\x01\x00rubbish"
    problem(ask.post(f"{stream}/classify", **sent), 422)


# Operators --------------------------------------------------------------------------------------


def evidence_of(info):
    """Samples that speak for the classes, in all; each class has its number rounded to tenths."""
    return sum(each["queued"] for each in info["evidence"])


def test_a_class_lists_what_it_explains_best_or_what_its_queue_holds(ask, stream, tmp_path):
    images, _ = pictures(20)
    ask.post(f"{stream}/classify", files=form(images))
    best = {name: ask.get(f"{stream}/queue/{name}").json() for name in NAMES}
    (tmp_path / "state").write_bytes(ask.get(f"{stream}/export").content)
    adapter = soba.load(tmp_path / "state").adapter
    for name, expected in zip(NAMES, adapter.examples(16), strict=True):
        listed = {int(each["sample"], 16): each["probability"] for each in best[name]["samples"]}
        assert list(listed) == list(expected)
        assert listed == pytest.approx(expected, rel=1e-3)
        assert best[name]["capacity"] is None
    assert sum(len(each["samples"]) for each in best.values()) > 10
    ask.post("/v1/streams", json={"name": "queued", "classes": NAMES, "method": "soba"})
    ask.post("/v1/streams/queued/classify", files=form(images))
    for name in NAMES:
        queue = ask.get(f"/v1/streams/queued/queue/{name}").json()
        entropies = [each["entropy"] for each in queue["samples"]]
        assert queue["capacity"] == 16 and entropies == sorted(entropies)
        assert all(each["probability"] is None for each in queue["samples"])
    assert ask.delete("/v1/streams/queued").status_code == 204


def test_the_life_of_a_stream(ask, stream):
    images, _ = pictures(40)
    for start in range(0, 40, 8):
        told = ask.post(f"{stream}/classify", files=form(images[start : start + 8])).json()
    info = ask.get(stream).json()
    assert info["n_seen"] == 40 and info["version"] == told["version"] == 5
    assert 0 < evidence_of(info) < 40.1
    assert info["evidence"][0].keys() == {"class", "queued", "capacity"}
    assert info["expected_accuracy"]["adapted"] > 0 and 0 <= info["agreement"] <= 1
    frozen = ask.post(f"{stream}/freeze").json()
    assert frozen["frozen"] and frozen["frozen_by"] == "operator"
    fresh, _ = pictures(8, "v2")
    assert ask.post(f"{stream}/classify", files=form(fresh)).json()["learned"] == 0
    assert not ask.post(f"{stream}/unfreeze").json()["frozen"]
    assert ask.post(f"{stream}/classify", files=form(fresh)).json()["learned"] == 8
    back = ask.post(f"{stream}/rollback", json={"version": 3}).json()
    assert 0 < evidence_of(back) < min(24.1, evidence_of(info))
    kinds = [change["kind"] for change in ask.get(f"{stream}/history").json()["changes"]]
    assert kinds == ["rollback", "learn", "unfreeze", "freeze", *["learn"] * 5]
    exported = ask.get(f"{stream}/export").content
    assert ask.post(f"{stream}/reset").json()["n_seen"] == 0
    sent = {"content": exported, "headers": {"content-type": "application/octet-stream"}}
    imported = ask.post(f"{stream}/import", **sent).json()
    assert imported["evidence"] == back["evidence"]
    more = {"classes": [*NAMES, "cat"]}
    assert ask.put(f"{stream}/classes", json=more).json()["classes"] == more["classes"]
    points = ask.get(f"{stream}/timeline").json()["points"]
    assert [point["version"] for point in points] == sorted({p["version"] for p in points})
    assert points[-1]["n_seen"] == imported["n_seen"]


def test_an_exported_stream_is_a_classifier(ask, stream, tmp_path):
    images, _ = pictures(8)
    ask.post(f"{stream}/classify", files=form(images))
    path = tmp_path / "stream.soba"
    path.write_bytes(ask.get(f"{stream}/export").content)
    clf = soba.load(path)
    assert clf.names == tuple(NAMES) and clf.adapter.n_seen == 8


@pytest.mark.parametrize("content", [b"", b"rubbish", b"\0" * 1000])
def test_what_is_no_state_is_not_imported(ask, stream, content):
    sent = {"content": content, "headers": {"content-type": "application/octet-stream"}}
    detail = problem(ask.post(f"{stream}/import", **sent), 422)
    assert "/tmp" not in detail
    assert ask.get(stream).json()["version"] == 0


def test_feedback_counts_and_teaches_nothing(ask, stream):
    images, labels = pictures(6)
    told = ask.post(f"{stream}/classify", files=form(images)).json()
    before = ask.get(f"{stream}/export").content
    for answer, label in zip(told["answers"], labels, strict=True):
        said = ask.post(f"{stream}/feedback", json={"id": answer["id"], "label": label}).json()
    right = sum(a["label"] == label for a, label in zip(told["answers"], labels, strict=True))
    assert said["count"] == 6 and said["adapted"]["right"] == right
    assert said["adapted"]["low"] <= right / 6 <= said["adapted"]["high"]
    again = ask.post(f"{stream}/feedback", json={"id": told["answers"][0]["id"], "label": "bus"})
    assert again.json()["count"] == 6  # said anew, not twice
    assert ask.get(f"{stream}/export").content == before
    assert "is remembered" in problem(
        ask.post(f"{stream}/feedback", json={"id": "nobody", "label": "bus"}), 409
    )
    told = {"id": "nobody", "label": "bus", "answered": "bus", "zero_shot": "bug"}
    assert ask.post(f"{stream}/feedback", json=told).json()["count"] == 7
    problem(ask.post(f"{stream}/feedback", json=told | {"label": "mauve"}), 422)


def test_a_guard_is_set_by_labelled_images(ask, stream):
    images, labels = pictures(8)
    info = ask.put(f"{stream}/guard", files=form(images), data={"label": labels}).json()
    assert info["guard"]["images"] == 8 and not info["guard"]["failed"]
    assert info["guard"]["zero_shot"]["right"] > 4 and info["last_good_version"] == 1
    data = [{"data": base64.b64encode(i).decode(), "label": n} for i, n in zip(images, labels)]  # noqa: B905
    assert ask.put(f"{stream}/guard", json={"images": data[:2]}).json()["guard"]["images"] == 2
    assert ask.delete(f"{stream}/guard").json()["guard"] is None
    problem(ask.put(f"{stream}/guard", files=form(images), data={"label": labels[:3]}), 422)
    problem(ask.put(f"{stream}/guard", files=form([b"rubbish"]), data={"label": ["bus"]}), 422)
    problem(ask.put(f"{stream}/guard", files=form(images[:1]), data={"label": ["mauve"]}), 422)


def test_a_stream_that_is_removed_begins_anew(ask, stream):
    images, _ = pictures(4)
    ask.post(f"{stream}/classify", files=form(images))
    assert ask.delete(stream).status_code == 204
    problem(ask.get(stream), 404)
    problem(ask.post(f"{stream}/classify", files=form(images)), 404)
    name = stream.rpartition("/")[2]
    made = ask.post("/v1/streams", json={"name": name, "classes": ["bus", "cat"]}).json()
    assert made["n_seen"] == 0 and made["feedback"]["count"] == 0
    assert ask.post(f"{stream}/classify", files=form(images)).json()["learned"] == 4


def test_the_same_stream_may_be_made_again(ask, stream):
    name = stream.rpartition("/")[2]
    assert ask.post("/v1/streams", json={"name": name, "classes": NAMES}).status_code == 200
    other = {"name": name, "classes": [*NAMES, "cat"]}
    assert "other classes" in problem(ask.post("/v1/streams", json=other), 409)
    assert name in [each["name"] for each in ask.get("/v1/streams").json()["streams"]]


def test_operations(ask, stream, server):
    assert ask.get("/livez").text == "alive" and ask.get("/readyz").text == "ready"
    images, _ = pictures(2)
    ask.post(f"{stream}/classify", files=form(images))
    metrics = ask.get("/metrics").text
    for name in (
        *("requests_total", "request_seconds", "images_waiting", "batch_size", "encode_seconds"),
        *("commit_seconds", "refresh_seconds", "learned_total", "changed_total", "unsure_total"),
        *("frozen", "stale", "streams_loaded"),
    ):
        assert f"# HELP soba_{name.removesuffix('_total')}" in metrics, name
    assert f'soba_frozen{{by="operator",stream="{stream.rpartition("/")[2]}"}} 0.0' in metrics
    page = ask.get("/")
    assert page.headers["content-type"].startswith("text/html") and "<title>" in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    examples = ask.get("/v1/examples").json()
    assert len(examples["labels"]) == examples["images"] > 100
    icon = Image.open(io.BytesIO(ask.get("/v1/examples/3").content))
    assert icon.size[0] > 50
    problem(ask.get(f"/v1/examples/{examples['images']}"), 404)
    assert ask.get("/openapi.json").json()["paths"].keys() >= {"/v1/streams/{name}/classify"}


def test_the_client_of_hugging_face_asks_by_changing_one_url(ask, stream, server):
    from huggingface_hub import InferenceClient

    images, _ = pictures(20)
    url = f"{server.url}/v1/hf/zero-shot-image-classification"
    asked = {"candidate_labels": NAMES[::-1], "hypothesis_template": "an icon of a {}."}
    told = InferenceClient(model=url).zero_shot_image_classification(images[0], **asked)
    clf = soba.Classifier("tiny", NAMES, templates="an icon of a {}.", method="zero-shot")
    [answer] = clf.classify(Image.open(io.BytesIO(images[0])), learn=False, top=4)
    assert [each.label for each in told] == [label for label, _ in answer.top]
    assert [each.score for each in told] == pytest.approx([c for _, c in answer.top], abs=1e-4)
    assert ask.get(stream).json()["n_seen"] == 0  # nothing is stored
    learning = InferenceClient(model=f"{url}?stream={stream.rpartition('/')[2]}")
    for image in images:
        told = learning.zero_shot_image_classification(image, **asked)
        assert {each.label for each in told} == set(NAMES)
    assert ask.get(stream).json()["n_seen"] == 20
    task = {"inputs": base64.b64encode(images[0]).decode()}
    other = task | {"parameters": {"candidate_labels": ["bus", "cat"]}}
    problem(ask.post(f"{url}?stream={stream.rpartition('/')[2]}", json=other), 409)
    problem(ask.post(url, json=task), 422)
    problem(ask.post(url, json=other | {"inputs": "rubbish!"}), 422)


def test_replicas_see_what_others_learned(tmp_path, server, ask, stream):
    """A look is as old as --sync-seconds at most; here a second server on the same database."""
    images, _ = pictures(4)
    with (
        Server(server.store, "--sync-seconds", "0") as other,
        httpx.Client(base_url=other.url, timeout=60) as ask_other,
    ):
        assert ask_other.get(stream).json()["n_seen"] == 0
        assert ask.post(f"{stream}/classify", files=form(images)).status_code == 200
        while ask_other.get(stream).json()["n_seen"] != 4:
            time.sleep(0.05)
        ask.delete(stream)
        while ask_other.get(stream).status_code == 200:
            time.sleep(0.05)


# Strangers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://["},
    ],
)
def test_foreign_hosts_and_pages_are_refused(ask, stream, headers):
    problem(ask.post(f"{stream}/freeze", headers=headers), 403)
    assert not ask.get(stream).json()["frozen"]


def test_its_own_page_may_ask(ask, stream, server):
    assert ask.post(f"{stream}/freeze", headers={"origin": server.url}).status_code == 200
    local = {"host": f"localhost:{server.port}", "origin": f"http://localhost:{server.port}"}
    assert ask.post(f"{stream}/unfreeze", headers=local).status_code == 200


@pytest.mark.parametrize(
    "name", ["", "a b", "../x", "x' OR '1'='1", "x; DROP TABLE stream", "a" * 65, ".x", "ü"]
)
def test_odd_names_are_no_streams(ask, stream, name):
    problem(ask.post("/v1/streams", json={"name": name, "classes": NAMES}), 422)
    assert ask.get(f"/v1/streams/{name}/history").status_code in (404, 422)
    assert ask.get(stream).status_code == 200


def test_odd_texts_are_only_texts(ask, stream):
    [image], _ = pictures(1)
    odd = "'; DROP TABLE feedback; --"
    sent = {"content": image, "headers": {"content-type": "image/png"}}
    told = ask.post(f"{stream}/classify", params={"id": odd}, **sent).json()
    assert told["answers"][0]["id"] == odd
    said = ask.post(f"{stream}/feedback", json={"id": odd, "label": "bus"})
    assert said.json()["count"] == 1
    problem(ask.get(f"{stream}/queue/{odd}"), 404)
    for given in ({"id": "a\0b", "label": "bus"}, {"id": "a", "label": "b\0"}):
        problem(ask.post(f"{stream}/feedback", json=given), 422)
    problem(ask.post(f"{stream}/classify", params={"id": "a\0"}, **sent), 422)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"content": b"", "headers": {"content-type": "image/png"}}, 422),
        ({"content": b"GIF89a", "headers": {"content-type": "image/gif"}}, 422),
        ({"content": b"x", "headers": {"content-type": "text/plain"}}, 415),
        ({"content": b"x"}, 415),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 422),
        ({"content": b"[" * 100_000, "headers": {"content-type": "application/json"}}, 422),
        ({"json": {"images": []}}, 422),
        ({"json": {"images": [{"data": "http://127.0.0.1/x.png"}]}}, 422),
        ({"json": {"images": [{"url": "http://127.0.0.1/x.png"}]}}, 422),
        ({"json": {"images": [{"data": "file:///etc/passwd"}]}}, 422),
        ({"json": {"images": [{"data": 7}]}}, 422),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400),
        ({"files": [("file", ("a.png", b"x", "image/png"))]}, 422),
        ({"content": b"x", "headers": {"content-type": "application/x-npy"}}, 422),
    ],
)
def test_what_is_no_image_is_refused(ask, stream, sent, status):
    assert problem(ask.post(f"{stream}/classify", **sent), status)
    assert ask.get(stream).json()["version"] == 0


@pytest.mark.parametrize(
    ("query", "status"),
    [("top=0", 422), ("top=x", 422), ("min_confidence=2", 422), ("learn=maybe", 422)],
)
def test_odd_options_are_refused(ask, stream, query, status):
    [image], _ = pictures(1)
    problem(ask.post(f"{stream}/classify?{query}", files=form([image])), status)


def test_templates_never_name_a_file(ask, tmp_path):
    path = tmp_path / "templates.txt"
    path.write_text("a {}.\n")
    for templates in (str(path), "/etc/passwd"):
        new = {"name": "files", "classes": NAMES, "templates": templates}
        problem(ask.post("/v1/streams", json=new), 422)
