"""Which ids a stream knows, and what it does when one comes again with other content."""

import numpy as np
import pytest
from colours import Colours
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streams import FEATURES, adapter, classifier

import soba
from soba.adapt._ids import IdSet
from soba.serve import replica
from soba.serve.digests import digests_of_features, digests_of_images
from soba.serve.learning import Learning, learn_together
from soba.serve.names import ids_of_names
from soba.serve.stream_state import StreamState

OTHER = 3000  # rows from here on are the other samples that come under a name
REFUSED = "comes under the id of another sample"


@pytest.fixture
def opened(tmp_path):
    """Opens a stream, as often as one likes; all are closed in the end."""
    streams = []

    def opened(given=None, **options):
        streams.append(soba.DurableStream(f"sqlite:///{tmp_path}/db", "cats", given, **options))
        return streams[-1]

    yield opened
    for stream in streams:
        stream.close()


def learn(stream, rows, names=None):
    rows = list(rows)
    return stream.learn(FEATURES[rows], ids=rows if names is None else names)


def arrays_of(stream):
    return stream.to_classifier().adapter.state()["arrays"]


def known_ids(stream):
    edges = arrays_of(stream)["seen"]
    return np.concatenate([np.empty(0, np.int64), *(np.arange(*ends) for ends in edges)])


def kept_ids(stream):
    return np.sort(arrays_of(stream)["sample.ids"])


def a_row_that_is_not_kept(stream, rows):
    rows = np.array(rows)
    return int(rows[~np.isin(ids_of_names(rows), kept_ids(stream))][0])


def state_bytes(stream):
    return stream._replica.read(lambda state: state.to_bytes())


# Other content under a known id -------------------------------------------------------------------


def test_an_id_is_refused_with_another_sample_also_where_none_is_kept(opened, monkeypatch):
    monkeypatch.setattr(replica, "_LEAST_LOG", 1 << 13)
    stream = opened(classifier())
    for start in range(0, 600, 20):
        learn(stream, range(start, start + 20))
    assert len(stream.snapshots()) > 2
    row = a_row_that_is_not_kept(stream, range(600))
    stream.change_classes(stream.names, templates=["a {}."])
    for each in (stream, opened()):  # whoever learned it, and from log or snapshot
        with pytest.raises(ValueError, match=REFUSED):
            learn(each, [row + OTHER], names=[row])
        assert learn(each, range(600)) == 0
    version = stream.version
    learn(stream, range(600, 620))
    stream.rollback(version)
    for other in (row, 610):
        with pytest.raises(ValueError, match=REFUSED):
            learn(stream, [other + OTHER], names=[other])
    assert learn(stream, range(620)) == 0


def test_features_that_are_rounded_otherwise_are_the_same_sample(opened):
    stream, rng = opened(classifier()), np.random.default_rng(0)
    learn(stream, range(600))
    noise = rng.normal(0.0, 3e-4, FEATURES[:600].shape).astype(np.float32)
    assert stream.learn(FEATURES[:600] + noise, ids=range(600)) == 0
    assert stream.learn(5.0 * FEATURES[:600].astype(np.float16), ids=range(600)) == 0


def test_an_id_that_was_forgotten_may_name_another_sample(opened):
    stream = opened(classifier(), remember=100)
    for start in range(0, 400, 20):
        learn(stream, range(start, start + 20))
    row = a_row_that_is_not_kept(stream, range(200))
    kept = next(r for r in range(200) if ids_of_names([r])[0] in kept_ids(stream))
    assert learn(stream, [row + OTHER], names=[row]) == 1
    for sample, name in ((row, row), (kept + OTHER, kept)):
        with pytest.raises(ValueError, match=REFUSED):
            learn(stream, [sample], names=[name])


def test_after_a_reset_an_id_may_name_another_sample(opened):
    stream = opened(classifier())
    learn(stream, range(20))
    stream.reset()
    assert learn(stream, range(OTHER, OTHER + 20), names=range(20)) == 20
    with pytest.raises(ValueError, match=REFUSED):
        learn(stream, range(20))
    stream.rollback(1)  # the sample that came last is the one that clients may send again
    assert learn(stream, range(OTHER, OTHER + 20), names=range(20)) == 0


