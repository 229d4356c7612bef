import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from matplotlib.pyplot import close
from report_records import OOD, as_json, grid, record, write

import soba
from soba.bench.paper import quoted
from soba.report import ablation_plots
from soba.report import charts as report_plots
from soba.report.page import write_report, write_tables
from soba.report.read import read_results
from soba.report.tables import BENCHMARKS
from soba.studies import ablate, efficiency
from soba.testing import example_stream


def report(tmp_path, folder):
    path = tmp_path / "report.html"
    write_report(path, read_results(folder))
    return path.read_text(encoding="utf-8")


def test_everything_is_in_one_file(tmp_path):
    folder = write(tmp_path / "results", grid(["zero-shot", "ncm", "soba", "soba+"], OOD))
    (folder / "ablations").mkdir()
    images, labels, text = example_stream(n=100, classes=4, width=8)
    features = soba.FeatureSet(images, text, labels=labels)
    for name in ("capacity", "reading"):
        ablate.write_csv(
            folder / "ablations" / f"{name}.csv", ablate.ablate(name, features, orders=1)
        )
    given, _ = efficiency.prepared(features, ["soba"])
    measured = efficiency.costs(given, seconds_per_image=0.1, repeats=1)
    efficiency.write_costs(
        folder / "efficiency.json", efficiency.Measured("made-up", 100, 4, tuple(measured))
    )
    content = report(tmp_path, folder)
    alts = re.findall(r'<img[^>]* alt="([^"]*)"', content)
    for start, count in (
        ("radar", 1),
        ("accuracy over the stream", len(OOD)),
        ("calibration error", 1),
        ("over coverage", 1),
        ("ablation of capacity", 1),
        ("ablation of reading", 1),
    ):
        assert sum(alt.startswith(start) for alt in alts) == count, start
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)", content)
    for word in (
        "OOD benchmark, ViT-B-16",
        "SOBA †",
        "Efficiency, made-up: 100 images, 4 classes",
        "quoted min †",
        "<i>13.8</i>",
        "Environment",
        "numpy",
        "2.1.0",
        "alpha=15.0",
    ):
        assert word in content
    assert "warning" not in content.split("</style>")[1]


def test_a_joined_stream_is_one_line_over_the_stream_and_a_column_a_domain(tmp_path):
    domains = {"icons-source": 60.0, "icons-sketch": 40.0, "icons-v2": 20.0}
    more = {"benchmark": "icons", "model": "tiny", "order": "sequence"}
    records = [
        record(method, "icons-all", accuracy_per_domain=domains, **more)
        for method in ("zero-shot", "soba")
    ]
    content = report(tmp_path, write(tmp_path / "r", records))
    alts = re.findall(r'<img[^>]* alt="(accuracy over[^"]*)"', content)
    assert alts == [
        "accuracy over the stream, all domains, Icon domains, tiny, 3 domains in sequence"
    ]
    assert all(f"<th>{name}</th>" in content for name in (*domains, "average", "ood-average"))
    assert "icons-all" not in content and "<b>3</b>data sets" in content


