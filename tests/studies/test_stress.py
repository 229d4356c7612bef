import numpy as np
import pytest

import soba
from soba.bench.metrics import expected_tail_accuracy
from soba.registry import card
from soba.report.plots import curves, heat_map
from soba.studies.scenarios import RENAMED, STREAMS, WHOLE_SETS, build, names_of
from soba.studies.stress import Part, planned, run_one, stress, summarise
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=400, classes=8, width=16, seed=9)
SET = soba.FeatureSet(FEATURES, TEXT, 20.0, LABELS)
COUNTS = np.bincount(LABELS, minlength=8)


@pytest.mark.parametrize("name", [*STREAMS, *(name for name in WHOLE_SETS if name not in STREAMS)])
def test_seeded_and_sound(name):
    one, again, other = build(name, SET, 3), build(name, SET, 3), build(name, SET, 4)
    assert np.array_equal(one.features, again.features)
    assert not np.array_equal(one.features, other.features)
    assert one.labels.max() < len(one.text_features)
    np.testing.assert_allclose(np.linalg.norm(one.features, axis=1), 1.0, atol=1e-5)
    assert np.array_equal(SET.image_features, FEATURES)


def test_images_per_class():
    for name, most in (("2 per class", 2), ("few", 4), ("16 per class", 16)):
        counts = np.bincount(build(name, SET, 0).labels, minlength=8)
        assert np.array_equal(counts, np.minimum(COUNTS, most))
    assert len(build("shuffled", SET, 0).labels) == 400
    order = np.random.default_rng(0).permutation(400)
    assert np.array_equal(build("shuffled", SET, 0).labels, LABELS[order])


def test_images_keep_their_labels():
    """Whatever the order, the rows are those of the images that the labels belong to."""
    for name in ("quarter", "sorted", "few", "zipf", "bursts 0.1", "StatA 0.01", "batches of 4"):
        stream = build(name, SET, 1)
        nearest = (stream.features @ FEATURES.T).argmax(axis=1)
        assert np.array_equal(stream.labels, LABELS[nearest])


def test_names_of_scenarios():
    assert names_of(None) == list(STREAMS)
    assert names_of(None, transductive=True) == list(WHOLE_SETS)
    assert names_of("zipf, StatA ,few,zipf") == [
        "zipf",
        *(name for name in STREAMS if name.startswith("StatA")),
        "few",
    ]
    assert names_of("stata 1-4", transductive=True) == ["StatA 1-4 of 64"]
    assert names_of(",".join(RENAMED)) == ["shuffled", "quarter", "sorted", "few"]
    for old, new in RENAMED.items():
        assert np.array_equal(build(old, SET, 2).features, build(new, SET, 2).features)
    with pytest.raises(ValueError, match="no scenario 'monday'; there are: shuffled, "):
        names_of("zipf,monday")
    with pytest.raises(ValueError, match="no scenario 'sorted'"):
        names_of("sorted", transductive=True)
    with pytest.raises(ValueError, match="no scenario is named"):
        names_of(" ,")


def test_shift_starts_in_the_middle():
    plain, shifted = build("shuffled", SET, 1), build("shift", SET, 1)
    np.testing.assert_allclose(shifted.features[:200], plain.features[:200], atol=1e-6)
    moved = plain.features[200:] - 0.5 * FEATURES.mean(0)
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    np.testing.assert_allclose(shifted.features[200:], moved, atol=1e-5)


def test_unrelated_images_have_no_class_and_are_not_scored():
    stream = build("30% unrelated", SET, 0)
    assert len(stream.labels) == 400
    assert (stream.labels < 0).mean() >= 0.3
    assert len(stream.text_features) < 8
    kept = stream.text_features[stream.labels[stream.scored]]
    order = np.random.default_rng(0)
    order.permutation(8)
    order = order.permutation(400)
    np.testing.assert_allclose(kept, TEXT[LABELS[order]][stream.scored], atol=1e-6)


def test_duplicates_and_wrong_text():
    stream = build("near-duplicates", SET, 0)
    assert len(stream.labels) == 400 + 5 * 80
    similar = np.sort(stream.features @ stream.features.T, axis=1)[:, -2]
    assert (similar > 0.99).sum() >= 400
    wrong = build("wrong text", SET, 0).text_features
    changed = np.flatnonzero(np.abs(wrong - TEXT).max(axis=1) > 1e-6)
    assert len(changed) == 2
    np.testing.assert_allclose(wrong[changed], TEXT[changed[::-1]], atol=1e-6)


def test_summary_measures_gains_against_the_same_order():
    rows = summarise(stress(SET, ["zero-shot", "ncm"], scenarios=["shuffled", "2 per class"]))
    by = {(row["scenario"], row["method"]): row for row in rows}
    assert by["shuffled", "ncm"]["orders"] == 20  # fewer than 500 images
    control, ncm = by["shuffled", "zero-shot"], by["shuffled", "ncm"]
    assert control["gain"] == control["gain_worst"] == 0.0
    assert ncm["gain"] == pytest.approx(ncm["accuracy_mean"] - control["accuracy_mean"])
    assert ncm["gain_worst"] <= ncm["gain"]


