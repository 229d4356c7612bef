"""What every adapter must do, one check each; `soba.testing.check_adapter` runs them all."""

from __future__ import annotations

import itertools
import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from soba._assertions import assert_same_samples, assert_same_state, close, host, raises
from soba._examples import Case
from soba._transductive_checks import TRANSDUCTIVE_CHECKS, Check, of_streams
from soba.adapt.few_shot import FewShotAdapter
from soba.adapt.stream import StreamAdapter


def check_shapes_and_kinds(case: Case) -> None:
    """(n, d) -> (n, C), (d,) -> (C,), nothing -> nothing, of the same array kind.

    A method that needs views refuses (n, d) instead: a row of it could be an image or a view.
    """
    adapter, stream = case.make(), case.stream
    for verb in (adapter.adapt, adapter.logits, adapter.probabilities):
        out = verb(stream[:5])
        assert type(out) is type(stream), f"{type(stream)} in, {type(out)} out"
        assert tuple(out.shape) == (5, 6)
        if case.cls.card.min_views > 1:
            raises(ValueError, verb, stream[0], naming="needs views")
        else:
            assert tuple(verb(stream[0]).shape) == (6,)
        assert tuple(verb(stream[:0]).shape) == (0, 6)
    close(adapter.probabilities(stream).sum(-1), np.ones(len(stream)), "probabilities")


def check_top_k(case: Case) -> None:
    """`top_k` agrees with `probabilities`."""
    adapter = case.make()
    probabilities = host(adapter.probabilities(case.stream))
    classes, chances = adapter.top_k(case.stream, 3)
    expected = np.sort(probabilities, axis=1)[:, ::-1][:, :3]
    assert np.array_equal(host(chances), expected)
    assert np.array_equal(np.take_along_axis(probabilities, host(classes), 1), expected)
    raises(ValueError, adapter.top_k, case.stream, 7)


def check_constructor(case: Case) -> None:
    """Parameters read back as given, survive JSON, and show in repr."""
    adapter = case.make()
    assert json.loads(json.dumps(adapter.params)) == adapter.params
    again = type(adapter)(case.words(case.text), **adapter.params)
    assert again.params == adapter.params
    assert type(adapter).__name__ in repr(adapter)
    for bad, kind in (
        (np.zeros((0, 4)), ValueError),
        (np.zeros((2, 4)), ValueError),
        (np.ones(4), ValueError),
        (np.array([[1.0, np.nan]]), ValueError),
        (np.ones((2, 4), int), TypeError),
    ):
        raises(kind, case.cls, bad, **case.params)
    raises(ValueError, case.cls, case.words(case.text), **(case.params | {"logit_scale": -1.0}))


def check_predict_is_pure(case: Case) -> None:
    """logits, probabilities and top_k change nothing."""
    adapter = case.make()
    adapter.adapt(case.stream[:150])
    before = adapter.state()
    adapter.logits(case.stream)
    adapter.probabilities(case.stream)
    adapter.top_k(case.stream, 2)
    assert_same_state(adapter.state(), before)


def check_input_is_untouched(case: Case) -> None:
    """The caller's arrays stay as they were."""
    stream = case.stream
    before = host(stream).copy()
    case.make().adapt(stream)
    assert np.array_equal(host(stream), before)


def check_same_calls_same_bits(case: Case) -> None:
    """The same calls give the same bits."""
    one, other = case.make(), case.make()
    for part in (slice(0, 70), slice(70, 71), slice(71, 240)):
        assert np.array_equal(
            host(one.adapt(case.stream[part])), host(other.adapt(case.stream[part]))
        )
    assert_same_state(one.state(), other.state())


def check_cuts(case: Case) -> None:
    """However a stream is cut into calls: same logits up to rounding, same samples kept."""
    whole = case.make()
    expected = host(whole.adapt(case.stream))
    rng = np.random.default_rng(0)
    all_cuts: list[Any] = [range(1, 240), np.sort(rng.choice(240, 9)), [63, 64, 65, 128]]
    for cuts in (
        all_cuts[1:] if case.cls.card.episodic else all_cuts
    ):  # check_order has them one by one
        adapter = case.make()
        edges = [0, *(int(cut) for cut in cuts), 240]
        parts = [host(adapter.adapt(case.stream[a:b])) for a, b in itertools.pairwise(edges)]
        close(np.concatenate(parts), expected, "logits of a stream cut into calls")
        assert_same_samples(adapter, whole)