def test_damaged_records_are_named_at_the_top_and_left_out(tmp_path):
    folder = write(tmp_path / "results", [record(seed=s) for s in range(3)])
    whole = json.dumps(as_json(seed=7))
    for name, content in (
        ("half.json", whole[: len(whole) // 2].encode()),
        ("empty.json", b""),
        ("bytes.json", b"\xff\xfe\x00"),
        ("list.json", b"[]"),
        ("no-accuracy.json", json.dumps(as_json() | {"accuracy": None}).encode()),
        ("beyond.json", json.dumps(as_json() | {"accuracy": 430.0}).encode()),
        ("domain.json", json.dumps(as_json() | {"accuracy_per_domain": {"a": "b"}}).encode()),
        ("no-domain.json", json.dumps(as_json() | {"accuracy_per_domain": [60.0]}).encode()),
        ("nan.json", json.dumps(as_json() | {"accuracy": float("nan")}).encode()),
    ):
        (folder / "records" / name).write_bytes(content)
    (folder / "ablations").mkdir()
    (folder / "ablations" / "alpha.csv").write_text("ablation,file\n")
    (folder / "efficiency-half.json").write_text('{"costs": ')
    results = read_results(folder)
    assert len(results.records) == 3
    assert len(results.problems) == 11
    content = report(tmp_path, folder)
    top = content[: content.index("<h2>")]
    for name in ("half", "empty", "bytes", "list", "no-accuracy", "beyond", "domain", "nan"):
        assert f"records/{name}.json" in top
    assert "ablations/alpha.csv" in top and "efficiency-half.json" in top
    assert str(tmp_path) not in content


def test_repeated_cells_count_once(tmp_path):
    folder = write(tmp_path, [record(accuracy=50.0), record(accuracy=60.0), record(seed=1)])
    results = read_results(folder)
    assert sorted(r.accuracy for r in results.records) == [60.0, 60.0]
    assert "repeat a cell" in results.problems[0]


def test_the_papers_capacities_are_quoted_below_ours(tmp_path):
    settings = ("2", "4", "6", "8", "16", "32", "full")
    rows = [
        ablate.Row("capacity", file, "soba", setting, 0, 45.0, 5.0, 0.1)
        for file in ("dtd-ViT-B-16", "mine")
        for setting in settings
    ]
    folder = write(tmp_path / "r", [record()])
    (folder / "ablations").mkdir()
    ablate.write_csv(folder / "ablations" / "capacity.csv", rows)
    content = report(tmp_path, folder)
    below = content[content.index("capacity ablation (quoted)") :]
    assert "<th>16 †</th>" in below and "<td>dtd</td>" in below and "<i>46.87</i>" in below
    points = ablate.summarise(rows)["dtd-ViT-B-16"]
    figure = ablation_plots.figure("capacity", "dtd-ViT-B-16", points)
    printed = {
        row.setting.split("=")[1]: row.value for row in quoted(table="capacity", dataset="dtd")
    }
    report_plots.add_quoted(figure, printed)
    line = figure.axes[0].lines[-1]
    assert list(line.get_xdata()) == list(range(7)) and line.get_ydata()[4] == 46.87
    assert "quoted" in line.get_label()
    close(figure)


def test_tuned_on_test_labels_is_said_in_red(tmp_path):
    folder = write(tmp_path / "r", [record(), record("ncm", tuned_on="test labels", accuracy=70.0)])
    content = report(tmp_path, folder)
    assert re.search(r'<p class="bad"><b>1 of these records were tuned on test labels', content)
    assert '<span class="bad">test labels</span>' in content
    assert "--bad: #c0392b" in content


def test_names_are_escaped(tmp_path):
    folder = write(tmp_path / "r", [record(dataset="<script>alert(1)</script>", benchmark="a<b")])
    content = report(tmp_path, folder)
    assert "<script>" not in content and "&lt;script&gt;" in content


def test_file_of_eval_and_tables_for_a_paper(tmp_path):
    images, labels, text = example_stream(n=80, classes=4, width=8)
    features = soba.FeatureSet(images, text, labels=labels)
    features.save(tmp_path / "some.safetensors")

    def run(*arguments, code=0):
        command = [sys.executable, "-m", "soba.cli", *map(str, arguments)]
        env = os.environ | {"COLUMNS": "120", "PYTHONPATH": str(Path(soba.__file__).parents[1])}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    run("eval", "some.safetensors", "--orders", 2, "--json", "eval.json")
    out = run("report", "eval.json", "-o", "r.html", "--markdown", "r.md", "--latex", "r.tex")
    count = 2 * len(soba.list_methods(family="stream"))
    assert f"{count} records in r.html, r.md, r.tex" in out
    assert "| SOBA+ |" in (tmp_path / "r.md").read_text()
    assert r"\toprule" in (tmp_path / "r.tex").read_text()
    out = run("ablate", "capacity", "some.safetensors", "--orders", 1)
    assert "zero-shot" in out and "full" in out
    assert {path.name for path in (tmp_path / "ablations").glob("[!.]*")} == {
        "capacity.csv",
        "capacity.png",
        "capacity.svg",
    }
    (tmp_path / "empty").mkdir()
    for arguments, problem in (
        (["report", "none"], "no such file or folder"),
        (["report", "empty"], "holds no records"),
        (["report", "r.md"], "not whole JSON"),
        (["report", "eval.json", "-o", "no/r.html"], "folder does not exist"),
        (["ablate", "size", "some.safetensors"], "no ablation 'size'"),
        (["ablate", "alpha", "none.npz"], "no such file"),
    ):
        assert problem in run(*arguments, code=2)


def test_markdown_says_what_was_left_out(tmp_path):
    folder = write(tmp_path / "r", [record()])
    (folder / "records" / "half.json").write_text("{")
    write_tables(tmp_path / "r.md", read_results(folder), "markdown")
    assert (
        (tmp_path / "r.md")
        .read_text()
        .startswith("**Left out of these tables:**\n\n- records/half")
    )


@pytest.mark.long
def test_ten_thousand_records_in_under_twenty_seconds(tmp_path):
    methods = ["zero-shot", "ncm", "soba", "soba+", "tda", "gda", "tip-adapter", "mta"]
    records = []
    for benchmark in BENCHMARKS:
        for model in ("RN50", "ViT-B-16", "tiny"):
            for order in ("shuffled", "sorted", "mixed"):
                more = {"benchmark": benchmark, "model": model, "order": order}
                datasets = OOD if benchmark != "cross" else [f"set {k}" for k in range(10)]
                records += grid(methods, datasets, seeds=7, **more)
    assert len(records) >= 10_000
    folder = write(tmp_path / "r", records)
    start = time.process_time()  # a busy machine stretches the clock on the wall
    report(tmp_path, folder)
    assert time.process_time() - start < 20
