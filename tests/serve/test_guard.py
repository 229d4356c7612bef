"""A guard: crafted samples freeze a stream, healthy ones do not."""

import numpy as np
import pytest
from colours import NAMES
from conftest import REAL_DATA
from crafted import crafted, guard_of
from streams import FEATURES, LABELS, classifier

import soba
from soba.serve.guard import GuardFailed
from soba.serve.shares import sign_test, wilson


@pytest.fixture
def stream(url):
    with soba.DurableStream(url, "cats", classifier("soba")) as stream:
        yield stream


def _names(rows):
    return [NAMES[label] for label in LABELS[rows]]


def test_a_stream_that_was_taught_rubbish_freezes_and_answers_by_zero_shot(stream, url):
    rows = np.arange(1000)
    stream.learn(FEATURES[rows], ids=rows)
    guard = guard_of(LABELS[1000:2000], 30, np.random.default_rng(0)) + 1000
    stream.set_guard(FEATURES[guard], _names(guard))
    assert not stream.frozen and stream.view().settings["guard_score"]["images"] == len(guard)
    poison(stream)
    view = stream.view()
    assert stream.frozen and view.settings["frozen_by"] == "guard"
    assert view.answers_by == "zero-shot" and view.n_seen > 1000
    plain = FEATURES[:50] @ view.scaled_text.T
    np.testing.assert_allclose(stream.adapt(FEATURES[:50]), plain, rtol=1e-5)
    with soba.DurableStream(url, "cats") as other:  # all processes know it
        assert other.frozen and other.view().answers_by == "zero-shot"
    with pytest.raises(GuardFailed, match="roll back"):
        stream.unfreeze()
    stream.rollback(view.settings["last_good"])
    assert stream.frozen and stream.view().answers_by == "adapted"
    stream.unfreeze()
    assert stream.learn(FEATURES[3000:3010], ids=range(3000, 3010)) == 10


def poison(stream):
    """Until its statistics refresh: each class's samples under the surest look of another."""
    text = stream.view().scaled_text / 30.0
    bad = crafted(FEATURES[:1000], text, per_class=60, margin=0.5)
    before = stream.version
    for start in range(0, len(bad), 100):
        stream.adapt(bad[start : start + 100])
        if stream.frozen:
            return
    raise AssertionError(f"not frozen from version {before} to {stream.version}")


def test_the_answers_of_the_very_call_that_fails_are_zero_shots(stream):
    rows = np.arange(1000)
    stream.learn(FEATURES[rows], ids=rows)
    guard = guard_of(LABELS[1000:2000], 30, np.random.default_rng(0)) + 1000
    stream.set_guard(FEATURES[guard], _names(guard))
    text = stream.view().scaled_text / 30.0
    bad = crafted(FEATURES[:1000], text, per_class=60, margin=0.5)
    logits = stream.adapt(bad)
    assert stream.frozen
    np.testing.assert_allclose(logits, bad @ stream.view().scaled_text.T, rtol=1e-4, atol=1e-4)


def test_a_healthy_stream_notes_where_its_guard_was_content(stream):
    guard = guard_of(LABELS[1000:2000], 3, np.random.default_rng(0)) + 1000
    stream.set_guard(FEATURES[guard], _names(guard))
    for start in range(0, 1000, 100):
        stream.learn(FEATURES[start : start + 100], ids=range(start, start + 100))
    settings = stream.view().settings
    assert not stream.frozen and settings["guard_score"]["adapted"] > 0
    assert 1 < settings["last_good"] <= stream.version
    assert settings["guard_score"]["n_seen"] > 100


def test_a_guard_can_be_removed(stream):
    stream.set_guard(FEATURES[:3], _names(np.arange(3)))
    stream.remove_guard()
    assert stream.view().settings["guard"] is None and not stream.frozen


def test_a_guard_of_classes_that_are_gone_says_nothing(stream):
    stream.set_guard(FEATURES[:3], _names(np.arange(3)))
    stream.learn(FEATURES[:10], ids=range(10))
    names = [f"new {name}" for name in NAMES]
    stream.change_classes(names, templates=["{}"])
    assert stream.view().settings["guard_score"]["images"] == 0 and not stream.frozen


@pytest.mark.parametrize(
    ("rows", "labels", "why"),
    [
        (FEATURES[:2], ["red"], "n labels"),
        (FEATURES[:0], [], "one at least"),
        (FEATURES[:1], ["mauve"], "no class of the stream: 'mauve'"),
        (FEATURES[:1, :5], ["red"], "5"),
    ],
)
def test_what_is_no_guard_is_refused(stream, rows, labels, why):
    with pytest.raises(ValueError, match=why):
        stream.set_guard(rows, labels)
    assert stream.view().settings.get("guard") is None


def test_shares():
    low, high = wilson(57, 57)
    assert 0.9 < low < 1.0 == high
    assert wilson(0, 10)[0] == 0.0
    # Against the definition: all ways that 8 coins can fall.
    falls = [bin(way).count("1") for way in range(256)]
    for worse in range(9):
        assert sign_test(worse, 8 - worse) == sum(fall >= worse for fall in falls) / 256