def check_known_ids(case: Case) -> None:
    """A sample whose id is known changes nothing; samples without ids are all new."""
    adapter, ids = case.make(), np.arange(240)
    adapter.adapt(case.stream, ids=ids)
    before = adapter.state()
    adapter.adapt(case.stream[40:90], ids=ids[40:90])
    adapter.adapt(case.stream[3:4], ids=ids[3:4])
    assert_same_state(adapter.state(), before)
    if isinstance(adapter, StreamAdapter):
        assert adapter.n_seen == 240
        adapter.adapt(case.stream[:7])
        assert adapter.n_seen == 247, "default ids collided with the ones given"
        adapter.adapt(case.stream[:3], ids=ids[:3] + 240)
        assert adapter.n_seen == 250, "given ids collided with the default ones"


def check_learn(case: Case) -> None:
    """`learn` keeps what `adapt` keeps and refreshes nothing; after `refresh` both answer alike."""
    if not issubclass(case.cls, StreamAdapter):
        return
    adapted, ids = case.make(), np.arange(240)
    fresh, rest = adapted.state()["arrays"], slice(200, 240)
    adapted.adapt(case.stream[:200], ids=ids[:200])
    adapted.refresh()
    more = host(adapted.copy().adapt(case.stream[rest], ids=ids[rest]))
    for edges in ([0, 200], [0, 1, 70, 71, 200]):
        learned = case.make()
        for a, b in itertools.pairwise(edges):
            assert learned.learn(case.stream[a:b], ids=ids[a:b]) is None
        arrays = learned.state()["arrays"]
        statistics = {name for name in (*arrays, *fresh) if name.startswith("statistics.")}
        assert all(np.array_equal(arrays[name], fresh[name]) for name in statistics)
        assert_same_samples(learned, adapted)
        assert learned.refresh() is learned
        close(learned.logits(case.stream), adapted.logits(case.stream), "logits after learn")
        before = learned.state()
        learned.learn(case.stream[40:90], ids=ids[40:90])
        assert_same_state(learned.state(), before)
        going_on = host(learned.adapt(case.stream[rest], ids=ids[rest]))
        close(going_on, more, "logits of a stream that goes on after learn")


