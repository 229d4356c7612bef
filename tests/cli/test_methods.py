"""Where a method comes from is told in every table that lists methods."""

from __future__ import annotations

import re

import pytest
from run_cli import soba_command
from tiny_clip import openclip  # noqa: F401  it makes open_clip importable

import soba
from soba import registry
from soba.bench.evaluate import evaluate
from soba.testing import example_stream

# As readers of the papers and of their repositories would put it: a method with public code is
# official, one that had to be written from the text of a paper is a re-implementation (#). SOBA has
# no public code, nor has its baseline, NCM; HisTPT's is not for classification.
LABELS = {
    "zero-shot", "ncm#", "soba#", "soba+^", "tda", "gda", "tip-adapter", "tip-adapter-f",
    "clip+views~", "mta", "mta-ensemble-mean#", "mta-ensemble-vote#", "zero", "tpt", "difftpt",
    "histpt#", "coop", "cocoop", "etta", "oga", "adapt", "dota", "transclip", "pta", "stata",
}  # fmt: skip
NOTES = {"# re-implementation from the paper", "^ ours", "~ control"}


class Strange(soba.TDA):
    """Somebody's own method, built on one of ours."""

    card = soba.Card("strange")


class Spoken(soba.ZeroShot):
    """Somebody's own method that says where it is from."""

    card = soba.Card("spoken", provenance="an idea of mine")


@pytest.fixture
def strangers(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    for cls in (Strange, Spoken):
        soba.register(cls)


def first_columns(printed):
    """Of the lines below the heading; a cell that is too long goes on in lines without a first."""
    columns = (re.split(r"\s{2,}", line.rstrip())[0] for line in printed.splitlines()[1:])
    return {column for column in columns if column}


def test_methods_that_are_not_official_are_marked():
    assert first_columns(soba_command("methods")) == LABELS | NOTES


def test_strangers_claim_nothing_that_they_do_not_say_themselves(strangers):
    labels_and_notes = first_columns(soba_command("methods"))
    assert labels_and_notes == LABELS | NOTES | {
        "strange?",
        "spoken?",
        "? not stated",
        "? an idea of mine",
    }
    features, labels, text = example_stream(n=60, classes=5, width=12)
    records = evaluate(
        soba.FeatureSet(features, text, 20.0, labels), ["tda", "strange", "spoken"], orders=1
    )
    assert [record.provenance for record in records] == [
        "official algorithm",
        "not stated",
        "an idea of mine",
    ]
