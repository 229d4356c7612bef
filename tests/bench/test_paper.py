"""The quoted tables: complete, and as consistent as the paper is."""

import re
from collections import defaultdict

import pytest
from conftest import REAL_DATA

from soba.bench.paper import quoted
from soba.registry import list_methods

TOLERANCE = 0.01 + 1e-9  # cells and averages are both rounded to 0.01

# Where the paper's own averages are not the means of their rows: (printed, recomputed).
SLIPS = {
    ("ood", "ViT-B/16", "difftpt", "", "average"): (62.28, 62.576),
    ("ood", "ViT-B/16", "difftpt", "", "ood-average"): (60.52, 60.645),
    ("cross", "RN50", "soba", "", "average"): (62.20, 62.213),
    ("cross", "ViT-B/16", "difftpt", "", "average"): (65.47, 64.919),
}


def lines():
    """Printed rows of tables: (table, backbone, method, setting) -> numbers."""
    rows = defaultdict(list)
    for row in quoted():
        if row.table not in ("runtime", "datasets"):
            rows[row.table, row.backbone, row.method, row.setting].append(row)
    return rows


def recomputed():
    """Every average: its address -> (printed, mean of its cells)."""
    averages = {}
    for key, rows in lines().items():
        cells = {row.dataset: row.value for row in rows if row.kind == "cell"}
        for row in rows:
            if row.kind == "average":
                shifted = [cells[name] for name in cells if name != "imagenet"]
                used = shifted if row.dataset == "ood-average" else list(cells.values())
                averages[(*key, row.dataset)] = (row.value, sum(used) / len(used))
    return averages


def test_averages_recompute_except_for_the_papers_own_slips():
    averages = recomputed()
    assert len(averages) == 2 * 18 + 18 + 2 * 2 + 2 + 7  # ood, cross, baseline, capacity
    slips = {
        key: (printed, round(mean, 3))
        for key, (printed, mean) in averages.items()
        if abs(printed - mean) > TOLERANCE
    }
    assert slips == SLIPS


def test_slips_are_noted_where_they_are_quoted():
    noted = {
        (row.table, row.backbone, row.method, row.setting, row.dataset)
        for row in quoted()
        if row.note == "not the mean of its row"
    }
    assert noted == set(SLIPS)


def test_differences_recompute():
    for table in ("baseline-ood", "baseline-cross"):
        soba = {row.dataset: row.value for row in quoted(table=table, method="soba")}
        ncm = {row.dataset: row.value for row in quoted(table=table, method="ncm")}
        gain = {row.dataset: row.value for row in quoted(table=table, method="soba - ncm")}
        assert gain == pytest.approx({name: soba[name] - ncm[name] for name in gain}, abs=0.0101)
    runtime = quoted(table="runtime")
    start = next(row.value for row in runtime if row.unit == "%" and row.method == "zero-shot")
    top1 = {row.method: row.value for row in runtime if row.unit == "%"}
    gain = {row.method: row.value for row in runtime if row.unit == "points"}
    assert gain == pytest.approx({name: top1[name] - start for name in top1}, abs=0.0101)


def test_tables_agree_where_they_repeat_a_number():
    def soba(table, setting=""):
        rows = quoted(table=table, method="soba", backbone="ViT-B/16")
        return [row.value for row in rows if row.setting == setting]

    assert soba("baseline-ood") == soba("ood")
    assert soba("baseline-cross") == soba("cross") == soba("capacity", "capacity=16")
    for row in quoted(table="runtime"):
        if row.unit == "%":
            [main] = quoted(table="ood", backbone="RN50", method=row.method, dataset="imagenet")
            assert main.value == row.value


def test_everything_is_marked_and_named_as_elsewhere():
    rows = quoted()
    assert {row.provenance for row in rows} == {"quoted"}
    assert {row.kind for row in rows} == {"cell", "average", "difference"}
    assert {"zero-shot", "ncm", "soba", "tda", "tip-adapter"} <= set(list_methods()) & {
        row.method for row in rows
    }


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="no method 'sobs'; it has cocoop, coop"):
        quoted(method="sobs")


def printed(tabular):
    """All numbers of a LaTeX table in reading order, the first column apart; times in seconds."""
    numbers = []
    body = re.sub(r"\\rowcolor\{[^}]*\}|\\multicolumn.*?\\\\", "", tabular, flags=re.S)
    for line in body.split(r"\\")[1:]:  # the first is the head
        for cell in line.split("&")[1:]:
            cell = re.sub(r"\\[a-z]+|[{}\s,+]", "", cell)
            spent = re.findall(r"(\d+)(h|min|s)", cell)
            if spent:
                numbers.append(sum(int(n) * {"h": 3600, "min": 60, "s": 1}[u] for n, u in spent))
            elif cell:
                numbers.append(float(cell))
    return numbers


def test_every_number_of_the_tables_is_quoted():
    source = REAL_DATA.parent / "paper.tex"
    if not source.is_file():
        pytest.skip(f"no paper at {source}; set SOBA_REAL_DATA")
    tabulars = re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", source.read_text(), re.S)
    tables = ("ood", "cross", "baseline-ood", "baseline-cross", "runtime", "datasets", "capacity")
    assert len(tabulars) == len(tables)
    for table, tabular in zip(tables, tabulars, strict=True):
        assert printed(tabular) == [row.value for row in quoted(table=table)], table