class Unsteady:
    """An encoder whose features depend on the batch, by more than features of files ever do."""

    def __init__(self, encoder, amount):
        self.encoder, self.amount, self.rng = encoder, amount, np.random.default_rng(0)

    def __getattr__(self, name):
        return getattr(self.encoder, name)

    def encode_pixels(self, pixels):
        features = self.encoder.encode_pixels(pixels)
        features = features + self.rng.normal(0.0, self.amount, features.shape)
        return (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def pictures():
    colours = Colours(per_class=12).images("noisy", "test")
    return [colours.image(index) for index in range(len(colours.keys))]


@pytest.mark.parametrize("named", [True, False])
def test_an_image_is_told_by_its_bytes_and_never_by_its_features(opened, pictures, named):
    stream = opened(classifier())
    unsteady = Unsteady(stream._source.open(), 0.05)
    stream._source.open = lambda: unsteady
    ids = [f"shot {number}" for number in range(len(pictures))] if named else None
    for _ in range(3):
        answers = list(stream.classify(pictures, ids=ids, batch=7))
        assert len(answers) == len(pictures) and not any(answer.error for answer in answers)
        assert stream.n_seen == len(pictures)
    if named:
        for each in (stream, opened(classifier())):
            for number in range(len(pictures)):  # kept or not
                other = pictures[(number + 1) % len(pictures)]
                with pytest.raises(ValueError, match=REFUSED):
                    list(each.classify(other, ids=[ids[number]]))
        assert stream.n_seen == len(pictures)


def test_an_image_that_is_kept_is_told_by_its_bytes_for_as_long(opened, pictures):
    """Also when its id would have been forgotten but for that."""
    stream = opened(classifier(), remember=20)
    unsteady = Unsteady(stream._source.open(), 0.05)
    stream._source.open = lambda: unsteady
    list(stream.classify(pictures, ids=range(len(pictures))))
    learn(stream, range(1000, 1030))
    kept = np.flatnonzero(np.isin(ids_of_names(range(len(pictures))), kept_ids(stream)))
    assert len(kept)
    for each in (stream, opened(classifier())):
        each._source.open = lambda: unsteady
        before = each.n_seen
        list(each.classify([pictures[number] for number in kept], ids=kept.tolist()))
        assert each.n_seen == before
        with pytest.raises(ValueError, match=REFUSED):
            list(each.classify(pictures[kept[0] - 1], ids=[int(kept[0])]))


def test_an_image_and_features_come_in_one_group():
    """Under one name: their digests say nothing of each other, their features do."""
    rows, ids = FEATURES[:3], ids_of_names(range(3))
    for other, refused in ((rows, False), (FEATURES[3:6], True)):
        state = StreamState.begun(adapter(), classifier()._note())
        group = [
            Learning(rows, ids, digests_of_images(np.arange(3))),
            Learning(other, ids, digests_of_features(other)),
        ]
        assert len(learn_together(state, group)) == 3
        assert [learning.problem is not None for learning in group] == [False, refused]


def test_images_and_features_of_one_name_are_compared_by_features(opened, pictures):
    stream = opened(classifier())
    list(stream.classify(pictures[:5], ids=range(5)))
    kept = [row for row in range(5) if ids_of_names([row])[0] in kept_ids(stream)]
    with pytest.raises(ValueError, match=REFUSED):
        learn(stream, kept)


# Ids that a classifier brings ---------------------------------------------------------------------


def taught(rows, **settings):
    """A classifier that has learned some samples, by the names that a stream gives them."""
    clf = classifier(**settings)
    clf.adapter.adapt(FEATURES[rows], ids=ids_of_names(rows))
    return clf


@pytest.mark.parametrize("way", ["begin", "import"])
def test_ids_that_a_classifier_brings_are_forgotten_in_their_turn(opened, way):
    rows = np.arange(400)
    clf = taught(rows)
    stream = opened(clf if way == "begin" else classifier(), remember=100)
    if way == "import":
        learn(stream, range(1000, 1020))
        stream.import_state(clf)
    assert clf.adapter._seen.given.contains(ids_of_names(rows)).all()  # it lost nothing
    assert stream.n_seen == 400
    # The largest hundred count as the last ones.
    last = np.sort(ids_of_names(rows))[-100:]
    np.testing.assert_array_equal(known_ids(stream), np.union1d(last, kept_ids(stream)))
    recent = rows[np.isin(ids_of_names(rows), last)]
    assert learn(stream, recent) == 0
    for start in range(2000, 2200, 20):
        learn(stream, range(start, start + 20))
    known, kept = known_ids(stream), kept_ids(stream)
    assert np.isin(kept, known).all() and 100 <= len(known) <= 112 + len(kept)
    again = recent[~np.isin(ids_of_names(recent), kept)]
    assert len(again) and learn(stream, again) == len(again)
    assert state_bytes(opened()) == state_bytes(stream)


def test_a_classifier_that_learned_a_lake_brings_no_more_than_is_remembered(opened):
    """Shards are intervals, of any length: they are not written out."""
    clf = classifier()
    clf.adapter.adapt(FEATURES[:50], ids=range(50))
    clf.adapter._seen.given = IdSet(np.array([[0, 1 << 40]]))
    stream = opened(clf, remember=1000)
    assert stream.n_seen == 1 << 40
    kept = kept_ids(stream)
    np.testing.assert_array_equal(
        known_ids(stream), np.append(kept, np.arange((1 << 40) - 1000, 1 << 40))
    )
    assert len(kept) and learn(stream, range(20)) == 20
    assert state_bytes(opened()) == state_bytes(stream)


# Everything at once -------------------------------------------------------------------------------

ROWS = st.lists(st.integers(0, 59), min_size=1, max_size=12, unique=True)
STEPS = st.one_of(
    st.tuples(st.just("learn"), ROWS),
    st.tuples(st.just("other"), ROWS),
    st.tuples(st.just("import"), ROWS),
    st.tuples(st.just("rollback"), st.floats(0.0, 1.0)),
    st.tuples(st.just("reset"), st.none()),
    st.tuples(st.just("open"), st.none()),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEPS, max_size=14), small=st.booleans())
