"""The command as a person runs it: in a process of its own."""

import json
import subprocess
import sys

import numpy as np
import pytest

import soba
from soba.bench.evaluate import transduces
from soba.cli.stress import _stress_table
from soba.studies.scenarios import names_of
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=120, classes=5, width=12)


def run(*arguments, code=0):
    command = [sys.executable, "-m", "soba.cli", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"COLUMNS": "120", "PATH": ""}
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "features.npz"
    np.savez(path, image_features=FEATURES, text_features=TEXT, labels=LABELS)
    return path


def test_the_logarithm_of_a_logit_scale_is_told_once_in_a_line(tmp_path):
    path = tmp_path / "features.npz"
    arrays = {"image_features": FEATURES, "text_features": TEXT, "labels": LABELS}
    np.savez(path, **arrays, logit_scale=np.float32(4.6052))
    lines = [line for line in run("eval", path, "--orders", 1).splitlines() if "arning" in line]
    assert len(lines) == 1 and lines[0].startswith("warning: a logit scale of 4.6052")
    assert lines[0].endswith("give exp(4.6052) = 100")
    np.savez(path, **arrays, logit_scale=np.float32(0.5))
    message = run("eval", path, code=2)
    assert str(path) in message and "logit_scale must be 1 at least, not 0.5" in message


def test_eval_prints_a_table_and_writes_records(file, tmp_path):
    out = run("eval", file, "--orders", 2, "--json", tmp_path / "out.json")
    for word in (
        "zero-shot",
        "ncm",
        "soba",
        "tda",
        "top-1",
        "gain",
        "calibration error",
        "seconds",
    ):
        assert word in out
    content = json.loads((tmp_path / "out.json").read_text())
    assert len(content["records"]) == 2 * len(soba.list_methods(family="stream"))
    assert {"method", "seed", "accuracy", "seconds"} <= set(content["records"][0])
    by_method = {row["method"]: row for row in content["summary"]}
    assert f"{by_method['soba']['accuracy_mean']:.2f}" in out
    assert all(0 <= record["accuracy"] <= 100 for record in content["records"])
    params = next(r for r in content["records"] if r["method"] == "soba")["hyper_parameters"]
    assert (params["capacity"], params["alpha"], params["refresh"], params["total"]) == (
        16,
        15.0,
        "tenths",
        120,
    )


def test_the_expected_accuracy_stands_beside_the_true_one(file, tmp_path):
    path = tmp_path / "out.json"
    out = run("eval", file, "--methods", "zero-shot,soba,soba+", "--orders", 3, "--json", path)
    content = json.loads(path.read_text())
    estimates = {}
    for record in content["records"]:
        estimates.setdefault(record["method"], []).append(record["expected_accuracy"])
    assert estimates["zero-shot"] == estimates["soba"] == [None] * 3
    for estimate in estimates["soba+"]:
        assert estimate.keys() == {"zero_shot", "adapted"}
        assert 0.0 < estimate["zero_shot"] <= estimate["adapted"] <= 100.0
    rows = {row["method"]: row for row in content["summary"]}
    assert rows["soba"]["expected_accuracy"] is None
    mean = rows["soba+"]["expected_accuracy"]
    for name in ("zero_shot", "adapted"):
        assert mean[name] == pytest.approx(sum(e[name] for e in estimates["soba+"]) / 3)
    plain, adapted = (rows[name]["accuracy_mean"] for name in ("zero-shot", "soba+"))
    line = (
        f"soba+: CLIP alone is expected to be right on {mean['zero_shot']:.0f}%, adapted on "
        f"{mean['adapted']:.0f}% (estimated without labels); "
    )
    lines = [each for each in out.splitlines() if "CLIP alone" in each]
    assert lines == [line + f"by the labels: {plain:.0f}% and {adapted:.0f}%"]
    assert out.rstrip().endswith(lines[0])
    alone = run("eval", file, "--methods", "soba+", "--orders", 3)
    assert alone.rstrip().endswith(line + f"by the labels, adapted: {adapted:.0f}%")
    assert "CLIP alone" not in run("eval", file, "--methods", "soba", "--orders", 1)
    at_once = run("eval", file, "--methods", "soba+", "--transductive", "--orders", 1)
    assert "CLIP alone" not in at_once


def test_eval_options_reach_the_methods(file, tmp_path):
    path = tmp_path / "out.json"
    run(
        "eval",
        file,
        "--methods",
        "soba,tda",
        "--orders",
        1,
        "--alpha",
        3,
        "--beta",
        2,
        "--capacity",
        4,
        "--reading",
        "gda",
        "--refresh",
        10,
        "--json",
        path,
    )
    soba_record, tda_record = json.loads(path.read_text())["records"]
    params = soba_record["hyper_parameters"]
    assert (params["alpha"], params["capacity"], params["reading"], params["refresh"]) == (
        3.0,
        4,
        "gda",
        10,
    )
    params = tda_record["hyper_parameters"]
    assert (params["alpha"], params["beta"], params["capacity"]) == (3.0, 2.0, 4)
    run(
        "eval",
        file,
        "--methods",
        "soba",
        "--orders",
        1,
        "--capacity",
        "full",
        "--refresh",
        "growth",
        "--json",
        path,
    )
    assert json.loads(path.read_text())["records"][0]["hyper_parameters"]["capacity"] is None


def test_eval_few_shot(file, tmp_path):
    path = tmp_path / "out.json"
    run(
        "eval",
        file,
        "--methods",
        "gda,tip-adapter",
        "--orders",
        1,
        "--support",
        file,
        "--val",
        file,
        "--json",
        path,
    )
    assert [r["tuned_on"] for r in json.loads(path.read_text())["records"]] == ["validation"] * 2


