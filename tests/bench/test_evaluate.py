import re
import sys

import numpy as np
import pytest
from methods import FROM_TEXT

import soba
from soba.bench.evaluate import evaluate, method_settings, streams, summarise
from soba.bench.metrics import accuracy, calibration_error
from soba.bench.record import Record
from soba.registry import card
from soba.testing import example_stream, example_views

FEATURES, LABELS, TEXT = example_stream(n=200, classes=5, width=12)
SET = soba.FeatureSet(
    FEATURES, TEXT, 20.0, LABELS, support_features=FEATURES[:50], support_labels=LABELS[:50]
)


VIEWS = example_views(FEATURES, 10)
VIEW_SET = soba.FeatureSet(
    VIEWS,
    TEXT,
    20.0,
    LABELS,
    prompt_features=TEXT + 0.1 * np.random.default_rng(0).normal(size=(7, 5, 12)),
)
STREAMING = [name for name in FROM_TEXT if not card(name).episodic]
EPISODIC = soba.list_methods(family="episodic")


def test_a_record_is_the_stream_in_the_order_of_its_seed():
    records = evaluate(SET, STREAMING, orders=3)
    assert [(r.method, r.seed) for r in records] == [
        (m, s) for m in STREAMING for s in range(streams(m, 3))
    ]
    order = np.random.default_rng(2).permutation(200)
    adapter = soba.SOBA(TEXT, logit_scale=20.0, refresh="tenths", total=200)
    expected = accuracy(adapter.adapt(FEATURES[order]), LABELS[order])
    assert next(r for r in records if (r.method, r.seed) == ("soba", 2)).accuracy == expected


def test_paper_settings_and_overrides():
    assert method_settings("soba", 99) == {"refresh": "tenths", "total": 99}
    assert method_settings("tda", 99, {"alpha": 3.0, "reading": "gda"}) == {"alpha": 3.0}
    assert method_settings("ncm", 99, {"refresh": 7}) == {"refresh": 7}
    adapter = soba.create_adapter("tda", TEXT)
    assert (adapter.alpha, adapter.beta) == (2.0, 5.0)
    with pytest.raises(ValueError, match="none of tda has a reading"):
        evaluate(SET, ["tda"], overrides={"reading": "gda"})


def test_a_record_says_where_its_hyper_parameters_are_not_the_papers():
    def unlike(method, **overrides):
        [record] = evaluate(SET, [method], orders=1, overrides=overrides)
        return record.unlike_the_paper

    for name in STREAMING:
        assert unlike(name) == {}
    assert unlike("soba", alpha=5.0) == {"alpha": [5.0, 15.0]}
    assert unlike("ncm", refresh=7, capacity=None) == {
        "refresh": [7, "tenths"],
        "capacity": [None, 16],
    }
    assert unlike("tda", entropy_window=(0.1, 0.5)) == {"entropy_window": [[0.1, 0.5], [0.2, 0.5]]}
    assert unlike("soba+", horizon=50) == {}  # ours: there is no paper to differ from


def test_summary():
    runs = [
        Record(
            dataset="some",
            method=m,
            seed=s,
            accuracy=a,
            calibration_error=1.0,
            seconds=2.0,
            accuracy_answered=a,
            accuracy_at_coverage=[a],
        )
        for m, s, a in (
            ("zero-shot", 0, 50.0),
            ("zero-shot", 1, 50.0),
            ("soba", 0, 54.0),
            ("soba", 1, 58.0),
        )
    ]
    row = summarise(runs)[1]
    assert (row["accuracy_mean"], row["gain"]) == (56.0, 6.0)
    assert row["accuracy_std"] == pytest.approx(8**0.5)
    assert summarise(runs[2:])[0]["gain"] is None


def test_calibration_error_by_hand():
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.55, 0.45], [0.45, 0.55]])
    labels = np.array([0, 1, 0, 0])
    # Bin of 0.9: confidence 0.9, accuracy 0.5; bin of 0.55: confidence 0.55, accuracy 0.5.
    assert calibration_error(probabilities, labels) == pytest.approx(100 * (0.4 + 0.05) / 2)
    assert calibration_error(np.array([[1.0, 0.0]]), np.array([0])) == 0.0


def test_unlabelled_and_unsupported_sets():
    with pytest.raises(ValueError, match="no labels"):
        evaluate(soba.FeatureSet(FEATURES, TEXT), ["soba"])
    with pytest.raises(ValueError, match="needs labelled training samples"):
        evaluate(soba.FeatureSet(FEATURES, TEXT, labels=LABELS), ["gda"])
    with pytest.raises(ValueError, match="orders"):
        evaluate(SET, ["soba"], orders=0)


def test_episodic_methods_run_once_on_views():
    assert EPISODIC == ["clip+views", "mta", "mta-ensemble-mean", "mta-ensemble-vote", "zero"]
    steps = []
    records = evaluate(
        VIEW_SET, ["zero-shot", *EPISODIC, "tda"], orders=2, step=lambda *at: steps.append(at)
    )
    assert [record.method for record in records] == [
        *("zero-shot", "zero-shot"),
        *EPISODIC,
        *("tda", "tda"),
    ]
    assert steps == [(record.method, record.seed) for record in records]
    by_method = {record.method: record for record in records}
    assert by_method["mta"].accuracy == accuracy(
        soba.MTA(TEXT, logit_scale=20.0).logits(VIEWS), LABELS
    )
    vote = soba.MTAEnsembleVote(VIEW_SET.prompt_features, logit_scale=20.0)
    assert by_method["mta-ensemble-vote"].accuracy == accuracy(vote.logits(VIEWS), LABELS)
    assert (by_method["mta"].views, by_method["mta"].order) == (10, "as stored")
    rows = {row["method"]: row for row in summarise(records)}
    assert (rows["mta"]["orders"], rows["mta"]["accuracy_std"]) == (1, 0.0)
    gain = by_method["mta"].accuracy - by_method["zero-shot"].accuracy
    assert rows["mta"]["gain"] == pytest.approx(gain)


def test_views_are_read_in_blocks(monkeypatch):
    methods = ["tda", "soba", "zero"]
    whole = [record.accuracy for record in evaluate(VIEW_SET, methods, orders=2)]
    monkeypatch.setattr(sys.modules[evaluate.__module__], "_BLOCK_VALUES", 17 * 10 * 12)
    assert [record.accuracy for record in evaluate(VIEW_SET, methods, orders=2)] == whole


def test_what_is_missing_is_said_before_any_work(tmp_path):
    path = tmp_path / "plain.npz"
    np.savez(path, image_features=FEATURES, text_features=TEXT, labels=LABELS)
    steps = []
    for name in EPISODIC:
        with pytest.raises(
            ValueError, match=rf"plain\.npz: {re.escape(name)} needs views: .*one view each"
        ):
            evaluate(soba.FeatureSet.load(path), ["soba", name], step=lambda *at: steps.append(at))
    few = soba.FeatureSet(VIEWS[:, :4], TEXT, labels=LABELS)
    with pytest.raises(ValueError, match=r"mta needs views: .*5 at least.* 4 views each"):
        evaluate(few, ["mta"])
    single_text = soba.FeatureSet(VIEWS, TEXT, labels=LABELS)
    with pytest.raises(ValueError, match=r"mta-ensemble-vote needs .* prompt_features .*none"):
        evaluate(single_text, ["soba", "mta-ensemble-vote"], step=lambda *at: steps.append(at))
    assert steps == []