def check_save_and_load(case: Case) -> None:
    """Saved in the middle of a stream, loaded and continued = never stopped, to the bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        steady, interrupted = case.make(), case.make()
        for adapter in (steady, interrupted):
            adapter.adapt(case.stream[:100])
        interrupted.save(path)
        known = {"text_features": case.words(case.text), "logit_scale": interrupted.logit_scale}
        loaded = case.cls.load(path, expect=known)
        assert_same_state(loaded.state(), steady.state())
        for part in (slice(100, 101), slice(101, 240)):
            expected = host(steady.adapt(case.stream[part]))
            assert np.array_equal(host(loaded.adapt(case.stream[part])), expected)
        assert_same_state(loaded.state(), steady.state())
        for wrong in ({"logit_scale": 7.0}, {"text_features": case.words(case.text[::-1].copy())}):
            raises(ValueError, case.cls.load, path, expect=wrong, naming="state.safetensors")


def check_damaged_files(case: Case) -> None:
    """A file cut short or with a flipped bit raises an error that names the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        adapter = case.make()
        adapter.adapt(case.stream)
        adapter.save(path)
        content = path.read_bytes()
        rng = np.random.default_rng(0)
        for length in range(0, len(content), max(64, len(content) // 512 // 64 * 64)):
            path.write_bytes(content[:length])
            raises(ValueError, case.cls.load, path, naming="state.safetensors")
        for at in rng.integers(len(content), size=100):
            flipped = bytearray(content)
            flipped[at] ^= 1 << int(rng.integers(8))
            path.write_bytes(flipped)
            raises(ValueError, case.cls.load, path, naming="state.safetensors")


def check_copy_and_reset(case: Case) -> None:
    """A copy, a state and a pickle go their own way; reset forgets what the stream taught."""
    adapter = case.make()
    fresh = adapter.state()
    adapter.adapt(case.stream[:100])
    middle = adapter.state()
    twin = adapter.copy()
    twin.adapt(case.stream[100:])
    assert_same_state(adapter.state(), middle)
    given = adapter.state()
    copied = type(adapter).from_state(given)
    for array in given["arrays"].values():
        array[...] = 0
    assert_same_state(copied.state(), middle)
    assert_same_state(pickle.loads(pickle.dumps(adapter)).state(), middle)
    if not isinstance(adapter, FewShotAdapter):  # there, reset forgets the labels as well
        assert_same_state(adapter.reset().state(), fresh)


def check_merge(case: Case) -> None:
    """Two halves merged, in either order = the whole; copies of images included."""
    whole = case.make()
    if not isinstance(whole, StreamAdapter):
        return
    if not whole.keeps_samples:
        raises(ValueError, whole.merge, case.make(), naming="cannot be merged")
        return
    features = case.features.copy()
    features[120:180] = features[:60]  # copies, with ids of their own
    stream, ids = case.array(features), np.arange(240)
    whole.adapt(stream, ids=ids)

    def half(chosen: np.ndarray) -> Any:
        part = case.make()
        for at in np.array_split(chosen, 7):
            part.adapt(stream[at[0] : at[-1] + 1], ids=ids[at])
        return part

    first, second = np.arange(120), np.arange(120, 240)
    ab = half(first).merge(half(second))
    ba = half(second).merge(half(first))
    assert ab.n_seen == ba.n_seen == whole.n_seen
    for merged in (ab, ba):
        assert_same_samples(merged, whole)
    assert_same_state(ab.state(), ba.state(), rounding=True)
    before = ab.state()
    assert_same_state(ab.merge(ba).state(), before, rounding=True)  # once more changes nothing
    arrays = half(first).state()["arrays"]
    held = next(a for name, a in arrays.items() if name.endswith(".ids"))[:1]
    clash = case.make()
    clash.adapt(stream[200:201], ids=held)  # another sample under the id of one that is kept
    raises(ValueError, half(first).merge, clash)
    counted, named = case.make(), case.make()
    counted.adapt(stream)
    named.id_space = "content"
    named.adapt(stream, ids=ids + 1000)
    for one, other in ((counted, counted.copy()), (counted, whole), (whole, named)):
        for a, b in ((one, other), (other, one)):
            raises(ValueError, a.copy().merge, b)
    assert counted.copy().merge(case.make()).id_space == "count"  # nothing learned, no space yet
    assert case.make().merge(named).id_space == "content"
    promised = case.make()
    promised.id_space = "content"  # before anything is learned, and kept when all is forgotten
    for adapter in (promised, named.copy().reset()):
        raises(ValueError, adapter.merge, whole)
        assert adapter.merge(named).id_space == "content"


def check_with_text(case: Case) -> None:
    """The same text changes nothing; other classes get the same samples."""
    adapter = case.make()
    adapter.adapt(case.stream, ids=np.arange(240))
    same = adapter.with_text(case.words(case.text))
    assert_same_state(same.state(), adapter.state())
    read_back = adapter.state()["arrays"]["text_features"]
    assert_same_state(adapter.with_text(read_back).state(), adapter.state())
    renamed = case.text + 0.01 * np.random.default_rng(0).normal(size=case.text.shape)
    assert tuple(adapter.with_text(case.words(renamed)).logits(case.stream).shape) == (240, 6)
    fewer = case.words(case.text[:4])
    if isinstance(adapter, FewShotAdapter):
        raises(ValueError, adapter.with_text, fewer)
        return
    if isinstance(adapter, StreamAdapter):  # the same samples, as if offered under the new text
        again = type(adapter)(fewer, **adapter.params)
        names = [name for name in adapter.state()["arrays"] if name.endswith(".ids")]
        kept = {i for name in names for i in adapter.state()["arrays"][name].tolist()}
        again.adapt(case.stream[sorted(kept)], ids=sorted(kept))
        mine, theirs = adapter.with_text(fewer).state()["arrays"], again.state()["arrays"]
        if len(names) == 1:  # where all that is kept is offered again
            assert np.array_equal(mine[names[0]], theirs[names[0]])
    shrunk = adapter.with_text(fewer)
    assert tuple(shrunk.adapt(case.stream[:9]).shape) == (9, 4)
    if isinstance(adapter, StreamAdapter):
        known = adapter.n_seen if adapter.keeps_samples else 0  # without samples it starts over
        assert adapter.with_text(fewer).n_seen == known
    raises(ValueError, adapter.with_text, case.words(case.text[:, :5].copy()))


def check_bad_input(case: Case) -> None:
    """Bad input raises ValueError or TypeError, and the state is as before."""
    adapter, width = case.make(), case.text.shape[1]
    adapter.adapt(case.stream[:100])
    before = adapter.state()
    good = case.features[:3]
    learning = [adapter.adapt, *([adapter.learn] if isinstance(adapter, StreamAdapter) else [])]
    verbs = [*learning, adapter.logits]

    def spoiled(value: float) -> np.ndarray:
        rows = good.copy()
        rows[1] = value
        return rows

    for bad in (
        case.array(good[..., :5].copy()),
        case.array(spoiled(np.nan)),
        case.array(spoiled(np.inf)),
        case.array(spoiled(0.0)),
        case.convert(np.ones((3, width), int)),
        np.full((3, width), None),
        case.array(np.ones((2, 2, 2, width))),
        case.array(np.ones((2, 0, width))),
        np.float32(1.0),
    ):
        for verb in verbs:
            raises((ValueError, TypeError), verb, bad)
    if case.cls.card.min_views > 1:
        for few in (good[:, 0], good[:, :1], good[:, : case.cls.card.min_views - 1]):
            for verb in (adapter.adapt, adapter.logits, adapter.probabilities):
                raises(ValueError, verb, case.array(few), naming="needs views")
    for ids in ([1, 1, 2], [1, 2], [0.5, 1.5, 2.5], [[1, 2, 3]], [1, 2, 2**63 - 1], [-1, 2, 3]):
        for verb in learning:
            raises((ValueError, TypeError), verb, case.array(good), ids=ids)
    assert_same_state(adapter.state(), before)


def check_views(case: Case) -> None:
    """(n, V, d): views that are all alike give the answer of the plain feature."""
    views = np.repeat(case.rows[:, None, :], 10, axis=1)
    if case.cls.card.min_views > 1:
        expected = case.rows @ case.make().text_features.T
        second, first = np.sort(expected, axis=1)[:, -2:].T
        clear = first - second > 0.05  # prompts that vote are not of one mind where it is close
        assert clear.sum() > 100
        labels = host(case.make().logits(case.array(views))).argmax(axis=1)
        assert np.array_equal(labels[clear], expected.argmax(axis=1)[clear]), "equal views"
        return
    plain, viewed = case.make(), case.make()
    for part in (slice(0, 150), slice(150, 240)):
        expected = host(plain.adapt(case.stream[part]))
        close(host(viewed.adapt(case.array(views[part]))), expected, "logits of equal views")
    close(host(viewed.logits(case.array(views))), host(plain.logits(case.stream)), "views")


def check_order(case: Case) -> None:
    """An episodic method gives an image the same answer wherever it comes in a stream."""
    if not case.cls.card.episodic:
        return
    order = np.random.default_rng(0).permutation(240)
    expected = host(case.make().adapt(case.stream))
    shuffled = host(case.make().adapt(case.array(case.features[order])))
    close(shuffled, expected[order], "logits in another order")
    alone = [host(case.make().adapt(case.stream[i : i + 1]))[0] for i in range(20)]
    close(np.stack(alone), expected[:20], "logits of single images")


STREAM_CHECKS: tuple[Check, ...] = (
    check_shapes_and_kinds,
    check_top_k,
    check_constructor,
    check_predict_is_pure,
    check_input_is_untouched,
    check_same_calls_same_bits,
    check_cuts,
    check_known_ids,
    check_learn,
    check_save_and_load,
    check_damaged_files,
    check_copy_and_reset,
    check_merge,
    check_with_text,
    check_bad_input,
    check_views,
    check_order,
)
CHECKS = (*(of_streams(check) for check in STREAM_CHECKS), *TRANSDUCTIVE_CHECKS)