# Real features --------------------------------------------------------------------------------


def real_set(name):
    path = REAL_DATA / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no real features at {path}; set SOBA_REAL_DATA")
    features = soba.FeatureSet.load(path)
    rows = np.asarray(features.image_features, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), features


class Ready:
    """An encoder of features that are there already."""

    logit_scale, name, fingerprint = 100.0, "ready", "ready-1"

    def __init__(self, width):
        self.width = width


def real_stream(tmp_path, name, method):
    """A stream that has learned from a set, the rows of the set, and their labels."""
    rows, features = real_set(name)
    adapter = soba.create_adapter(method, features.text_features, logit_scale=features.logit_scale)
    made = soba.Classifier(Ready(rows.shape[1]), features.class_names, method=adapter, templates=())
    labels = np.asarray(features.labels)
    url = f"sqlite:///{tmp_path}/streams.db"
    stream = soba.DurableStream(url, "real", made, durability="off")
    for part in np.array_split(np.random.default_rng(0).permutation(len(rows)), 20):
        stream.adapt(rows[part], ids=part)
    return stream, rows, labels


def accuracy(stream, rows, labels):
    return 100 * float((stream.view().predictor.predict(rows) == labels).mean())


def zero_shot_accuracy(stream, rows, labels):
    return 100 * float(((rows @ stream.view().scaled_text.T).argmax(axis=1) == labels).mean())


def set_guard(stream, rows, labels):
    """Three images of each class."""
    guard = guard_of(labels, 3, np.random.default_rng(1))
    stream.set_guard(rows[guard], [stream.names[label] for label in labels[guard]])


@pytest.mark.parametrize("name", ["whurs19/clip_rn50", "whurs19/clip_vitb32"])
def test_crafted_features_on_real_data(tmp_path, name):
    """304 features, sent once, take a queue for good; a guard has three images of each class."""
    stream, rows, labels = real_stream(tmp_path, name, "soba")
    zero_shot, before = zero_shot_accuracy(stream, rows, labels), accuracy(stream, rows, labels)
    assert before > zero_shot + 5
    set_guard(stream, rows, labels)
    good = stream.version
    stream.adapt(crafted(rows, stream.view().scaled_text / 100.0))
    assert stream.frozen and stream.view().settings["frozen_by"] == "guard"
    assert accuracy(stream, rows, labels) >= zero_shot - 1
    harmed = stream.to_classifier().adapter
    assert 100 * float((harmed.predict(rows) == labels).mean()) < zero_shot - 5  # it was needed
    assert stream.view().settings["last_good"] == good
    stream.rollback(good)
    assert abs(accuracy(stream, rows, labels) - before) <= 0.5
    stream.unfreeze()
    stream.close()


@pytest.mark.parametrize("name", ["whurs19/clip_rn50", "whurs19/clip_vitb32"])
def test_soba_plus_answers_no_worse_than_zero_shot_after_crafted_features(tmp_path, name):
    """The same features, whether they are too few to sway a sample or the guard has to step in."""
    stream, rows, labels = real_stream(tmp_path, name, "soba+")
    zero_shot, before = zero_shot_accuracy(stream, rows, labels), accuracy(stream, rows, labels)
    assert before > zero_shot + 5
    set_guard(stream, rows, labels)
    good = stream.version
    stream.adapt(crafted(rows, stream.view().scaled_text / 100.0))
    assert stream.view().n_seen == len(rows) + 16 * len(stream.names)
    assert accuracy(stream, rows, labels) >= zero_shot - 1
    stream.rollback(good)
    assert abs(accuracy(stream, rows, labels) - before) <= 0.5
    stream.close()


@pytest.mark.parametrize("name", ["whurs19/clip_vitb32", "pacs/art_painting_vitb16"])
def test_healthy_streams_are_rarely_frozen(tmp_path, name):
    """In at most one of twenty draws of the guard: the same stream, its refreshes asked by all."""
    rows, features = real_set(name)
    labels = np.asarray(features.labels)
    adapter = soba.SOBAPlus(features.text_features, logit_scale=features.logit_scale)
    zero_shot = (rows @ adapter._scaled_text.T).argmax(axis=1) == labels
    guards = [guard_of(labels, 3, np.random.default_rng(draw)) for draw in range(20)]
    frozen, before = np.zeros(20, bool), None
    for row in np.random.default_rng(0).permutation(len(rows)):
        adapter.adapt(rows[row])
        if adapter.statistics_ is before:
            continue
        before = adapter.statistics_
        adapted = adapter.predict(rows) == labels
        for draw, guard in enumerate(guards):
            worse = (zero_shot & ~adapted)[guard].sum()
            frozen[draw] |= sign_test(int(worse), int((adapted & ~zero_shot)[guard].sum())) <= 0.05
    assert frozen.sum() <= 1
