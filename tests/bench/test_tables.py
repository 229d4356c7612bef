import numpy as np
import pytest
from report_records import OOD, grid, record, write

from soba.bench.paper import quoted
from soba.bench.results import read_results
from soba.bench.table_formats import as_html, latex, markdown
from soba.bench.tables import tables


def rows_of(table, kind="ours"):
    return {
        row.label: dict(zip(table.columns, row.cells, strict=True))
        for row in table.rows
        if row.kind == kind
    }


def test_mean_and_spread_over_seeds(tmp_path):
    scores = [60.0, 61.0, 62.5]
    records = [record(seed=s, accuracy=a, benchmark="mine") for s, a in enumerate(scores)]
    [table] = tables(read_results(write(tmp_path, records)).records)
    cell = rows_of(table)["SOBA"]["imagenet"]
    assert (cell.mean, cell.std, cell.runs) == pytest.approx(
        (np.mean(scores), np.std(scores, ddof=1), 3)
    )
    assert table.averages == ()


def test_averages_of_complete_rows_only():
    records = grid(["zero-shot", "soba"], OOD, seeds=2)
    records = [r for r in records if (r["method"], r["dataset"]) != ("soba", "imagenet-r")]
    [table] = tables(records)
    rows = rows_of(table)
    assert rows["SOBA"]["average"] is None and rows["SOBA"]["ood-average"] is None
    means = [rows["zero-shot"][name].mean for name in OOD]
    assert rows["zero-shot"]["average"].mean == pytest.approx(np.mean(means))
    assert rows["zero-shot"]["ood-average"].mean == pytest.approx(np.mean(means[1:]))
    assert "has no average" in markdown(table)


def test_spread_of_an_average_is_over_seeds():
    records = [
        record("soba", name, seed, 50.0 + 10 * k + seed)
        for k, name in enumerate(OOD)
        for seed in (0, 1)
    ]
    [table] = tables(records)
    assert rows_of(table)["SOBA"]["average"].std == pytest.approx(np.std([0, 1], ddof=1))


def test_quoted_numbers_stand_beside_and_never_in_an_average():
    [table] = tables(grid(["zero-shot", "soba"], OOD))
    ours, theirs, gap = (rows_of(table, kind) for kind in ("ours", "quoted", "difference"))
    printed = {
        row.dataset: row.value for row in quoted(table="ood", backbone="ViT-B/16", method="soba")
    }
    assert {name: cell.mean for name, cell in theirs["SOBA"].items()} == printed
    mean = np.mean([ours["SOBA"][name].mean for name in OOD])
    assert ours["SOBA"]["average"].mean == pytest.approx(mean)
    assert all(cell.rank == 0 for row in theirs.values() for cell in row.values())
    assert "NCM" in theirs and "CoOp" in theirs  # quoted, though we have no such row
    [found] = [row for row in table.rows if row.kind == "difference" and row.method == "soba"]
    assert found.cells[0].mean == pytest.approx(ours["SOBA"]["imagenet"].mean - printed["imagenet"])
    assert gap and "†" in markdown(table) and r"$^\dagger$" in latex(table)
    kinds = [row.kind for row in table.rows if row.method == "soba"]
    assert kinds == ["ours", "quoted", "difference"]


def test_the_papers_ensemble_is_paired_with_the_vote_alone():
    [table] = tables(grid(["mta", "mta-ensemble-mean", "mta-ensemble-vote"], OOD, seeds=1))
    [printed] = quoted(table="ood", backbone="ViT-B/16", method="mta+ensemble", dataset="imagenet")
    kinds = [(row.label, row.kind) for row in table.rows if "ensemble" in row.label]
    assert kinds == [
        ("MTA + ensemble (mean)", "ours"),
        ("MTA + ensemble (vote)", "ours"),
        ("MTA + ensemble", "quoted"),
    ]
    place = [row.label for row in table.rows].index("MTA + ensemble (vote)")
    ours, theirs, gap = table.rows[place : place + 3]
    assert theirs.cells[0].mean == printed.value
    assert (gap.kind, gap.method) == ("difference", "mta-ensemble-vote")
    assert gap.cells[0].mean == pytest.approx(ours.cells[0].mean - printed.value)


def test_where_only_the_mean_of_prompts_ran_the_papers_ensemble_stands_alone():
    [table] = tables(grid(["mta-ensemble-mean"], OOD, seeds=1))
    kinds = [row.kind for row in table.rows if row.method.startswith("mta-ensemble")]
    assert kinds == ["ours", "quoted"]


def test_no_difference_is_taken_from_cells_that_saw_the_answers():
    records = grid(["soba"], OOD, seeds=1)
    records[0]["tuned_on"] = "test labels"
    [table] = tables(records)
    kinds = [row.kind for row in table.rows if row.method == "soba"]
    assert kinds == ["ours", "quoted", "difference"]
    gap = dict(zip(table.columns, table.rows[2].cells, strict=True))
    assert gap["imagenet"] is None and gap["average"] is None
    assert gap["imagenet-a"] is not None and gap["ood-average"] is not None
    assert rows_of(table)["SOBA"]["average"].on_test
    [alone] = tables([records[0]])
    assert "difference" not in {row.kind for row in alone.rows}


def test_the_baseline_is_quoted_from_its_own_table():
    [table] = tables(grid(["ncm"], ["pets"], benchmark="cross"))
    assert rows_of(table, "quoted")["NCM"]["pets"].mean == 88.41
    [table] = tables(grid(["zero-shot"], ["imagenet"], model="RN50"))
    theirs = rows_of(table, "quoted")
    assert theirs["zero-shot"]["imagenet"].mean == 59.81
    assert "NCM" not in theirs  # the paper has it for ViT-B/16 only


