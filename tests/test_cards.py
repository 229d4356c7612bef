"""Cards: what they refuse, and that nothing but them is asked about a method."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import soba
from soba.adapt.card import NEEDS, Card
from soba.adapt.few_shot import FewShotAdapter
from soba.registry import adapter_class, card

PACKAGE = Path(soba.__file__).parent
# Zero-shot is what all are measured against, and SOBA+ the method that is used unless told.
SPOKEN_OF = {"zero-shot", "soba+"}


@pytest.mark.parametrize("room", ["bench", "studies", "report", "cli"])
def test_no_method_is_known_by_its_name_elsewhere(room):
    names = set(soba.list_methods()) - SPOKEN_OF
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert files
    mentions = [
        f"{path.name}:{node.lineno}: {node.value}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert mentions == []


@pytest.mark.parametrize("name", soba.list_methods())
def test_a_card_says_what_its_class_is(name):
    about, cls = card(name), adapter_class(name)
    assert about.name == name
    assert vars(cls)["card"] is about  # its own, not what it inherits
    assert about.few_shot == issubclass(cls, FewShotAdapter)
    assert about.provenance and about.title and about.colour


def test_cards_are_read_where_only_the_core_is_installed():
    code = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'open_clip', 'PIL', 'onnxruntime'))\n"
        "import soba; from soba.registry import card\n"
        "print([card(name).title for name in soba.list_methods()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "DiffTPT" in done.stdout and "Tip-Adapter-F" in done.stdout


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "My method"}, "'My method' cannot name a method"),
        ({"name": "a,b"}, "cannot name a method"),
        ({"name": ""}, "cannot name a method"),
        ({"colour": "red"}, "colour 'red' is not of the form #rrggbb"),
        ({"family": "streams"}, "no family 'streams'; there are: stream, episodic"),
        ({"needs": {"luck"}}, f"cannot need luck; there are: {', '.join(NEEDS)}"),
        ({"family": "few-shot"}, "a few-shot method needs labels"),
        ({"family": "tuner"}, "a tuner method needs gradients"),
        ({"min_views": 2}, "needs views if, and only if, min_views is above 1"),
        ({"needs": {"views"}}, "needs views if, and only if, min_views is above 1"),
    ],
)
def test_what_no_card_can_say(settings, message):
    with pytest.raises(ValueError, match=message):
        Card(**({"name": "mine"} | settings))


def test_what_is_not_said_follows_from_the_name():
    plain = Card("mine")
    assert (plain.title, plain.family, plain.needs) == ("mine", "stream", {"features"})
    assert not plain.episodic and Card("each", family="episodic").episodic
