"""The benchmarks run and print their rows; their bars hold in `make bench`, not here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import soba
import soba.testing

PERF = Path(__file__).parent.parent / "perf"
ROWS = {
    "speed": [
        r"SOBA.adapt, tenths, .* <= 4x",
        r"SOBAPlus.adapt, .* <= 3.5x",
        r"SOBAPlus.transduce, a round, .* <= 6x",
        r"one by one, .* p50 / .* <= 4x",
        r"one by one, .* p99.9 / .* <= 10x",
        r"one by one, .* slowest call .* <= 150ms",
        r"SOBAPlus.adapt one by one, .* p50 / .* <= 3.5x",
        r"TDA.adapt, .* \d+ differ: .* >= 20x",
        r"resident memory .* <= 1.1x",
        r"queue / .* <= 1.3x",
        r"import soba .* <= 0.3s",
        r"demo: adapting, of the time of encoding .* <= 2%",
    ],
    "core": [
        r"SOBAPlus.learn, .* / zero-shot .* <= 1.8x",
        r"SOBAPlus.learn, a row at .* <= 1.2x",
        r"scattered ids .* <= 3x",
        r"SOBAPlus.refresh, 1,600 kept, C=100 / the product of these .* <= 1.2x",
        r"merge of 4 state files, .* loading them .* <= 1.5x",
        r"merge of 4 state files, .* peak memory / one state .* <= 3x",
    ],
    "durable": [
        r"batches of 500 in SQLite / in memory .* <= 3x",
        r"samples/s, .* MB at ",
        r"database .* MB of it for rollback; state file .* MB",
        r"memory at .* samples / at .* <= 1.1x",
        r"database, without what is kept for rollback / state file .* <= 3x",
    ],
    "views": [r"MTA.adapt, .* faster than a loop \(>= 10\), 0 predictions differ"],
    "classify": [
        r"image tower .* images/s",
        r"loop .* images/s",
        r"classify .* images/s",
        r"own loop: .* \(bar 0.95\)",
    ],
}


@pytest.mark.parametrize("name", ROWS)
def test_a_small_benchmark_prints_its_rows(name):
    run = subprocess.run(
        [sys.executable, PERF / f"{name}.py", "--small"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    printed = run.stdout.splitlines()
    assert len(printed) == len(ROWS[name])
    for row, expected in zip(printed, ROWS[name], strict=True):
        assert re.search(expected, row), row
        assert re.search(r"\d", row) and "nan" not in row


TABLES = {  # options -> how many lines begin with a set or a method
    "rivals": (["--orders", "1", "--methods", "tda,soba+"], r"\| (zero-shot|TDA|SOBA\+)", 4),
    "soba_plus_sets": ([], r"\| (one|both) ", 10),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_the_docs_can_be_made_again(name, tmp_path):
    images, labels, text = soba.testing.example_stream(n=120)
    path = tmp_path / "features.safetensors"
    soba.FeatureSet(images, text, labels=labels, logit_scale=20.0).save(path)
    options, row, rows = TABLES[name]
    files = [path, f"{path}+{path}", "--names", "one,both"]
    command = [sys.executable, PERF / f"{name}.py", *files, *options]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    printed = [line for line in run.stdout.splitlines() if re.match(row, line)]
    assert len(printed) == rows, run.stdout
    assert not any("nan" in line for line in printed)
