"""The command that takes terms of SOBA+ away: it takes them away, puts them back and adds up."""

import csv
import importlib.util
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import soba
import soba.testing

COMMAND = Path(__file__).parent.parent / "perf" / "soba_plus_ablation.py"
_spec = importlib.util.spec_from_file_location("soba_plus_ablation", COMMAND)
ablation = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ablation)


def in_modules():
    return {(m, name): value for m in ablation.MODULES for name, value in vars(m).items()}


def all_patched(patches):
    stack = ExitStack()
    for patch in patches():
        stack.enter_context(patch)
    return stack


def answers():
    """A stream in which each term tells: classes that never come, sorted, with near-copies."""
    images, labels, text = soba.testing.example_stream(n=240)
    present = labels < 4
    images = np.repeat(images[present][np.argsort(labels[present])], 2, axis=0)
    return soba.SOBAPlus(text, logit_scale=20.0).adapt(images)


@pytest.mark.parametrize("term", ablation.PARTS["terms"])
def test_each_term_tells_and_is_put_back(term):
    plain, before = answers(), in_modules()
    with all_patched(ablation.PARTS["terms"][term]):
        assert np.abs(answers() - plain).max() > 1e-3
    assert in_modules() == before


@pytest.mark.parametrize("name", ablation.PARTS["constants"] | ablation.PARTS["sizes"])
def test_constants_change_wherever_they_are_held_and_are_put_back(name):
    constant, value = name.split(",")[0].split(" = ")
    before = in_modules()
    with all_patched((ablation.PARTS["constants"] | ablation.PARTS["sizes"])[name]):
        now = in_modules()
    changed = {key for key in before if now[key] is not before[key]}
    assert changed == {key for key in before if key[1] == constant} != set()
    assert all(now[key] == pytest.approx(float(value)) != before[key] for key in changed)
    assert in_modules() == before


def test_gaussians_that_are_remembered_are_those_of_the_model():
    plain = answers()
    with ablation.mock.patch.object(ablation.fit, "fit_gaussians", ablation.gaussians):
        assert (answers() == plain).all() and (answers() == plain).all()


def test_families_count_alike():
    def run(family, name, change):
        scores = {"zero-shot": 40.0, "SOBA+": 50.0, "other": 50.0 + change}
        return family, name, "few", 0, scores

    runs = [run("a", "1", 1.0), run("a", "2", 3.0), run("a", "2", 5.0), run("b", "3", -8.0)]
    *_, row = ablation.table(runs, {"other": list})
    assert row == "| other | -2.75 | -8.00 (b) | -8.00 (b, few) | +2.50 (a, few) |"


def test_the_command_prints_a_table_for_each_part(tmp_path):
    images, labels, text = soba.testing.example_stream(n=120)
    (tmp_path / "drawn").mkdir()
    arrays = {"image_features": images, "text_features": text, "labels": labels}
    np.savez(tmp_path / "drawn" / "small.npz", logit_scale=20.0, **arrays)
    options = ["--orders", "1", "--regimes", "shuffled,few", "--csv", tmp_path / "all.csv"]
    run = subprocess.run(
        [sys.executable, COMMAND, *options],
        env=os.environ | {"SOBA_REAL_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    variants = [name for part in ablation.PARTS.values() for name in part]
    rows = [line.split(" | ") for line in run.stdout.splitlines() if "drawn" in line]
    assert sorted(row[0] for row in rows) == sorted(f"| {n}" for n in [*variants, *["SOBA+"] * 3])
    with (tmp_path / "all.csv").open() as file:
        right = {(r["regime"], r["variant"]): float(r["accuracy"]) for r in csv.DictReader(file)}
    assert len(right) == 2 * (len(variants) + 2)
    for name, *cells in rows:
        name, against = name[2:], "zero-shot" if name == "| SOBA+" else "SOBA+"
        for regime, cell in zip(("shuffled", "few"), cells, strict=False):
            difference = right[regime, name] - right[regime, against]
            assert float(cell) == pytest.approx(difference, abs=0.006)
