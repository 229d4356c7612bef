"""Replicas by deltas: however a stream is cut, shared out and repeated, they are equal."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from places import places_of

import soba
from soba.adapt.delta import Delta
from soba.adapt.stream import StreamAdapter
from soba.registry import adapter_class
from soba.testing import (
    assert_same_samples,
    assert_same_state,
    check_stream_adapter,
    example_stream,
)

NAMES = ["soba+", "soba", "ncm", "tda", "oga", "adapt"]
EXAMPLES = 400 if os.environ.get("SOBA_LONG") == "1" else 40


@st.composite
def logs(draw):
    """The length of a stream, and its cuts into calls: who makes each, and whether it scores."""
    n = draw(st.integers(1, 120))
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=8)))
    edges = [0, *cuts, n]
    calls = st.tuples(st.integers(0, 2), st.booleans())
    return edges, draw(st.lists(calls, min_size=len(edges) - 1, max_size=len(edges) - 1))


def setting(name, seed, n, **options):
    features, _, text = example_stream(n=n, classes=5, width=12, seed=seed)
    ids = np.random.default_rng(seed).permutation(3 * n)[:n]
    return features, ids, lambda: soba.create_adapter(name, text, logit_scale=20.0, **options)


def kept(name, size):
    """Settings by which a method keeps few samples."""
    return {"sample_size": 4 * size} if name == "soba+" else {"capacity": size}


def told(adapter, features, ids, scores):
    """The delta of one call, as it comes out of a database."""
    if scores:
        delta = adapter.adapt_changes(features, ids=ids)[1]
    else:
        delta = adapter.learn_changes(features, ids=ids)
    return Delta.from_bytes(delta.to_bytes())


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 1000),
    log=logs(),
    size=st.sampled_from([1, 3, 16]),
    copies=st.integers(0, 30),
)
def test_replicas_of_one_log_are_equal_to_the_bit(name, seed, log, size, copies):
    edges, calls = log
    n, written = edges[-1], []
    features, ids, make = setting(name, seed, n, **kept(name, size))
    copies = min(copies, n // 2)
    features[n - copies :] = features[:copies]  # the same image under another id
    same = slice(n - copies // 2, n)
    ids[same], features[same] = ids[: copies // 2], features[: copies // 2]  # and under the same
    replicas = [make() for _ in range(3)]
    for a, b, (who, scores) in zip(edges[:-1], edges[1:], calls, strict=True):
        _, first = np.unique(ids[a:b], return_index=True)
        written.append(told(replicas[who], features[a:b][first], ids[a:b][first], scores))
        for other in {0, 1, 2} - {who}:
            replicas[other].absorb(written[-1])
    replicas += [make().absorb(*written), make().absorb(*written[:3]).absorb(*written[2:])]
    for other in replicas[1:]:
        assert_same_state(other.state(), replicas[0].state())
    for replica in replicas:
        replica.refresh()
    for other in replicas[1:]:
        assert_same_state(other.state(), replicas[0].state())


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 1000),
    log=logs(),
    size=st.sampled_from([1, 3, 16]),
    again=st.integers(0, 30),
    data=st.data(),
)
def test_order_and_repetition_are_nothing_to_deltas(name, seed, log, size, again, data):
    edges, calls = log
    features, ids, make = setting(name, seed, edges[-1], **kept(name, size))
    # Several learners see some images, each at a place of its own. (Queues keep the entropy that
    # came first, which rounds by batch.)
    again = min(again, edges[-1] // 2) if name == "soba+" else 0
    ids[edges[-1] - again :], features[edges[-1] - again :] = ids[:again], features[:again]
    learners, written = [make() for _ in range(3)], []  # which know nothing of each other
    for a, b, (who, scores) in zip(edges[:-1], edges[1:], calls, strict=True):
        _, first = np.unique(ids[a:b], return_index=True)
        written.append(told(learners[who], features[a:b][first], ids[a:b][first], scores))
    every = list(range(len(written)))
    replicas = []
    for _ in range(3):
        order = data.draw(st.permutations(every + data.draw(st.lists(st.sampled_from(every)))))
        replica, at = make(), data.draw(st.integers(0, len(order)))
        replica.absorb(*(written[i] for i in order[:at]))
        for i in order[at:]:
            replica.absorb(written[i])
        at_once = make().absorb(*(written[i] for i in order))
        assert_same_state(at_once.state(), replica.state())
        replicas.append(replica.refresh())
    for learner in learners:  # those who made them take in the others'
        replicas.append(learner.absorb(*written).refresh())
    whole, distinct = make(), edges[-1] - again
    whole.learn(features[:distinct], ids=ids[:distinct])
    for replica in replicas:
        assert replica.n_seen == distinct
        assert_same_samples(replica, whole)
        assert_same_state(replica.state(), replicas[0].state())


@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(seed=st.integers(0, 1000), log=logs(), horizon=st.integers(20, 90))
def test_with_a_horizon_a_log_has_a_time(seed, log, horizon):
    edges, calls = log
    features, ids, make = setting("soba+", seed, edges[-1], horizon=horizon)
    replicas, plain = [make(), make()], make()
    for a, b, (who, scores) in zip(edges[:-1], edges[1:], calls, strict=True):
        delta = told(replicas[who % 2], features[a:b], ids[a:b], scores)
        replicas[1 - who % 2].absorb(delta)
        (plain.adapt if scores else plain.learn)(features[a:b], ids=ids[a:b])
    assert_same_state(replicas[0].state(), replicas[1].state())
    assert_same_samples(replicas[0], plain)


def test_an_image_that_aged_has_its_earliest_place():
    """Two learners see one image; the replica hears of the earlier place a generation later."""
    features, _, make = setting("soba+", 0, 60, horizon=40)
    late = told(make(), features[:20], np.arange(20), True)  # image 15 at place 15
    early = told(make(), features[10:20], np.arange(10, 20), True)  # and at place 5
    replica = make().absorb(late)
    assert sorted(replica._samples["older_sample"].items().ids) == list(range(20))
    assert places_of(replica.absorb(early)) == {i: i - 10 * (i >= 10) for i in range(20)}


@pytest.mark.parametrize("name", soba.list_methods(family="stream"))
def test_every_stream_method_keeps_the_contract(name):
    cls = adapter_class(name)
    if issubclass(cls, StreamAdapter):
        check_stream_adapter(cls)


@pytest.mark.parametrize(
    "options", [{"horizon": 100}, {"refresh": 40}, {"sample_size": 9, "sample_key": 5}]
)
def test_settings_of_soba_plus_keep_the_contract(options):
    check_stream_adapter(soba.SOBAPlus, **options)


@pytest.mark.parametrize("name", ["soba+", "tda"])
def test_the_contract_on_torch(name):
    check_stream_adapter(adapter_class(name), convert=torch.asarray)


def test_a_method_without_a_stream_is_refused():
    with pytest.raises(TypeError, match="ZeroShot"):
        check_stream_adapter(soba.ZeroShot)


class Silent(soba.NCM):
    """Counts its samples behind the recorder's back."""

    def _count(self, ids):
        self._seen.add(ids)


