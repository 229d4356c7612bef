import csv

import numpy as np
import pytest

import soba
from soba.bench.evaluate import evaluate
from soba.report import ablation_plots
from soba.studies import ablate
from soba.testing import example_stream

IMAGES, LABELS, TEXT = example_stream(n=160, classes=5, width=12)
SET = soba.FeatureSet(IMAGES, TEXT, 20.0, LABELS)


@pytest.mark.parametrize("name", ablate.ABLATIONS)
def test_a_row_per_setting_and_seed(name):
    rows = ablate.ablate(name, SET, orders=2)
    settings = ablate.ABLATIONS[name].settings
    expected = [(s.line, s.label, seed) for s in settings for seed in (0, 1)]
    assert [(row.line, row.setting, row.seed) for row in rows] == expected


def test_settings_are_those_of_the_paper():
    def labels(name, line):
        return [s.label for s in ablate.ABLATIONS[name].settings if s.line == line]

    assert labels("capacity", "soba") == ["2", "4", "6", "8", "16", "32", "full"]
    assert {"0", "15"} <= set(labels("alpha", "soba"))
    assert labels("classifier", "classifier") == [
        *(f"{metric}, CLIP's space" for metric in ("L1", "L2", "cosine")),
        *(f"{metric}, to mu_hat" for metric in ("L1", "L2", "linear")),
    ]
    assert len(labels("reading", "reading")) == 5


def test_settings_reach_the_method():
    rows = {(r.line, r.setting): r for r in ablate.ablate("alpha", SET, orders=1)}
    assert rows["soba", "0"].accuracy == rows["zero-shot", "zero-shot"].accuracy
    [record] = evaluate(SET, ["soba"], orders=1, overrides={"alpha": 15.0})
    assert rows["soba", "15"].accuracy == record.accuracy
    rows = {r.setting: r for r in ablate.ablate("classifier", SET, orders=1)}
    [record] = evaluate(SET, ["ncm"], orders=1, overrides={"metric": "l1"})
    assert rows["L1, CLIP's space"].accuracy == record.accuracy


def test_too_many_refreshes_are_left_out_by_name():
    kept, left_out = ablate.settings_for("refresh", 30_000)
    assert [s.label for s in left_out] == ["every 10", "every sample"]
    assert "every 100" in [s.label for s in kept]
    assert ablate.settings_for("refresh", 1_000)[1] == []
    with pytest.raises(ValueError, match="no ablation 'size'; there are: capacity, alpha"):
        ablate.settings_for("size", 10)


def test_csv_comes_back_and_damage_is_named(tmp_path):
    rows = ablate.ablate("reading", SET, orders=2)
    path = tmp_path / "reading.csv"
    ablate.write_csv(path, rows)
    assert ablate.read_csv(path) == rows
    whole = path.read_text()
    for spoiled in ("", "a,b\n1,2\n", whole[: len(whole) // 2], whole.replace("reading,", "x,")):
        path.write_text(spoiled)
        with pytest.raises(ValueError, match=r"reading\.csv"):
            ablate.read_csv(path)


def test_summary_and_pictures(tmp_path):
    rows = ablate.ablate("capacity", SET, orders=3)
    [(file, points)] = ablate.summarise(rows).items()
    scores = [r.accuracy for r in rows if (r.line, r.setting) == ("ncm", "full")]
    [full] = [p for p in points if (p.line, p.setting) == ("ncm", "full")]
    assert (full.mean, full.std) == pytest.approx((np.mean(scores), np.std(scores, ddof=1)))
    png, svg = ablation_plots.write_pictures(tmp_path, "capacity", {file: points, "other": points})
    assert png.read_bytes().startswith(b"\x89PNG") and b"<svg" in svg.read_bytes()
    with (tmp_path / "capacity.csv").open("w") as file:  # the CSV's columns are what it says
        csv.writer(file).writerow(ablate.Row.__dataclass_fields__)
    with pytest.raises(ValueError, match="no results"):
        ablate.read_csv(tmp_path / "capacity.csv")
