"""A view: the answers of one moment, whatever happens to the adapter."""

import os
import pickle
import threading

import numpy as np
import pytest

import soba
from soba.testing import Case, example_stream

FEATURES, _, TEXT = example_stream(n=300, classes=8, width=16, seed=2)
LOOKS = 20_000 if os.environ.get("SOBA_LONG") == "1" else 2_000
STEP = 50  # samples a call, and a refresh each
OPTIONS = {"tda": {}, "oga": {"batch": STEP}}


def fresh(name):
    return soba.create_adapter(name, TEXT, logit_scale=20.0, **OPTIONS.get(name, {"refresh": STEP}))


@pytest.mark.parametrize("name", ["soba+", "soba", "tda", "oga"])
def test_every_look_during_refreshes_is_of_one_state(name):
    """A view taken at any moment answers as the adapter did between two calls, to the bit."""
    adapter, reference, query = fresh(name), fresh(name), FEATURES[:3]
    expected = {0: reference.logits(query)}
    for start in range(0, 300, STEP):
        reference.adapt(FEATURES[start : start + STEP])
        expected[start + STEP] = reference.logits(query)
    assert len({logits.tobytes() for logits in expected.values()}) > 3
    done, failed = threading.Event(), []

    def learn():
        try:
            while not done.is_set():
                adapter.reset()
                for start in range(0, 300, STEP):
                    adapter.adapt(FEATURES[start : start + STEP])
        except BaseException as error:
            failed.append(error)

    learner = threading.Thread(target=learn, daemon=True)
    learner.start()
    odd, seen = [], set()
    try:
        for _ in range(LOOKS // 10):
            view = adapter.view()
            seen.add(view.n_seen)
            for _ in range(10):
                if not np.array_equal(view.logits(query), expected[view.n_seen]):
                    odd.append(view.n_seen)
    finally:
        done.set()
        learner.join()
    assert not failed and not odd and seen <= set(expected)


def test_a_view_waits_for_nobody():
    """Somebody holds the adapter's lock, as a refresh does: views answer."""
    adapter = fresh("soba+")
    adapter.adapt(FEATURES)
    view, answers = adapter.view(), []
    expected = view.logits(FEATURES)

    def ask():
        answers.extend([view.logits(FEATURES), view.predict(FEATURES), view.n_seen])

    with adapter._lock:
        asker = threading.Thread(target=ask, daemon=True)
        asker.start()
        asker.join(timeout=60)
    assert len(answers) == 3 and np.array_equal(answers[0], expected)


def test_it_explains_if_the_method_can():
    adapter = fresh("soba+")
    adapter.adapt(FEATURES)
    view, expected = adapter.view(), adapter.explain(FEATURES[0])
    adapter.reset()
    assert np.array_equal(view.explain(FEATURES[0]).logits, expected.logits)
    with pytest.raises(TypeError, match="ncm cannot explain"):
        fresh("ncm").view().explain(FEATURES[0])


def test_it_has_no_verb_that_learns_and_is_not_sent():
    view = fresh("soba+").view()
    with pytest.raises(AttributeError, match="no 'adapt': it answers and never changes"):
        view.adapt(FEATURES)
    with pytest.raises(TypeError, match="copy"):
        pickle.dumps(view)
    assert "SOBAPlus" in repr(view) and "after 0 samples" in repr(view)


def test_bad_questions_are_refused():
    view = fresh("ncm").view()
    for bad in (lambda: view.top_k(FEATURES, 9), lambda: view.predict(FEATURES, min_confidence=2)):
        with pytest.raises(ValueError, match=r"k must|min_confidence"):
            bad()
    with pytest.raises(ValueError, match="dimensions"):
        view.logits(FEATURES[:, :3])


def test_views_share_what_they_can():
    """What is not written into is not copied; what is, once between two samples."""
    soba_plus, tda = fresh("soba+"), fresh("tda")
    for adapter in (soba_plus, tda):
        adapter.adapt(FEATURES)
    assert soba_plus.view()._adapter.statistics_ is soba_plus.statistics_
    one, other = tda.view()._adapter._queues, tda.view()._adapter._queues
    assert one is other and one is not tda._queues


def test_a_method_without_a_stream_has_views_too():
    case = Case(soba.TipAdapter)
    adapter = case.make()
    view = adapter.view()
    assert view.n_seen == 0
    assert np.array_equal(view.logits(case.stream), adapter.logits(case.stream))