def test_any_history(tmp_path_factory, monkeypatch, steps, small):
    """Beside a dictionary a version, of names and the samples they name, None for an import's.

    What was known at any version since the one that is gone back to stays known. Where only a few
    ids are remembered the processes agree, and nothing but what is recent or kept is known.
    """
    monkeypatch.setattr(replica, "_LEAST_LOG", 1 << 13)
    url, remember = f"sqlite:///{tmp_path_factory.mktemp('any')}/db", 8 if small else 1000
    options = {"durability": "off", "remember": remember}
    streams = [soba.DurableStream(url, "cats", classifier(), **options)]
    names = [{}]  # at each version
    for turn, (what, value) in enumerate(steps):
        stream = streams[turn % len(streams)]
        before, now = stream.sync(), dict(names[-1])
        if what in ("learn", "other"):
            rows = [row + OTHER * (what == "other") for row in value]
            _learn_beside(stream, rows, value, now, small)
        elif what == "import":
            stream.import_state(taught(np.array(value)))
            now = dict.fromkeys(value)
        elif what == "reset":
            stream.reset()
            now = {}
        elif what == "rollback":
            version = int(value * before)
            try:
                stream.rollback(version)
            except ValueError as error:
                assert "trimmed" in str(error)
            else:
                now = {name: row for known in names[version:] for name, row in known.items()}
        else:
            streams.append(soba.DurableStream(url, "cats", durability="off"))
        names += [now] * (stream.version - before)
    _assert_agreeing([*streams, soba.DurableStream(url, "cats", durability="off")], remember)
    for stream in streams:
        stream.close()


def _learn_beside(stream, rows, called, now, small):
    """Learn rows by names, and the same in a dictionary, which does not tell what is forgotten."""
    wrong = [name for name, row in zip(called, rows, strict=True)
             if now.get(name, row) not in (row, None)]  # fmt: skip
    unsure = small or any(now.get(name, 0) is None for name in called)
    try:
        learned = learn(stream, rows, names=called)
    except ValueError as error:
        assert REFUSED in str(error) and (wrong or unsure)
        return
    assert unsure or (not wrong and learned == sum(name not in now for name in called))
    now |= {name: row for name, row in zip(called, rows, strict=True) if name not in now}


def _assert_agreeing(streams, remember):
    blobs = set()
    for stream in streams:
        blobs.add(state_bytes(stream))
        recent, held, past = stream._replica.read(
            lambda state: (state.recent.records()["id"], state.held["id"], state.past)
        )
        assert len(recent) <= remember + max(1, remember // 8) and len(past.records) <= remember
        known = np.concatenate([recent, held])
        np.testing.assert_array_equal(np.sort(known), known_ids(stream))  # none is there twice
    assert len(blobs) == 1
