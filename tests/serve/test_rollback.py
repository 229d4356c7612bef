"""What going back in a stream's history does to the ids that are known, and to samples' ages."""

import numpy as np
import pytest
from streams import FEATURES, assert_equal_bits, classifier

import soba
from soba.serve.names import ids_of_names


@pytest.fixture
def opened(tmp_path):
    """Opens a stream of features, as often as one likes; all are closed in the end."""
    streams = []

    def opened(given=None, **options):
        streams.append(soba.DurableStream(f"sqlite:///{tmp_path}/db", "cats", given, **options))
        return streams[-1]

    yield opened
    for stream in streams:
        stream.close()


def learn(stream, start, stop, step=20):
    """How many of some samples were new; some at a time."""
    return sum(
        stream.learn(FEATURES[at : min(at + step, stop)], ids=range(at, min(at + step, stop)))
        for at in range(start, stop, step)
    )


def arrays_of(stream):
    return stream.to_classifier().adapter.state()["arrays"]


def known_ids(stream):
    starts, ends = arrays_of(stream)["seen"].T
    return int((ends - starts).sum())


def kept_rows(stream, rows):
    """Those of some rows whose samples are kept."""
    arrays, rows = arrays_of(stream), np.asarray(rows)
    return rows[np.isin(ids_of_names(rows), arrays["sample.ids"])].tolist()


def test_samples_that_were_kept_stay_known(opened):
    """Also those from before the ids that are remembered; and the stream goes on learning."""
    stream = opened(classifier(), remember=100)
    learn(stream, 0, 20)
    learn(stream, 20, 400)
    rows = kept_rows(stream, range(20, 280))
    assert rows
    stream.rollback(1)
    assert not kept_rows(stream, range(20, 400))
    assert stream.learn(FEATURES[rows], ids=rows) == 0
    assert learn(stream, 380, 400) == 0
    assert learn(stream, 1000, 1600) == 600  # ids are forgotten several times on the way
    assert_equal_bits(opened().to_classifier().adapter, stream.to_classifier().adapter)


def test_samples_do_not_age(opened):
    """With a horizon a sample ages by those learned after it, which are taken back here."""
    stream = opened(classifier(horizon=200))
    learn(stream, 0, 150, step=150)
    before = arrays_of(stream)
    learn(stream, 150, 650, step=50)
    stream.rollback(1)
    after = arrays_of(stream)
    assert len(before["sample.ids"]) and len(before["older_sample.ids"])
    for name in before.keys() - {"seen"}:
        np.testing.assert_array_equal(before[name], after[name])
    assert learn(stream, 150, 650, step=50) == 0
    assert learn(stream, 650, 700) == 50
    assert_equal_bits(opened().to_classifier().adapter, stream.to_classifier().adapter)


def test_ids_are_forgotten_however_often_one_goes_back(opened):
    stream = opened(classifier(), remember=100)
    counts = []
    for start in range(0, 4000, 400):
        learn(stream, start, start + 100)
        version = stream.version
        learn(stream, start + 100, start + 400)
        stream.rollback(version)
        learn(stream, start + 380, start + 400)
        counts.append(known_ids(stream))
    learn(stream, 4000, 4200)  # so many that ids are forgotten
    arrays = arrays_of(stream)
    kept = arrays["sample.ids"]
    assert 100 <= known_ids(stream) <= 112 + len(kept)
    assert max(counts) <= 2 * 112 + 2 * len(kept)  # the past's and the later ones, until then


def test_ids_stay_known_behind_a_reset(opened):
    stream = opened(classifier())
    watching = opened()
    learn(stream, 0, 20)
    learn(stream, 20, 100)
    stream.reset()
    learn(stream, 200, 220)
    stream.rollback(1)
    assert learn(stream, 0, 100) == learn(stream, 200, 220) == 0
    assert learn(stream, 300, 320) == 20
    watching.sync()
    for other in (watching, opened()):
        assert_equal_bits(other.to_classifier().adapter, stream.to_classifier().adapter)


def test_a_reset_is_one_for_all_versions_after_it(opened):
    stream = opened(classifier())
    learn(stream, 0, 20)
    learn(stream, 100, 120)
    stream.reset()
    learn(stream, 20, 40)
    after = stream.version
    learn(stream, 40, 60)
    stream.rollback(after)
    assert learn(stream, 20, 60) == 0
    assert learn(stream, 0, 10) == 10
    stream.reset()
    stream.rollback(after)
    assert learn(stream, 0, 10) == 0 and learn(stream, 10, 20) == 10  # these are of before it
    stream.rollback(1)
    assert learn(stream, 0, 60) == learn(stream, 100, 120) == 0
    assert stream._replica.read(lambda state: len(state.past.records)) == 0


def test_ids_of_before_a_reset_are_in_their_turn_again(opened):
    stream = opened(classifier())
    learn(stream, 0, 60)
    version = stream.version
    stream.reset()
    learn(stream, 10, 20)
    stream.rollback(version)
    recent = stream._replica.read(lambda state: state.recent.records()["id"])
    due = ids_of_names([*range(10), *range(20, 60), *range(10, 20)])
    np.testing.assert_array_equal(recent, due)


def test_ids_stay_known_behind_an_import(opened):
    brought = classifier()
    rows = np.arange(500, 600)
    brought.adapter.adapt(FEATURES[rows], ids=ids_of_names(rows))
    stream = opened(classifier())
    learn(stream, 0, 20)
    learn(stream, 20, 100)
    stream.import_state(brought)
    assert learn(stream, 500, 600) == 0
    assert learn(stream, 20, 40) == 20
    stream.rollback(1)
    assert learn(stream, 0, 100) == learn(stream, 500, 600) == 0
    assert_equal_bits(opened().to_classifier().adapter, stream.to_classifier().adapter)


def test_ids_of_before_a_reset_are_forgotten_in_their_turn(opened):
    stream = opened(classifier(), remember=100)
    learn(stream, 0, 20)
    for start in range(20, 420, 80):
        learn(stream, start, start + 80)
        stream.reset()
        past = stream._replica.read(lambda state: state.past)
        assert len(past.records) <= 100
    learn(stream, 1000, 1060)
    version = stream.version
    stream.rollback(1)
    assert learn(stream, 380, 420) == learn(stream, 1000, 1060) == 0  # the last hundred
    assert learn(stream, 120, 200) == 80  # long ago
    stream.rollback(version)
    stream.reset()
    assert stream._replica.read(lambda state: len(state.past.records)) > 0
    learn(stream, 2000, 2120)
    assert stream._replica.read(lambda state: len(state.past.records)) == 0
