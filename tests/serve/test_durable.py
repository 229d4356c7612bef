"""A stream that lives in a database, as one process or several see it."""

import threading

import numpy as np
import pytest
from colours import NAMES, Colours
from PIL import Image
from streams import (
    FEATURES,
    adapter,
    assert_equal_bits,
    assert_learned,
    classifier,
    learn,
    state_of,
)

import soba
from soba.serve import replica
from soba.serve.names import ids_of_names
from soba.serve.store import NoStream, Store, Transaction


@pytest.fixture
def opened(url):
    """Opens the stream, as often as one likes; all are closed in the end."""
    streams = []

    def opened(given=None, *, name="cats", **options):
        streams.append(soba.DurableStream(url, name, given, **options))
        return streams[-1]

    yield opened
    for stream in streams:
        stream.close()


@pytest.fixture
def stream(opened):
    return opened(classifier())


def test_what_was_learned_is_there_for_others(stream, opened):
    logits = stream.adapt(FEATURES[:100], ids=range(100))
    due = adapter().adapt(FEATURES[:100], ids=ids_of_names(range(100)))
    np.testing.assert_allclose(logits, due, rtol=1e-5, atol=1e-4)
    assert learn(stream, *range(90, 120)) == 20
    later = opened()
    assert later.n_seen == 120 and later.version == 2
    assert_learned(state_of(later), range(120))
    assert_equal_bits(state_of(stream), state_of(later))


def test_processes_take_in_what_others_wrote(stream, opened):
    other = opened(classifier())
    for start in range(0, 300, 20):
        learn((stream, other)[start // 20 % 2], *range(start, start + 20))
    assert stream.sync() == other.sync() == 15
    assert_equal_bits(state_of(stream), state_of(other))
    assert_learned(state_of(stream), range(300))


def test_samples_without_ids_are_known_by_their_values(stream):
    assert stream.learn(FEATURES[:10]) == 10
    assert stream.learn(FEATURES[5:15]) == 5
    assert stream.learn(2.0 * FEATURES[3]) == 0


def test_ids_are_strings_or_numbers(stream):
    assert stream.learn(FEATURES[:2], ids=["left", "right"]) == 2
    assert stream.learn(FEATURES[[1, 2]], ids=["right", 7]) == 1
    assert stream.learn(FEATURES[2:3], ids=["7"]) == 0


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        ([0.5, 1.5], TypeError, "a string or a whole number"),
        ([True, False], TypeError, "a string or a whole number"),
        ("ab", TypeError, "a list of names"),
        (["a"], ValueError, "1 ids for 2 samples"),
    ],
)
def test_ids_that_are_none(stream, ids, error, words):
    with pytest.raises(error, match=words):
        stream.learn(FEATURES[:2], ids=ids)
    assert stream.n_seen == 0


@pytest.mark.parametrize("bad", [np.zeros((2, 24)), FEATURES[:2, :5], FEATURES[None, :2]])
def test_features_that_are_none(stream, bad):
    with pytest.raises(ValueError, match=r"zero|dimensions|views"):
        stream.learn(bad)
    assert stream.sync() == 0


def test_an_id_that_comes_back_with_another_sample_is_refused(stream):
    learn(stream, 0, 1)
    with pytest.raises(ValueError, match="sample 1 comes under the id of another sample"):
        stream.learn(FEATURES[[2, 3]], ids=[2, 1])
    with pytest.raises(ValueError, match="sample 1 comes under the id of another sample"):
        stream.learn(FEATURES[[4, 5]], ids=[4, 4])
    assert stream.sync() == 1
    assert stream.learn(FEATURES[[4, 4]], ids=[4, 4]) == 1


def test_a_known_sample_writes_nothing(stream):
    learn(stream, *range(10))
    assert learn(stream, *range(10)) == 0
    assert stream.adapt(FEATURES[:3], ids=range(3)).shape == (3, 8)
    assert stream.adapt(FEATURES[3], ids=[3]).shape == (8,)
    assert stream.learn(FEATURES[:0], ids=[]) == 0
    assert stream.version == 1