def test_bad_input_is_one_line_and_exit_code_2(file, tmp_path):
    for arguments, problem in (
        (["eval", tmp_path / "none.npz"], "no such file"),
        (["eval", file, "--methods", "sobba"], "Did you mean 'soba'"),
        (["eval", file, "--methods", ","], "--methods is empty"),
        (["eval", file, "--methods", "soba,soba"], "twice"),
        (["eval", file, "--methods", "gda"], "--support FILE"),
        (["eval", file, "--reading", "loose"], "reading must be one of"),
        (["eval", file, "--refresh", "hourly"], "--refresh takes"),
        (["eval", file, "--capacity", "0"], "--capacity takes"),
        (["eval", file, "--methods", "zero-shot", "--alpha", "3"], "none of zero-shot has a alpha"),
        (["eval", file, "--json", tmp_path / "no" / "out.json"], "folder does not exist"),
        (["eval", file, "--orders", "0"], "--orders"),
        (["eval"], "Missing argument"),
        (["evaluate"], "No such command"),
    ):
        assert problem in run(*arguments, code=2)
    spoiled = FEATURES.copy()
    spoiled[3] = np.nan
    np.savez(tmp_path / "nan.npz", image_features=spoiled, text_features=TEXT, labels=LABELS)
    out = run("eval", tmp_path / "nan.npz", code=2)
    assert "nan.npz" in out
    assert "row 3" in out


def test_eval_unsure_and_its_curve(file, tmp_path):
    out = run(
        "eval", file, "--orders", 1, "--min-confidence", 0.5, "--curve", tmp_path / "curve.png"
    )
    assert "answered" in out
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_stress_prints_writes_and_draws(file, tmp_path):
    json_path, plot = tmp_path / "out.json", tmp_path / "map.png"
    names = "2 per class,sorted"
    out = run("stress", file, "--scenarios", names, "--json", json_path, "--plot", plot)
    for word in ("zero-shot", "tda", "soba", "soba+", "sorted", "average", "2 of 20"):
        assert word in out
    plan = "2 scenarios x 4 methods x 20 orders: 160 streams, 10,400 rows"
    assert out.index(plan) < out.index(" in all, by the first order of sorted")
    assert "Expected Tail Accuracy" in out and "worst tenth" in out
    content = json.loads(json_path.read_text())
    assert len(content["records"]) == 2 * 20 * 4
    for row in content["summary"]:
        assert row["tail_orders"] == 2
        assert f"{row['expected_tail_accuracy']:.2f}" in out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "no scenario 'monday'" in run("stress", file, "--scenarios", "monday", code=2)
    assert "learns from labels" in run("stress", file, "--methods", "gda", "--plot", plot, code=2)


def test_stress_quickly_and_on_whole_sets(file, tmp_path):
    plot = tmp_path / "map.png"
    out = run("stress", file, "--quick", "--methods", "ncm", "--plot", plot)
    assert "4 scenarios x 2 methods x 3 orders: 24 streams" in out
    assert all(name in out for name in ("shuffled", "quarter", "sorted", "bursts 0.1"))
    out = run("stress", file, "--quick", "--orders", 1, "--scenarios", "bursts", "--plot", plot)
    assert "2 scenarios x 4 methods x 1 order: 8 streams, 960 rows" in out
    assert "bursts 0.01" in out and "1 of 1" in out
    out = run("stress", file, "--transductive", "--quick", "--plot", plot)
    able = sum(transduces(name) for name in soba.list_methods())
    assert f"3 scenarios x {able + 1} methods x 1 to 3 orders" in out
    assert "batches of 4" in out and "transclip" in out
    assert "tda cannot see" in run("stress", file, "--transductive", "--methods", "tda", code=2)


def test_the_help_of_stress_says_what_the_regimes_are():
    text = " ".join(run("stress", "--help").split())
    for name in names_of(None):
        assert name.split()[0] in text
    for words in ("Expected Tail Accuracy", "worst tenth of the orders", "--quick", "--orders"):
        assert words in text


def test_bold_in_the_table_of_stress_is_the_best_of_a_row():
    def row(scenario, method, gain):
        more = {"scored": 38, "accuracy_mean": 70.0 + gain, "gain_worst": gain - 1}
        error = {"calibration_error": 5.0 - gain}
        return {"scenario": scenario, "method": method, "gain": gain} | more | error

    gains = {"a": (0.0, -9.0, 2.04), "b": (0.0, 3.0, 2.96), "c": (0.0, -1.0, -0.5)}
    methods = ["zero-shot", "soba", "soba+"]
    summary = [
        row(name, method, gain)
        for name, scenario_gains in gains.items()
        for method, gain in zip(methods, scenario_gains, strict=True)
    ]
    table = _stress_table(summary, methods, list(gains), "title")
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    bold = [[cell[6:-3] for cell in cells if cell.startswith("[bold]")] for cells in rows]
    # Equal digits are equally good; where all lose, zero-shot is the best.
    assert bold == [["+2.0/+1.0"], ["+3.0/+2.0", "+3.0/+2.0"], ["70.00"], ["+1.50"], ["3.50"]]


def test_without_matplotlib_stress_says_so_before_it_works(file):
    code = "import sys; sys.modules['matplotlib'] = None; from soba.cli import main; main()"
    command = [sys.executable, "-c", code, "stress", str(file), "--methods", "ncm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'soba-tta" in done.stderr
    assert "Traceback" not in done.stderr


def test_methods_and_help():
    out = run("methods")
    assert all(name in out for name in soba.list_methods())
    assert "few-shot labels" in out
    assert soba.__version__ in run("--version")
    help_text = run("eval", "--help")
    assert all(
        option in help_text
        for option in ("--methods", "--orders", "--alpha", "--reading", "--json")
    )
