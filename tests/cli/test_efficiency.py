"""`soba bench efficiency` on icons and on files, with and without torch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_clip  # noqa: F401  # makes open_clip importable
from run_cli import refused, soba_command

import soba
from soba.cli import efficiency
from soba.report.read import read_results
from soba.testing import example_stream

QUICK = ("--repeats", 1, "--threads", 1)


def methods_in(path):
    [measured] = read_results(path).costs
    return {cost.method: cost.images for cost in measured.costs}


@pytest.fixture
def views(icon_folder, tmp_path):
    """Ten views of twenty icons, by the tiny CLIP."""
    path = tmp_path / "views.safetensors"
    soba_command("embed", icon_folder, "--views", 10, "-o", path, "--threads", 1)
    return path


def test_the_papers_table_on_icons(tmp_path):
    path = tmp_path / "efficiency.json"
    printed = soba_command(
        "bench", "efficiency", "--per-class", 1, "--views", 10, *QUICK, "-o", path
    )
    assert methods_in(path) == {"zero-shot": 224, "tpt": 16, "tda": 224, "soba": 224}
    assert "difftpt left out: icons-source: difftpt needs views from a diffusion" in printed
    [measured] = read_results(path).costs
    zero_shot, tpt, *_ = measured.costs
    assert tpt.encode / tpt.images == pytest.approx(10 * zero_shot.encode / zero_shot.images)
    totals = [(cost.encode + cost.adapt) / cost.images for cost in (tpt, zero_shot)]
    assert tpt.total_ratio == pytest.approx(totals[0] / totals[1])
    assert "64.17" in printed


def test_methods_that_tune_on_a_file(views, tmp_path):
    path = tmp_path / "efficiency.json"
    methods = ("--methods", "zero-shot,tpt,mta")
    command = ("bench", "efficiency", views, *methods, *QUICK)
    soba_command(*command, "--model", "tiny", "-o", path)
    assert methods_in(path) == {"zero-shot": 20, "tpt": 16, "mta": 20}
    assert "say with --model and --pretrained" in refused(*command)
    printed = soba_command("bench", "efficiency", views, *QUICK)
    assert "tpt left out" in printed and "say with --model" in printed


def test_everything_is_checked_first(views):
    said = refused(
        "bench", "efficiency", views, "--model", "tiny", "--methods", "soba,tip-adapter,difftpt"
    )
    assert "tip-adapter needs labelled training samples" in said and "difftpt needs views" in said
    said = refused("bench", "efficiency", views, "--views", 64)
    assert "views.safetensors has the views it has" in said
    said = refused("bench", "efficiency", "--per-class", 1, "--views", 4, "--methods", "tpt")
    assert "icons-source: tpt needs views" in said and "this file has 4 views" in said


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        (["--model", "RN50"], "openai"),
        (["--model", "ViT-B-16"], "openai"),
        (["--model", "RN50", "--pretrained", "random"], "random"),
        (["--model", "ViT-B-32"], None),
        ([], None),
    ],
)
def test_weights_of_the_papers_models(options, weights, monkeypatch):
    asked = []

    def load(model, pretrained, **options):
        asked.append(pretrained)
        raise ValueError("far enough")

    monkeypatch.setattr(efficiency, "load_encoder", load)
    assert "far enough" in refused("bench", "efficiency", *options)
    assert asked == [weights]


def test_without_torch_what_needs_it_is_left_out():
    code = "import sys; sys.modules['torch'] = None; from soba.cli import main; main()"
    arguments = ("bench", "efficiency", "--per-class", 1, *QUICK)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "160", "PYTHONPATH": str(Path(soba.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert "TDA" in done.stdout and "SOBA" in done.stdout and "TPT" not in done.stdout
    assert "tpt left out: needs torch and open_clip" in done.stderr


def test_names_are_shown_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, labels, text = example_stream(n=60, classes=4, width=8)
    np.savez("pets[val].npz", image_features=images, text_features=text, labels=labels)
    Path("[red]").mkdir()
    printed = soba_command("bench", "efficiency", "pets[val].npz", *QUICK, "-o", "[red]/e.json")
    assert "pets[val]: 60 images, 4 classes" in printed
    assert "costs in [red]/e.json" in printed
    assert "tpt left out: pets[val].npz: tpt needs views" in printed
