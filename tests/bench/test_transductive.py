"""Methods that see a whole set at once: where they run, and that streams stay apart from them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from report_records import record
from run_cli import soba_command

import soba
from soba.bench.evaluate import evaluate, streams, summarise, transduces
from soba.bench.record import Record
from soba.registry import card
from soba.report.formats import markdown, notes
from soba.report.read import read_results
from soba.report.tables import tables
from soba.studies.efficiency import prepared
from soba.studies.stress import stress
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=120, classes=5, width=12)
SET = soba.FeatureSet(FEATURES, TEXT, 20.0, LABELS)
ABLE = [name for name in soba.list_methods() if transduces(name)]


@pytest.fixture
def file(tmp_path):
    SET.save(tmp_path / "some.safetensors")
    return tmp_path / "some.safetensors"


def test_who_sees_whole_sets():
    assert {"transclip", "stata", "adapt"} <= set(ABLE) and "zero-shot" not in ABLE
    assert transduces("transclip", asked=False) and not transduces("adapt", asked=False)
    assert streams("transclip", 5) == streams("adapt", 5, transductive=True) == 1
    assert streams("adapt", 5) == streams("tda", 5, transductive=True) == 5


def test_a_record_says_that_the_whole_set_was_seen():
    [alone] = evaluate(SET, ["transclip"], orders=3)
    assert (alone.transductive, alone.order, alone.seed) == (True, "as stored", 0)
    logits = soba.TransCLIP(TEXT, logit_scale=20.0).transduce(FEATURES)
    assert alone.accuracy == 100 * (logits.argmax(axis=1) == LABELS).mean()
    assert alone.accuracy_over_stream == []
    assert Record.from_json(json.loads(json.dumps(alone.to_json()))) == alone
    online = evaluate(SET, ["adapt"], orders=3)
    assert [r.transductive for r in online] == [False] * 3
    [at_once] = evaluate(SET, ["adapt"], orders=3, transductive=True)
    assert at_once.transductive
    for odd in ("yes", 1, None):
        content = alone.to_json() | {"transductive": odd}
        if odd is None:
            assert not Record.from_json(content).transductive
        else:
            with pytest.raises(ValueError, match="transductive is"):
                Record.from_json(content)


def test_streams_and_whole_sets_are_never_averaged():
    records = evaluate(SET, ["zero-shot", "adapt"], orders=3)
    records += evaluate(SET, ["adapt"], transductive=True)
    rows = {(row["method"], row["transductive"]): row for row in summarise(records)}
    assert rows["adapt", False]["orders"] == 3 and rows["adapt", True]["orders"] == 1
    gain = records[-1].accuracy - records[0].accuracy
    assert rows["adapt", True]["gain"] == pytest.approx(gain)


def test_any_order_of_a_set_has_one_accuracy():
    order = np.random.default_rng(5).permutation(len(FEATURES))
    for name in ABLE:
        [one] = evaluate(SET, [name], transductive=True)
        [other] = evaluate(SET, [name], orders=1, transductive=True, arrange=lambda seed: order)
        assert one.accuracy == pytest.approx(other.accuracy, abs=1e-9)


def test_the_report_keeps_them_in_rows_of_their_own(tmp_path):
    own = [record("adapt", seed=s, accuracy=60.0 + s) for s in range(3)]
    whole = record("adapt", accuracy=90.0, transductive=True, accuracy_over_stream=[])
    only = record("transclip", accuracy=95.0, transductive=True, accuracy_over_stream=[])
    [table] = tables([*own, whole, only])
    ours = {row.label: row.cells[0] for row in table.rows if row.kind == "ours"}
    assert ours["ADAPT"].mean == 61.0 and ours["ADAPT"].rank == 1
    assert ours["ADAPT (transductive)"].mean == 90.0 and ours["ADAPT (transductive)"].rank == 0
    assert "TransCLIP-ZS (transductive)" in ours
    assert not any(table.is_short(row, cell) for row in table.rows for cell in row.cells)
    assert any("the whole set seen before the first answer" in note for note in notes(table))
    assert "ADAPT (transductive) | 90.00" in markdown(table)
    (tmp_path / "eval.json").write_text(
        json.dumps({"records": [r.to_json() for r in (*own, whole, only)]})
    )
    assert len(read_results(tmp_path / "eval.json").records) == 5
    soba_command("report", tmp_path / "eval.json", "-o", tmp_path / "page.html")
    assert "TransCLIP-ZS (transductive)" in (tmp_path / "page.html").read_text()


def test_eval_of_whole_sets(file, tmp_path):
    out = soba_command("eval", file, "--transductive", "--json", tmp_path / "out.json")
    records = json.loads((tmp_path / "out.json").read_text())["records"]
    assert {r["method"] for r in records} == {"zero-shot", *ABLE}
    assert {r["method"] for r in records if r["transductive"]} == set(ABLE)
    assert "transclip (transductive)" in out and "adapt (transductive)" in out
    out = soba_command("eval", file, "--methods", "zero-shot,adapt,transclip", "--orders", 2)
    assert "transclip (transductive)" in out and "adapt (transductive)" not in out
    curve = tmp_path / "curve.svg"
    soba_command("eval", file, "--transductive", "--methods", "adapt,tda", "--curve", curve)
    assert curve.is_file()


def test_what_cannot_be_asked_of_them(file):
    out = soba_command("eval", file, "--transductive", "--methods", "tda,soba", code=2)
    assert "none of tda, soba can see a whole set at once; there are: " in out
    out = soba_command("stress", file, "--methods", "transclip", code=2)
    assert "transclip sees a whole set at once: it has no stream to stress" in out
    with pytest.raises(ValueError, match="needs a whole set of features at once"):
        soba.Classifier("tiny", ["bell", "cat"], method="transclip")


def test_the_rivals_are_stressed_by_name():
    names = ["zero-shot", "etta", "oga", "adapt", "dota", "pta"]
    records = stress(SET, names, scenarios=["4 per class"])
    assert {r.method for r in records} == set(names)


def test_what_they_cost_can_be_measured():
    found, problems = prepared(SET, ["transclip", "adapt"])
    assert set(found) == {"zero-shot", "transclip", "adapt"} and problems == {}


@pytest.mark.parametrize("method", ["etta", "oga", "adapt", "dota", "pta"])
def test_a_classifier_learns_with_a_rival(method, tmp_path):
    images = np.random.default_rng(0).integers(0, 255, size=(6, 64, 64, 3), dtype=np.uint8)
    clf = soba.Classifier("tiny", ["bell", "cat", "star"], method=method)
    answers = list(clf.classify(list(images)))
    assert not any(answer.error for answer in answers)
    assert clf.adapter.n_seen == 6
    list(clf.classify(images[0]))
    assert clf.adapter.n_seen == 6  # known by its content
    clf.save(tmp_path / "state")
    assert soba.load(tmp_path / "state").adapter.n_seen == 6


def test_no_method_of_the_family_is_without_its_verb():
    for name in soba.list_methods(family="transductive"):
        assert card(name).episodic and name in ABLE
