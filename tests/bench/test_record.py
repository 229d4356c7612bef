"""Records: values that are checked, and files whose damage is named."""

import dataclasses
import json

import pytest
from report_records import as_json, record

from soba.bench.record import Record, read_object, read_record, write_object, write_record


def test_written_and_read(tmp_path):
    path = tmp_path / "cell.json"
    given = record(joined=["a", "b"], accuracy_per_domain={"a": 50.0, "b": 70.0}, identity="1f")
    write_record(path, given)
    assert read_record(path) == given
    assert json.loads(path.read_text()).keys() == {f.name for f in dataclasses.fields(Record)}


def test_what_older_files_lack_has_its_default():
    """Files of `soba eval` know nothing of benchmarks; null is as good as missing."""
    least = {"dataset": "dtd", "method": "soba", "seed": 3, "encoder": "e-1", "order": None}
    scores = {"accuracy": 50, "calibration_error": 5.0, "seconds": 1.0, "an_idea_of": "later"}
    older = Record.from_json(least | scores)
    assert (older.order, older.benchmark, older.model) == ("shuffled", "", "e-1")
    assert (older.tuned_on, older.provenance) == ("paper or given", "not stated")
    assert (older.samples, older.left_out, older.accuracy_over_stream) == (None, 0, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accuracy": 101.0}, "accuracy is 101"),
        ({"accuracy": True}, "accuracy is True"),
        ({"accuracy": float("nan")}, "accuracy is nan"),
        ({"calibration_error": None}, "calibration_error is None"),
        ({"seconds": -1.0}, "seconds is -1"),
        ({"seed": "0"}, "seed is '0'"),
        ({"method": 3}, "method is 3"),
        ({"dataset": None}, "dataset is None"),
        ({"samples": "many"}, "samples is 'many'"),
        ({"accuracy_over_stream": ["high"]}, r"accuracy_over_stream is \['high'\]"),
        ({"accuracy_per_domain": {"a": 101.0}}, "accuracy_per_domain is {'a': 101.0}"),
        ({"hyper_parameters": [1]}, r"hyper_parameters is \[1\]"),
        ({"unlike_the_paper": {"alpha": [1.0]}}, r"unlike_the_paper is {'alpha': \[1.0\]}"),
        ({"joined": "a"}, "joined is 'a'"),
        ({"prompts": 5}, "prompts is 5"),
        ({"prompts": [5]}, r"prompts is \[5\]"),
        ({"order": 3}, "order is 3"),
        ({"benchmark": 3}, "benchmark is 3"),
        ({"model": [1]}, r"model is \[1\]"),
        ({"views": -4}, "views is -4"),
        ({"views": 2.5}, "views is 2.5"),
        ({"samples": 1.5}, "samples is 1.5"),
        ({"seed": True}, "seed is True"),
        ({"shots": "x"}, "shots is 'x'"),
        ({"answered": "x"}, "answered is 'x'"),
        ({"tuned_on": 7}, "tuned_on is 7"),
        ({"accuracy_at_coverage": [float("nan")]}, r"accuracy_at_coverage is \[nan\]"),
        ({"seconds": 10**400}, "seconds is 10000"),
        ({"versions": {"numpy": 2}}, "versions is {'numpy': 2}"),
        ({"expected_accuracy": {"adapted": 80.0}}, "expected_accuracy is {'adapted': 80.0}"),
        ({"expected_accuracy": {"zero_shot": 70.0, "adapted": 101.0}}, "expected_accuracy is"),
        ({"expected_accuracy": [70.0, 80.0]}, r"expected_accuracy is \[70.0, 80.0\]"),
    ],
)
def test_what_cannot_be_a_record_is_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=f"not a record: .*{message}"):
        Record.from_json(as_json() | change)
    path = tmp_path / "cell.json"
    path.write_text(json.dumps(as_json() | change))
    with pytest.raises(ValueError, match=rf"cell\.json: not a record.*{message}.*remove it to run"):
        read_record(path)


def test_every_field_is_checked():
    for name in Record.__dataclass_fields__:
        with pytest.raises(ValueError, match=f"not a record: {name} is <object"):
            Record.from_json(as_json() | {name: object()})


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"3", b"\xff\xfe"])
def test_what_is_no_object_is_named(tmp_path, damage):
    path = tmp_path / "cell.json"
    path.write_bytes(damage)
    for read in (read_object, read_record):
        with pytest.raises(ValueError, match=r"cell\.json: not a record; remove it"):
            read(path)


def test_any_object_is_written_whole(tmp_path):
    write_object(tmp_path / "search.json", {"alpha": 1.5})
    assert read_object(tmp_path / "search.json") == {"alpha": 1.5}
