"""What adapters that exchange deltas must do, one check each; `check_stream_adapter` runs them."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from soba._assertions import assert_same_samples, assert_same_state, close, host, raises
from soba._examples import Case
from soba.adapt.delta import Delta

_EDGES = [0, 1, 2, 60, 61, 130, 240]  # where the stream is cut into calls
_LEARNING = ("adapt", "learn", "absorb", "merge", "refresh", "reset", "adapt_changes")
_FORGETTING = ("forget_ids", "bound_ids")


def check_changes_are_told(case: Case) -> None:
    """`adapt_changes` is `adapt`, `learn_changes` is `learn`; both say what they learned."""
    plain, telling = case.make(), case.make()
    if not telling.keeps_samples:
        for verb in (telling.adapt_changes, telling.learn_changes):
            raises(ValueError, verb, case.stream[:5], naming=telling.name)
        assert telling.n_seen == 0
        return
    for turn, (a, b) in enumerate(itertools.pairwise(_EDGES)):
        stream, ids = case.stream[a:b], np.arange(a, b)
        if turn % 2:
            plain.learn(stream, ids=ids)
            delta = telling.learn_changes(stream, ids=ids)
        else:
            expected = host(plain.adapt(stream, ids=ids))
            logits, delta = telling.adapt_changes(stream, ids=ids)
            close(logits, expected, "logits of adapt_changes")
        assert isinstance(delta, Delta) and len(delta) == b - a
        assert np.array_equal(delta.ids, ids)
        assert_same_samples(telling, plain)
    again = telling.learn_changes(case.stream[:9], ids=np.arange(9))
    assert len(again) == 0, "a known sample is in a delta"
    single, delta = telling.adapt_changes(case.stream[0], ids=[777])
    assert tuple(single.shape) == (6,) and delta.ids.tolist() == [777]


def check_bytes(case: Case) -> None:
    """A delta comes back from its bytes; bytes cut short or changed raise ValueError."""
    for delta in _deltas(case, edges=[0, 0, 240]):
        blob = delta.to_bytes()
        again = Delta.from_bytes(blob)
        assert again.to_bytes() == blob and len(again) == len(delta)
        rng = np.random.default_rng(0)
        for length in range(0, len(blob), max(64, len(blob) // 64 // 64 * 64)):
            raises(ValueError, Delta.from_bytes, blob[:length], naming="delta")
        for at in rng.integers(len(blob), size=50):
            flipped = bytearray(blob)
            flipped[at] ^= 1 << int(rng.integers(8))
            raises(ValueError, Delta.from_bytes, bytes(flipped), naming="delta")


def check_replicas(case: Case) -> None:
    """Replicas that took the same deltas in the same order are equal to the bit.

    Whichever of the deltas each made itself, and however many it absorbed at a time; copies of
    images and samples that come again included.
    """
    features = case.features.copy()
    features[150:200] = features[:50]
    stream, ids = case.array(features), np.arange(240)
    ids[230:] = np.arange(10)  # known
    stream[230:] = stream[:10]
    replicas, log = [case.make() for _ in range(3)], []
    for turn, (a, b) in enumerate(itertools.pairwise(_EDGES)):
        learner = replicas[turn % 3]
        if turn % 4 == 3:
            delta = learner.learn_changes(stream[a:b], ids=ids[a:b])
        else:
            delta = learner.adapt_changes(stream[a:b], ids=ids[a:b])[1]
        log.append(Delta.from_bytes(delta.to_bytes()))
        for other in replicas:
            if other is not learner:
                other.absorb(log[-1])
        for other in replicas:
            assert_same_state(other.state(), replicas[0].state())
    late, expected = case.make().absorb(*log), host(replicas[0].logits(case.stream))
    assert_same_state(late.state(), replicas[0].state())
    assert np.array_equal(host(late.logits(case.stream)), expected)
    assert_same_state(late.refresh().state(), replicas[1].refresh().state())


def check_any_order(case: Case) -> None:
    """Deltas in any order, some of them twice: the same samples, with the same values.

    Not so where samples age, and adapters do not merge either.
    """
    if not _merges(case):
        return
    log, whole = _deltas(case), case.make()
    whole.adapt(case.stream, ids=np.arange(240))
    states = []
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 0, 3, 5, 1, 2, 0, 4, 3]):
        one_by_one, at_once = case.make(), case.make()
        for i in order:
            one_by_one.absorb(log[i])
        before = one_by_one.state()
        assert_same_state(one_by_one.absorb(*log).state(), before)
        at_once.absorb(*(log[i] for i in order))
        for adapter in (one_by_one, at_once):
            assert adapter.n_seen == 240
            assert_same_samples(adapter, whole)
            states.append(adapter.refresh().state())
    for state in states[1:]:
        assert_same_state(state, states[0])


def check_refused_deltas(case: Case) -> None:
    """A delta of another set-up, text, id space or sample is refused, and nothing changes."""
    (first, second), ids = _deltas(case, edges=[0, 120, 240]), np.arange(240)
    adapter = case.make().absorb(first)
    before, params = adapter.state(), {"logit_scale": 20.0} | case.params
    held = next(a for name, a in before["arrays"].items() if name.endswith(".ids"))[:1]
    others: list[Any] = [
        case.cls(case.words(case.text[::-1].copy()), **params),
        case.cls(case.words(case.text[:4]), **params),
        case.cls(case.words(case.text), **params | {"logit_scale": 21.0}),
    ]
    named, clash, counted = case.make(), case.make(), case.make()
    named.id_space = "content"
    bad = [
        *(other.learn_changes(case.stream, ids=ids + 500) for other in others),
        named.learn_changes(case.stream, ids=ids + 500),
        counted.learn_changes(case.stream),
        clash.learn_changes(case.stream[200:201], ids=held),
    ]
    for delta in bad:
        raises(ValueError, adapter.absorb, delta)
        raises(ValueError, adapter.absorb, second, delta)
        assert_same_state(adapter.state(), before)
    raises(TypeError, adapter.absorb, first.to_bytes())
    raises(ValueError, adapter.learn_changes, case.stream[:3])  # nobody could absorb it
    assert_same_state(adapter.state(), before)
    assert case.make().absorb(bad[3]).id_space == "content"


def check_counted_deltas(case: Case) -> None:
    """Samples without ids are absorbed in the order they were counted in, and in no other."""
    learner, follower = case.make(), case.make()
    log = [learner.adapt_changes(case.stream[a:b])[1] for a, b in itertools.pairwise(_EDGES)]
    raises(ValueError, follower.absorb, log[1], naming="order")
    follower.absorb(log[0]).absorb(*log[1:3]).absorb(*log)
    assert_same_state(follower.state(), learner.state())


def check_forgotten_ids(case: Case) -> None:
    """Ids that are forgotten are new again, but for those of samples that are kept."""
    adapter, ids = case.make(), np.arange(240)
    adapter.adapt(case.stream, ids=ids)
    arrays = adapter.state()["arrays"]
    kept = np.unique(
        np.concatenate([a for n, a in arrays.items() if n.endswith(".ids")] or [ids[:0]])
    )
    answers = host(adapter.logits(case.stream))
    held = adapter.forget_ids([*range(100), 999])
    assert np.array_equal(np.sort(held), kept[kept < 100]) and adapter.n_seen == 240
    assert np.array_equal(host(adapter.logits(case.stream)), answers)
    assert_same_state(adapter.copy().state(), adapter.state())
    bounded, forgotten = adapter.copy(), np.setdiff1d(ids[:100], held)
    last, held = bounded.bound_ids(50)
    assert np.array_equal(last, ids[-50:]) and np.array_equal(held, np.setdiff1d(kept, last))
    bounded.learn(case.stream, ids=ids)
    assert bounded.n_seen == 240 + 190 - len(held), "ids are bounded wrongly"
    adapter.learn(case.stream, ids=ids)
    assert adapter.n_seen == 240 + len(forgotten)
    assert adapter.copy().n_seen == adapter.n_seen
    raises(ValueError, adapter.forget_ids, [-1])


def check_view(case: Case) -> None:
    """A view answers as the adapter did when it was made, and cannot learn."""
    for known in (0, 1, 100, 200):
        adapter = case.make()
        adapter.adapt(case.stream[:known])
        view, expected = adapter.view(), _answers(adapter, case.stream)
        changes = functools.partial(adapter.adapt, case.stream[known:]), adapter.refresh
        for change in (*changes, adapter.reset):
            change()
            assert view.n_seen == known
            for answer, again in zip(expected, _answers(view, case.stream), strict=True):
                assert type(again) is type(answer)
                assert np.array_equal(host(again), host(answer)), "a view changed"
    for verb in (*_LEARNING, *_FORGETTING):
        raises(AttributeError, getattr, case.make().view(), verb, naming="never changes")


def check_threads(case: Case) -> None:
    """Threads that adapt, absorb and look at once lose nothing, and no look is of two minds."""
    adapter, ids = case.make(), np.arange(240)
    log = _deltas(case, edges=[120, 150, 180, 210, 240])
    told: list[Delta] = []
    odd: list[int] = []

    def learn(part: int) -> None:
        for row in range(part, 120, 2):
            told.append(adapter.adapt_changes(case.stream[row], ids=ids[row : row + 1])[1])

    def absorb() -> None:
        for delta in log:
            adapter.absorb(delta, delta)

    def look() -> None:
        for _ in range(20):
            view = adapter.view()
            first, again = (host(view.logits(case.stream[:20])) for _ in range(2))
            odd.extend([view.n_seen] * (not np.array_equal(first, again)))

    _at_once(lambda: learn(0), lambda: learn(1), absorb, look)
    assert not odd, f"views after {odd} samples changed"
    follower = case.make().absorb(*reversed(told), *log)
    whole = case.make()
    whole.learn(case.stream, ids=ids)
    for replica in (adapter, follower):
        assert replica.n_seen == 240
        if _merges(case):
            assert_same_samples(replica, whole)


def _deltas(case: Case, edges: list[int] = _EDGES) -> list[Delta]:
    """The stream as deltas of one adapter, learned and adapted in turns."""
    adapter, log = case.make(), []
    for turn, (a, b) in enumerate(itertools.pairwise(edges)):
        stream, ids = case.stream[a:b], np.arange(a, b)
        if turn % 2:
            log.append(adapter.learn_changes(stream, ids=ids))
        else:
            log.append(adapter.adapt_changes(stream, ids=ids)[1])
    return log


def _answers(adapter: Any, stream: Any) -> list[Any]:
    """What an adapter, or a view, says of a stream."""
    verbs = adapter.logits, adapter.probabilities, adapter.predict
    return [*(verb(stream) for verb in verbs), *adapter.top_k(stream, 2)]


def _merges(case: Case) -> bool:
    try:
        case.make()._check_merges()
    except ValueError:
        return False
    return True


def _at_once(*jobs: Callable[[], None]) -> None:
    """All jobs at once, each in a thread; what one raises is raised here."""
    failed: list[BaseException] = []
    gate = threading.Barrier(len(jobs))

    def guarded(job: Callable[[], None]) -> None:
        try:
            gate.wait()
            job()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


OF_ALL_STREAMS: tuple[Callable[[Case], None], ...] = (
    check_changes_are_told,
    check_forgotten_ids,
    check_view,
)
OF_KEPT_SAMPLES: tuple[Callable[[Case], None], ...] = (
    check_bytes,
    check_replicas,
    check_any_order,
    check_refused_deltas,
    check_counted_deltas,
    check_threads,
)