class Forgetful(soba.NCM):
    """Absorbs the ids and not the samples."""

    def _absorb(self, new):
        for arrival in new:
            for rows in arrival.pieces:
                self._count(arrival.ids[rows])


class Eager(soba.NCM):
    """Refreshes wherever a delta ends."""

    def _absorb(self, new):
        super()._absorb(new)
        self._settle()


class Moody(soba.NCM):
    """Its view is the adapter itself."""

    def _view(self):
        return self


@pytest.mark.parametrize("cls", [Silent, Forgetful, Eager, Moody])
def test_the_contract_can_be_broken(cls):
    with pytest.raises((AssertionError, TypeError)):
        check_stream_adapter(cls)


def test_a_refresh_by_hand_is_in_no_delta():
    features, ids, make = setting("soba+", 0, 100)
    one, other = make(), make()
    delta = one.learn_changes(features, ids=ids)
    other.absorb(delta)
    one.refresh()
    assert np.abs(one.logits(features) - other.logits(features)).max() > 1e-3
    assert_same_state(other.refresh().state(), one.state())


def test_a_sample_that_was_lost_on_the_way_is_not_made_up():
    """A delta that is missing leaves its samples unknown, until it comes."""
    features, ids, make = setting("soba+", 0, 90)
    learner = make()
    log = [told(learner, features[a : a + 30], ids[a : a + 30], True) for a in (0, 30, 60)]
    replica = make().absorb(log[0], log[2])
    assert replica.n_seen == 60
    assert_same_samples(replica.absorb(log[1]), learner)


def test_two_deltas_that_name_two_samples_alike_are_refused_together():
    features, _, make = setting("ncm", 0, 90)
    one, other = (told(make(), features[a : a + 1], [5], False) for a in (0, 1))
    adapter = make()
    with pytest.raises(ValueError, match="id 5 names different samples"):
        adapter.absorb(one, other)
    assert adapter.n_seen == 0 and adapter.id_space is None


def test_what_keeps_no_samples_absorbs_nothing():
    _, _, text = example_stream()
    for cls in (soba.ETTA, soba.DOTA, soba.PTA):
        with pytest.raises(ValueError, match="no samples"):
            cls(text, logit_scale=20.0).absorb()


def test_deltas_are_taken_in_by_the_pieces_they_were_learned_in():
    """Three that are copies one after the other, and the first and the last are not.

    OGA learns row by row, and then the last one keeps its entropy; in one block all have the first
    one's.
    """
    stream = np.array([[0.8, 0.6]]) + 5e-7 * np.array([[0, 0], [-1, 1], [-2, 2]])
    learner, block, replica = (soba.OGA(np.eye(2), logit_scale=70.0) for _ in range(3))
    delta = told(learner, stream, [0, 1, 2], True)
    block.learn(stream, ids=[0, 1, 2])
    assert [len(np.unique(one.queue.items().entropies)) for one in (learner, block)] == [2, 1]
    assert_same_state(replica.absorb(delta).state(), learner.state())
