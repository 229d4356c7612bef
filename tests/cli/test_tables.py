import io

import pytest
from report_records import OOD, grid, record
from rich.console import Console

from soba.cli._tables import drawn
from soba.report.tables import tables


def printed(records, width=160, **more):
    [table] = tables(records)
    console = Console(file=io.StringIO(), width=width, **more)
    console.print(*drawn(table, width), sep="\n")
    return console.file.getvalue()


def line(text, name):
    """The numbers beside a data set, in each of the tables that have it."""
    return [row for row in text.splitlines() if row.startswith(f"│ {name} ")]


def test_ours_beside_the_papers():
    text = printed([record("soba", name, s, 70.0 + s) for name in OOD for s in (0, 1)])
    ours, beside = line(text, "imagenet")
    assert "70.50 ±0.71" in ours
    assert "70.50 | 70.90 | -0.40" in beside
    ours, beside = line(text, "ood-average")
    assert "70.50 ±0.71" in ours and "70.50 | 65.06 | +5.44" in beside
    assert "quoted from the SOBA paper, not measured here" in " ".join(text.split())
    assert "TPT" not in text  # quoted, but nothing of ours to stand beside


def test_the_quoted_zero_shot_row_has_a_warning():
    text = " ".join(printed(grid(["zero-shot"], OOD, seeds=1)).split())
    assert "quoted zero-shot row used other prompts" in text


def test_the_vote_of_prompts_stands_beside_the_papers_ensemble():
    methods = ["mta-ensemble-mean", "mta-ensemble-vote"]
    text = printed([record(m, name, 0, 71.0) for m in methods for name in OOD])
    assert line(text, "imagenet")[1].count("71.00 | 70.08 | +0.92") == 1
    assert text.count("(mean)") == 1 and text.count("(vote)") == 3  # in the tables and their notes


def test_domains_of_a_joined_stream_are_rows():
    domains = {"icons-source": 60.0, "icons-sketch": 40.0, "icons-v2": 20.0}
    more = {"benchmark": "icons", "model": "tiny", "order": "sequence"}
    text = printed([record("soba", "icons-all", accuracy_per_domain=domains, **more)])
    assert "60.00" in line(text, "icons-source")[0] and "30.00" in line(text, "ood-average")[0]
    assert "domains in sequence" in text and "icons-all" not in text


@pytest.mark.parametrize("benchmark", ["mine", "ood"])
def test_what_saw_the_answers_is_red_and_said(benchmark):
    records = [
        record("tda", accuracy=70.0, tuned_on="test labels", benchmark=benchmark),
        record("soba", accuracy=60.0, benchmark=benchmark),
        record("ncm", accuracy=50.0, benchmark=benchmark),
    ]
    text = printed(records, force_terminal=True, color_system="standard")
    assert "\x1b[31m70.00 ‡\x1b[0m" in text and "\x1b[1m60.00\x1b[0m" in text
    assert "(TDA (tuned on test labels)): they are not results" in printed(records)


def test_what_differs_from_the_papers_setting_is_said():
    text = " ".join(printed([record("soba", name) for name in OOD]).split())
    assert "SOBA on imagenet-a, imagenet-v2, imagenet-r, imagenet-sketch (ours: one view;" in text


def test_a_cell_that_is_not_done_says_so():
    text = printed([record("soba", seed=s) for s in range(3)] + [record("ncm", accuracy=55.0)])
    assert "55.00 (of 1)" in text


def test_no_number_is_cut_off_in_a_narrow_terminal():
    methods = ["zero-shot", "ncm", "tda", "soba", "soba+", "clip+views", "mta"]
    methods.append("mta-ensemble-vote")
    text = printed(grid(methods, OOD, seeds=3), width=80)
    assert "…" not in text
    assert len(line(text, "imagenet")) > 2 and "55.06 ±0.12" in text  # in pieces, whole numbers
