"""The numbers in docs/ablations.md are those that the documented command measures."""

import re

import pytest
from conftest import ROOT

import soba
from soba.bench.ablate import ablate, summarise

COLUMN = {"clip_rn50": 0, "clip_vitb32": 1}


def documented(section):
    """Label -> the means of its row in a section's table."""
    text = (
        (ROOT / "docs" / "ablations.md").read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    )
    rows = re.findall(r"^\| ([^|]*?)(?: \(.*?\))? \|(.*)\|$", text, re.MULTILINE)
    numbers = {label: re.findall(r"(\d+\.\d+)\** ", cells + " ") for label, cells in rows}
    return {label: list(map(float, found)) for label, found in numbers.items() if found}


def test_the_documented_capacities(whurs19):
    [points] = summarise(ablate("capacity", soba.FeatureSet.load(whurs19))).values()
    told = documented("Capacity")
    own = [point for point in points if point.line == "soba"]
    assert len(own) == 7
    for point in own:
        # A sample or two may fall the other way on another machine.
        assert told[point.setting][COLUMN[whurs19.stem]] == pytest.approx(point.mean, abs=0.1)
