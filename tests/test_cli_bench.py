"""`soba bench` as a person runs it: in a process of its own, killed without warning."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from image_trees import Pictures, coop_tree, generated_split, imagenet_tree
from killed import killed_at

from soba.datasets.icons import DOMAINS, drawings_of
from soba.report.read import read_results

LIVE = [f"icons-{name}" for name in DOMAINS if drawings_of(name)]  # domains that have drawings
ENV = {"COLUMNS": "160", "PATH": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def command(*arguments):
    return [sys.executable, "-m", "soba.cli", "bench", *map(str, arguments)]


def run(*arguments, code=0):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, env=ENV)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def records(results: Path):
    """All records, without the seconds, by file name."""
    by_file = {}
    for path in (results / "records").glob("*.json"):
        record = json.loads(path.read_text())
        by_file[path.name] = {k: v for k, v in record.items() if "seconds" not in k}
    return by_file


def killed_and_undisturbed(tmp_path, options, half):
    """Records of a run killed while encoding and again half way, and of a quiet one."""
    killed, quiet = tmp_path / "killed", tmp_path / "quiet"
    arguments = ("icons", "-o", killed, *options)
    killed_at(killed, "features/*.partial", 1, "bench", *arguments, env=ENV)
    assert not records(killed)
    killed_at(killed, "records/*.json", half, "bench", *arguments, env=ENV)
    so_far = records(killed)
    assert len(so_far) == half
    run(*arguments)
    run("icons", "-o", quiet, *options)
    whole = records(killed)
    assert so_far.items() <= whole.items()  # nothing was done again
    assert whole == records(quiet)
    return whole


def test_killed_runs_go_on_and_end_like_undisturbed_ones(tmp_path):
    options = ["--datasets", ",".join(LIVE[1:3]), "--per-class", 1, "--orders", 3]
    options += ["--methods", "zero-shot,ncm,soba+", "--threads", 1]
    whole = killed_and_undisturbed(tmp_path, options, half=9)
    assert len(whole) == 2 * 3 * 3


@pytest.mark.long
def test_the_whole_icon_benchmark_in_ten_minutes(tmp_path):
    options = ["--datasets", ",".join(LIVE), "--views", 5, "--orders", 5]
    start = time.perf_counter()
    run("icons", "-o", tmp_path / "timed", *options)
    assert time.perf_counter() - start < 600
    whole = killed_and_undisturbed(tmp_path, options, half=len(LIVE) * 24)
    assert whole == records(tmp_path / "timed")
    assert len({record["method"] for record in whole.values()}) == 12
    assert len(whole) == len(LIVE) * (9 * 5 + 3)  # three take each image by itself


def test_the_table_and_test_labels_in_red(tmp_path):
    options = ["--datasets", ",".join(LIVE[:3]), "--per-class", 1, "--orders", 2, "-o", tmp_path]
    out = run("icons", *options, "--methods", "zero-shot,tda")
    words = (*LIVE[:3], "zero-shot", "TDA", "average", "ood-average", "±", "over 2 orders")
    assert all(word in out for word in words)
    assert "warning" not in out and "quoted" not in out
    out = run("icons", *options, "--methods", "zero-shot,tda", "--tune-on", "test")
    assert "red numbers (‡) were tuned on the test labels" in out and "(TDA (tuned on" in out
    assert "no data set 'icons-moon'" in run("icons", "--datasets", "icons-moon", code=2)


@pytest.fixture
def pictures(tmp_path):
    return Pictures(tmp_path)


def test_wrong_trees_are_all_named_before_any_encoding(tmp_path, pictures):
    root, results = tmp_path / "data", tmp_path / "results"
    coop_tree(root, pictures, "dtd", generated_split("dtd"))
    images = coop_tree(root, pictures, "pets", generated_split("pets"))
    for path in list(images.rglob("*.jpg"))[:3]:
        path.rename(path.with_suffix(".jpeg"))
    tiny = ("--model", "tiny", "-o", results)
    out = run("cross", "--data", root, "--datasets", "dtd,pets,eurosat", *tiny, code=2)
    assert "nothing was encoded" in out
    assert "dtd: " in out and "pets: " in out and "eurosat: " in out
    assert not results.exists()
    v2 = imagenet_tree(
        tmp_path / "ood", pictures, "imagenet-v2", images=3, folders=("0", "1", "n01440764")
    )
    assert v2.is_dir()
    out = run(
        "ood", "--data", tmp_path / "ood", "--datasets", "imagenet-v2,imagenet-r", *tiny, code=2
    )
    assert "imagenet-v2: " in out and "imagenet-r: " in out
    assert "--data must be the folder" in run("ood", *tiny, code=2)
    out = run("ood", "--data", root, "--tune-on", "val", *tiny, code=2)
    assert "has only a test split" in out


def test_efficiency(tmp_path):
    file = tmp_path / "efficiency.json"
    options = ["--per-class", 1, "--repeats", 1, "--methods", "zero-shot,soba", "-o", file]
    out = run("efficiency", *options)
    assert all(word in out for word in ("adapt ratio", "encode ms", "quoted min †", "13.8"))
    [measured] = read_results(file).costs
    assert [cost.method for cost in measured.costs] == ["zero-shot", "soba"]
    assert read_results(tmp_path).costs == [measured]
    options = ["--datasets", LIVE[1], "--per-class", 1, "--methods", "zero-shot", "-o", tmp_path]
    run("icons", *options)
    [file] = (tmp_path / "features").glob("*.safetensors")
    out = run("efficiency", file, "--repeats", 1)
    assert "166 images" in out and "tpt left out" in out