def test_only_the_last_ids_are_remembered_and_those_of_kept_samples(opened):
    stream = opened(classifier(), remember=100)
    for start in range(0, 400, 10):
        learn(stream, *range(start, start + 10))
    inside = state_of(stream)
    kept = inside.state()["arrays"]
    known = kept["seen"]
    assert inside.n_seen == 400
    held = len(kept["sample.ids"])
    assert 100 <= (known[:, 1] - known[:, 0]).sum() <= 112 + held
    assert learn(stream, *range(300, 400)) == 0
    assert learn(stream, *range(100)) > 0
    assert_equal_bits(state_of(opened()), state_of(stream))


def test_freeze_is_for_all(stream, opened):
    learn(stream, *range(50))
    other = opened()
    other.freeze()
    assert stream.adapt(FEATURES[50:52]).shape == (2, 8)
    with pytest.raises(ValueError, match="frozen"):
        learn(stream, 60)
    assert stream.frozen and stream.n_seen == 50
    assert opened().frozen
    stream.unfreeze()
    other.learn(FEATURES[50:52])
    assert other.n_seen == 52 and not other.frozen


def test_rollback_keeps_ids_known(stream, opened):
    learn(stream, *range(100))
    before = state_of(stream).state()["arrays"]
    watching = opened()
    learn(stream, *range(100, 200))
    stream.freeze()
    stream.rollback(1)
    assert stream.frozen
    stream.unfreeze()
    after = state_of(stream).state()["arrays"]
    for name in before.keys() - {"seen"}:
        np.testing.assert_array_equal(before[name], after[name])
    assert learn(stream, *range(100, 200)) == 0
    assert learn(stream, *range(200, 210)) == 10
    watching.sync()
    assert_equal_bits(state_of(watching), state_of(stream))
    assert_equal_bits(state_of(opened()), state_of(stream))
    kinds = [change.kind for change in stream.history()]
    assert kinds == ["learn", "unfreeze", "rollback", "freeze", "learn", "learn"]


def test_rollback_to_what_never_was(stream):
    learn(stream, 1)
    with pytest.raises(ValueError, match="versions 0 to 1, not 2"):
        stream.rollback(2)
    assert learn(stream, 2) == 1


def test_reset_forgets_ids_too(stream, opened):
    learn(stream, *range(100))
    stream.reset()
    assert stream.n_seen == 0
    assert learn(stream, *range(50)) == 50
    assert_learned(state_of(opened()), range(50))


def test_a_saved_state_is_imported_and_exported(stream, opened, tmp_path):
    learn(stream, *range(80))
    stream.to_classifier().save(tmp_path / "state")
    other = opened(classifier(), name="copy")
    other.import_state(stream.to_classifier())
    assert other.names == stream.names
    assert_equal_bits(state_of(other), state_of(stream))
    assert learn(other, *range(70, 90)) == 10
    assert [change.kind for change in other.history()] == ["learn", "import"]


def test_the_log_is_compacted_and_old_versions_can_be_gone_back_to(stream, opened, monkeypatch):
    monkeypatch.setattr(replica, "_LEAST_LOG", 1 << 13)
    behind = opened()
    states = {}
    for start in range(0, 900, 3):
        learn(stream, *range(start, start + 3))
        if stream.snapshots()[0] == stream.version:
            states[stream.version] = state_of(stream)
    snapshots = stream.snapshots()
    assert len(snapshots) == 8 and snapshots[-1] == 0
    assert len(stream.history(1000)) < 300
    behind.sync()  # its part of the log is gone
    assert_equal_bits(state_of(behind), state_of(stream))
    assert_equal_bits(state_of(opened()), state_of(stream))
    stream.rollback(snapshots[4])
    before, after = states[snapshots[4]].state()["arrays"], state_of(stream).state()["arrays"]
    for name in before.keys() - {"seen"}:
        np.testing.assert_array_equal(before[name], after[name])
    gone = next(v for v in range(1, 300) if v < snapshots[6] and v not in snapshots)
    with pytest.raises(ValueError, match="the log since then was trimmed"):
        stream.rollback(gone)