def joined(method="soba", seed=0, order="mixed", scores=(60.0, 40.0, 20.0), **more):
    domains = dict(zip(("icons-sketch", "icons-source", "icons-v2"), scores, strict=True))
    more = {"benchmark": "icons", "model": "tiny", "order": order} | more
    return record(method, "icons-all", seed, 35.0, accuracy_per_domain=domains, **more)


def test_domains_of_a_joined_stream_are_columns():
    records = [joined(seed=0), joined(seed=1, scores=(64.0, 40.0, 20.0)), joined("zero-shot")]
    [table] = tables(records)
    assert table.columns == (
        "icons-source", "icons-v2", "icons-sketch", "average", "ood-average",
    )  # fmt: skip
    row = rows_of(table)["SOBA"]
    assert [row[name].mean for name in table.columns] == [
        40.0,
        20.0,
        62.0,
        pytest.approx(122 / 3),
        41.0,
    ]
    assert row["icons-sketch"].std == pytest.approx(8**0.5)
    assert row["ood-average"].std == pytest.approx(2**0.5)
    assert table.title == "Icon domains, tiny, mixed domains"
    assert "one stream" in markdown(table)
    assert table.members["SOBA"] == records[:2]  # pictures and cost are of whole streams


def test_orders_come_as_the_command_lists_them():
    records = [joined(order=order) for order in ("mixed", "sequence")]
    records += [record(benchmark="icons", model="tiny", order=o) for o in ("sorted", "shuffled")]
    found = [table.order for table in tables(records)]
    assert found == ["shuffled", "sorted", "sequence", "mixed"]


def test_quoted_averages_stay_out_of_smaller_tables():
    [table] = tables(grid(["soba"], OOD[:3]))
    theirs = rows_of(table, "quoted")["SOBA"]
    assert theirs["imagenet-a"] is not None
    assert theirs["average"] is None and theirs["ood-average"] is None


@pytest.mark.parametrize(
    "more", [{"model": "ViT-L-14"}, {"order": "sorted"}, {"benchmark": "icons"}]
)
def test_nothing_is_quoted_where_the_paper_has_nothing(more):
    [table] = tables(grid(["soba"], OOD, **more))
    assert {row.kind for row in table.rows} == {"ours"}


def test_best_and_second_as_printed():
    scores = {"zero-shot": 50.0, "ncm": 60.001, "tda": 60.004, "soba": 58.0}
    records = [record(m, accuracy=a, benchmark="mine") for m, a in scores.items()]
    [table] = tables(records)
    ranks = {label: row["imagenet"].rank for label, row in rows_of(table).items()}
    assert ranks == {"zero-shot": 0, "NCM": 1, "TDA": 1, "SOBA": 2}
    assert markdown(table).count("**60.00**") == 2 and "<u>58.00</u>" in markdown(table)
    assert latex(table).count(r"\textbf{60.00}") == 2 and r"\underline{58.00}" in latex(table)
    assert '<span class="second">58.00</span>' in as_html(table)


def test_tuned_on_test_labels_is_red_and_out_of_the_race():
    records = [
        record("ncm", accuracy=70.0, tuned_on="test labels"),
        record("soba", accuracy=60.0),
        record("tda", accuracy=50.0),
    ]
    [table] = tables(records)
    row = rows_of(table)
    assert row["NCM"]["imagenet"].on_test and row["NCM"]["imagenet"].rank == 0
    assert row["SOBA"]["imagenet"].rank == 1
    assert "NCM" not in table.fair and "SOBA" in table.fair
    assert '<span class="bad" title="tuned on test labels">70.00 ‡</span>' in as_html(table)
    assert r"\textcolor{red}{70.00$^\ddagger$}" in latex(table)
    assert "70.00 ‡" in markdown(table) and "Tuned on test labels" in markdown(table)


def test_settings_that_differ_are_rows_of_their_own():
    records = [record(seed=s, accuracy=60.0) for s in (0, 1)]
    records += [record(seed=s, accuracy=65.0, tuned_on="val") for s in (0, 1)]
    records += [record("ncm", "imagenet", prompts="a"), record("ncm", "imagenet-a", prompts="b")]
    [table] = tables(records)
    rows = rows_of(table)
    assert set(rows) == {"SOBA (as given)", "SOBA (tuned on val)", "NCM"}
    assert rows["SOBA (tuned on val)"]["imagenet"].mean == 65.0


def test_a_method_without_order_is_in_every_table():
    records = [record("soba", order=order) for order in ("shuffled", "sorted")]
    made = tables([*records, record("mta", order="as stored")])
    assert [(t.order, set(rows_of(t))) for t in made] == [
        ("shuffled", {"SOBA", "MTA"}),
        ("sorted", {"SOBA", "MTA"}),
    ]


def test_unfinished_seeds_say_so():
    records = [record("zero-shot", seed=s) for s in range(5)]
    records += [record("soba", seed=s, accuracy=70.0 + s) for s in range(3)]
    [table] = tables(records)
    assert "±1.00 (of 3)" in markdown(table)


def test_latex_escapes():
    [table] = tables([record("soba", "my_set & more")])
    assert r"my\_set \& more" in latex(table)
    assert latex(table).count(r"\toprule") == latex(table).count(r"\bottomrule") == 1
