"""The demo end to end: pixels, tiny CLIP, streams, the page; and what it must show."""

from __future__ import annotations

import json
import re

import pytest
from run_cli import refused, soba_command

from soba.datasets.icons import DOMAINS, SHIFTED
from soba.encode.onnx import OnnxEncoder
from soba.studies.demo import METHODS, averages, run_demo


def test_a_small_demo_prints_its_table_and_writes_a_whole_page(tmp_path):
    page, records = tmp_path / "demo.html", tmp_path / "demo.json"
    printed = soba_command("demo", "-o", page, "--json", records, "--per-class", 2, "--orders", 2)
    for word in (*DOMAINS, *METHODS, "gain", "images/s"):
        assert word in printed
    html = page.read_text()
    for title in (
        "Accuracy over the stream",
        "Put right, and put wrong",
        "before and after the rotation",
        "The queue of a few classes",
    ):
        assert title in html
    assert html.count("<img") > 20 and not re.search(r'src(?:set)?="(?!data:)', html)
    assert html.count('alt="accuracy over the stream') == len(DOMAINS)  # a picture each
    content = json.loads(records.read_text())
    assert len(content["records"]) == len(DOMAINS) * len(METHODS) * 2
    gains = {
        row["dataset"].removeprefix("icons-"): row["gain"]
        for row in content["summary"]
        if row["method"] == "soba+"
    }
    best = max(SHIFTED, key=gains.get)
    assert f"its examples are of {best}, the shifted domain that SOBA+ gains most on" in printed
    assert f"on {best}</h2>" in html and f"are of {best}, because SOBA+ gains most there" in html
    for name in set(SHIFTED) - {best}:
        assert f"{gains[name]:+.2f} on {name}" in html
    for row in re.findall("<tr.*?</tr>", html)[1 : len(DOMAINS) + 2]:
        scores = re.findall(r'<span class="(.*?)">(.*?)</span>', row)
        assert len(scores) == len(METHODS)
        best_of_row = max(float(score) for _, score in scores)
        assert all((kind == "best") == (float(score) == best_of_row) for kind, score in scores)


def test_a_report_that_cannot_be_written_is_said_before_the_work(tmp_path):
    assert "does not exist" in refused("demo", "-o", tmp_path / "nowhere" / "demo.html")


@pytest.mark.long
def test_soba_plus_gains_most_on_the_shifted_domains_and_does_no_harm():
    domains = run_demo(OnnxEncoder.tiny())
    mean = averages(domains)
    assert mean["soba+"] - mean["zero-shot"] >= 3.5
    assert mean["soba+"] == max(mean.values())
    assert {domain.name for domain in domains} == {"source", *SHIFTED}
    for domain in domains:
        assert domain.summary["soba+"]["gain"] >= -0.2, domain.name