def test_pictures_are_answered_and_learned_once(stream, opened):
    pictures = Colours(per_class=3).images("noisy", "test")
    images = [pictures.image(index) for index in range(len(pictures.keys))]
    answers = list(stream.classify(images, batch=5, top=2))
    assert len(answers) == 24 and all(answer.label in NAMES for answer in answers)
    assert stream.n_seen == 24
    again = list(opened(classifier()).classify(images, learn=False))
    assert [len(answer.top) for answer in answers + again] == [2] * 24 + [3] * 24
    list(stream.classify(images[:4], ids=["a", "b", "c", "d"]))
    list(stream.classify(images[:4], ids=["a", "b", "c", "d"]))
    assert stream.n_seen == 28
    broken = list(stream.classify([images[0], b"no image"]))
    assert [bool(answer.error) for answer in broken] == [False, True]
    with pytest.raises(ValueError, match="image 1 has no id"):
        list(stream.classify(images[:2], ids=["x"]))
    assert stream.sync() == opened().version


def test_classes_changed_by_another_process(stream, opened):
    image = Image.new("RGB", (4, 4), "red")
    list(stream.classify(image))
    other, fewer = opened(), ("red", "green", "blue")
    other._source = stream._source  # an encoder of the tests has no name to be opened by
    other.change_classes(fewer, templates=["a {} patch."])
    [answer] = stream.classify(image)
    assert answer.label in fewer and len(answer.top) == 3
    assert stream.names == other.names == opened().names == fewer
    assert stream.n_seen == 1
    with pytest.raises(ValueError, match="for red, green, blue, where this classifier has"):
        opened(classifier())
    back = opened(classifier(), change_classes=True)
    assert back.names == NAMES and back.n_seen == 1
    assert [change.kind for change in stream.history()] == ["classes", "classes", "learn"]


def test_another_encoder_is_refused(stream, opened):
    other = classifier()
    other._source.fingerprint = "colours-2"
    with pytest.raises(ValueError, match="learned with encoder colours-1, not colours-2"):
        opened(other)
    with pytest.raises(ValueError, match="colours-2"):
        stream.import_state(other)


def test_other_settings_are_refused(stream, opened):
    with pytest.raises(ValueError, match="learned by SOBAPlus"):
        opened(classifier("soba"))


def test_a_method_without_samples_is_refused(opened):
    for method in ("zero-shot", "etta"):
        with pytest.raises(ValueError, match="keeps no samples"):
            opened(classifier(method), name=method)


def test_a_stream_that_is_not_there(stream, opened):
    with pytest.raises(ValueError, match=r"stream 'mice' is not there \(there are: cats\)"):
        opened(name="mice")
    for wrong in ("", "a\0b", 3):
        with pytest.raises(ValueError, match="needs a name"):
            opened(classifier(), name=wrong)
    with pytest.raises(ValueError, match="remember"):
        opened(classifier(), remember=0)


@pytest.mark.parametrize("method", ["tda", "ncm", "soba"])
def test_other_methods(opened, method):
    stream = opened(classifier(method), name=method)
    for start in range(0, 200, 20):
        learn(stream, *range(start, start + 20))
    other = opened(name=method)
    learn(other, *range(200, 220))
    stream.sync()
    assert_equal_bits(state_of(other), state_of(stream))


def test_a_stream_that_is_removed_while_somebody_learns(stream, opened, database):
    """Who learned into it knows afterwards that another stream has its name."""
    learn(stream, *range(10))
    remover = Store(database)
    with stream._store.locked(stream.name, None) as transaction:
        removing = threading.Thread(target=remover.remove, args=(stream.name,))
        removing.start()
        transaction.append("freeze", b'{"frozen": true}')  # as long as this is not committed
    removing.join()
    remover.close()
    with pytest.raises(NoStream):
        stream.sync()
    fresh = opened(classifier())
    assert fresh.n_seen == 0 and fresh.version > stream.version
    stream.sync()
    assert stream.n_seen == 0 and not stream.frozen
    assert learn(stream, *range(10)) == 10


def test_a_log_that_cannot_be_compacted_is_told_and_not_tried_at_once(
    stream, database, monkeypatch, caplog
):
    monkeypatch.setattr(replica, "_LEAST_LOG", 1 << 12)
    monkeypatch.setattr(Transaction, "compact", failing)
    for start in range(0, 200, 10):
        assert learn(stream, *range(start, start + 10)) == 10
    told = [record for record in caplog.records if "could not be compacted" in record.message]
    assert len(told) == 1 and stream.n_seen == 200


def failing(transaction, blob):
    raise OSError("no room for a snapshot")
