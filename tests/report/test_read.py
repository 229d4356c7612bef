import json

import pytest
from report_records import as_json, grid, record, write

from soba.datasets.icons import DOMAINS, icons
from soba.report.read import read_results
from soba.report.tables import tables

OLD, NEW = 1_000_000_000, 1_000_000_060


def test_other_images_are_never_averaged_with_the_newest(tmp_path):
    write(tmp_path, grid(["zero-shot", "soba"], ["icons-v2"], seeds=2, samples=166), name="b")
    newer = [record("soba", "icons-v2", 0, 90.0, samples=332)]
    write(tmp_path, newer, name="a", written=NEW)
    results = read_results(tmp_path)
    assert [r.accuracy for r in results.records] == [90.0]  # nor beside them in one column
    [problem] = results.problems
    assert "icons-v2: 4 records of 166 images" in problem and "are of 332" in problem


def test_the_newest_whole_group_of_an_identity_is_used(tmp_path):
    write(tmp_path, grid(["soba"], ["dtd"], seeds=3, identity="1f"), name="b", written=OLD)
    newer = grid(["soba"], ["dtd"], seeds=2, start=80.0, identity="2e")
    write(tmp_path, newer, name="a", written=NEW)
    results = read_results(tmp_path)
    assert {r.identity for r in results.records} == {"2e"} and len(results.records) == 2
    [problem] = results.problems
    assert problem.startswith("soba on dtd: 3 records, since newer ones differ from them in")
    [table] = tables(results.records)
    [row] = (row for row in table.rows if row.kind == "ours")
    assert row.cells[0].runs == 2 and row.cells[0].mean > 79


@pytest.mark.parametrize(
    "change",
    [{"hyper_parameters": {"alpha": 1.0}}, {"encoder": "another"}, {"views": 7, "seed": 1}],
)
def test_records_without_an_identity_are_told_apart_by_what_they_have(tmp_path, change):
    write(tmp_path, [record(seed=s) for s in range(3)], name="b", written=OLD)
    write(tmp_path, [as_json(accuracy=10.0) | change], name="a", written=NEW)
    results = read_results(tmp_path)
    assert [r.accuracy for r in results.records] == [10.0]
    assert next(iter(change)).replace("_", " ") in results.problems[0]


def test_of_the_same_cell_and_seed_the_newest_counts(tmp_path):
    write(tmp_path, [record(accuracy=60.0, identity="1f")], name="z", written=OLD)
    write(tmp_path, [record(accuracy=61.0, identity="1f")], name="a", written=NEW)
    results = read_results(tmp_path)
    assert [r.accuracy for r in results.records] == [61.0]
    assert "repeat a cell and seed" in results.problems[0]


def test_readable_differences_are_kept_for_rows_of_their_own(tmp_path):
    records = [record(identity="1"), record(identity="2", tuned_on="val")]
    records += [record(identity="3", prompts=["a {}."]), record(identity="4", order="sorted")]
    results = read_results(write(tmp_path, records))
    assert results.records == records and not results.problems


def test_of_a_file_of_eval_the_last_counts(tmp_path):
    file = tmp_path / "eval.json"
    file.write_text(json.dumps({"records": [as_json(accuracy=50.0), as_json(accuracy=60.0)]}))
    assert [r.accuracy for r in read_results(file).records] == [60.0]


@pytest.mark.parametrize("more", [{"left_out": "x"}, {"expected": []}, {"joined": "a"}])
def test_damaged_entries_are_named(tmp_path, more):
    with pytest.raises(ValueError, match=next(iter(more))):
        read_results(write(tmp_path, [as_json(**more)]))


def test_prompts_of_icons_are_known_as_usual():
    name = next(iter(DOMAINS))
    pictures = icons(name, 1)
    [table] = tables([record("soba", f"icons-{name}", prompts=list(pictures.templates))])
    assert [row.label for row in table.rows] == ["SOBA"]