def test_the_tail_is_the_worst_tenth_of_the_orders_there_are():
    for count, worst in ((1, 1), (5, 1), (10, 1), (11, 2), (20, 2), (100, 10)):
        scores = np.random.default_rng(count).uniform(50, 90, count)
        slow = np.mean([sorted(scores)[place] for place in range(worst)])
        assert expected_tail_accuracy(scores.tolist()) == pytest.approx(slow)
    records = stress(SET, ["ncm"], scenarios=["quarter"], orders=11)
    [row] = summarise(records)
    assert (row["orders"], row["tail_orders"]) == (11, 2)
    worst, next_to_it, *_ = sorted(record.accuracy for record in records)
    assert row["accuracy_worst"] == worst
    assert row["expected_tail_accuracy"] == pytest.approx((worst + next_to_it) / 2)


def test_a_plan_says_what_is_run():
    names, parts = ["quarter", "shuffled"], []
    for orders, transductive in ((None, False), (2, False), (3, True)):
        parts = planned(SET, names, orders=orders, transductive=transductive)
        methods = ["zero-shot", "stata" if transductive else "ncm"]
        seen = []
        records = stress(
            SET,
            methods,
            scenarios=names,
            orders=orders,
            transductive=transductive,
            step=seen.append,
        )
        assert {id(record) for record in seen} == {id(record) for record in records}
        assert [record.scenario for record in seen[:2]] == ["shuffled"] * 2  # the largest
        assert len(records) == 2 * sum(part.orders for part in parts)
        assert [record.scenario for record in records] == [
            part.scenario for part in parts for _ in range(2 * part.orders)
        ]
        for part in parts:
            first = next(record for record in records if record.scenario == part.scenario)
            assert part.rows == first.scored
    assert parts == [Part("quarter", 3, parts[0].rows), Part("shuffled", 1, 400)]
    with pytest.raises(ValueError, match="orders must be at least 1"):
        planned(SET, names, orders=0)


def test_the_same_seed_is_the_same_stream_whatever_runs_beside_it():
    [alone] = stress(SET, ["ncm"], scenarios=["zipf"], orders=1, seed=4)
    records = stress(SET, ["tda", "ncm"], scenarios=["few", "zipf"], orders=3, seed=3)
    [beside] = [r for r in records if (r.scenario, r.method, r.seed) == ("zipf", "ncm", 4)]
    assert (alone.scored, alone.accuracy) == (beside.scored, beside.accuracy)


class Recorder:
    """A method that keeps what it is shown, and calls every image class 0."""

    def __init__(self):
        self.shown, self.params = [], {}

    def transduce(self, rows):
        self.shown.append(rows)
        return np.eye(8)[np.zeros(len(rows), int)]


@pytest.mark.parametrize("name", ["batches of 4", "StatA 2-10 of 64", "shuffled"])
def test_whole_sets_are_seen_one_at_a_time(name):
    stream, method = build(name, SET, 0), Recorder()
    scores = run_one(method, stream, at_once=True)
    sizes = stream.sets or (400,)
    assert len(sizes) == {"batches of 4": 2, "StatA 2-10 of 64": 7, "shuffled": 1}[name]
    assert tuple(map(len, method.shown)) == sizes
    assert np.array_equal(np.concatenate(method.shown), stream.features)
    assert scores["scored"] == len(stream.labels) == sum(sizes)
    assert scores["accuracy"] == pytest.approx(100 * (stream.labels == 0).mean())
    assert scores["second_half"] is None and scores["transductive"]


def test_all_that_sees_whole_sets_can_be_stressed_on_them():
    names = ["zero-shot", *soba.list_methods(family="transductive"), "adapt"]
    records = stress(SET, names, scenarios=["few", "StatA 1-4 of 64"], orders=1, transductive=True)
    assert [r.method for r in records] == 2 * names
    assert [r.transductive for r in records] == 2 * [name != "zero-shot" for name in names]
    assert all(card(name).family == "transductive" for name in names[1:-1])


def test_refusals():
    with pytest.raises(ValueError, match="learns from labels"):
        stress(SET, ["gda"])
    with pytest.raises(ValueError, match="tunes prompts"):
        stress(SET, ["tpt"])
    with pytest.raises(ValueError, match="transclip sees a whole set at once"):
        stress(SET, ["transclip"])
    with pytest.raises(ValueError, match="tda cannot see a whole set at once"):
        stress(SET, ["zero-shot", "tda"], transductive=True)
    with pytest.raises(ValueError, match="no labels"):
        stress(soba.FeatureSet(FEATURES, TEXT), ["ncm"])
    with pytest.raises(ValueError, match="not views"):
        views = np.repeat(FEATURES[:, None], 2, axis=1)
        stress(soba.FeatureSet(views, TEXT, labels=LABELS), ["ncm"])


def test_pictures(tmp_path):
    values = np.array([[1.0, -3.0], [0.0, 2.0]])
    heat_map(tmp_path / "h.png", values, ["a", "b"], ["x", "y"], title="t", label="l")
    curves(
        tmp_path / "c.png", {"a": (np.arange(3), np.arange(3))}, title="t", x_label="x", y_label="y"
    )
    for name in ("h.png", "c.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
