"""`soba inspect`: what a state knows, in the terminal and as a page."""

import re

import numpy as np
import pytest
from run_cli import refused, soba_command

import soba
from soba.datasets.icons import icons
from soba.studies.inspection import inspect
from soba.testing import example_stream

CLASSES = icons("source", per_class=1).class_names[:4]


@pytest.fixture(scope="module")
def state(icon_stream, tmp_path_factory):
    """Of a classifier that has seen the stream of icons under two templates."""
    path = tmp_path_factory.mktemp("state") / "icons.soba"
    clf = soba.Classifier("tiny", CLASSES, templates=("an icon of a {}.", "{}"))
    list(clf.classify(icon_stream))
    clf.save(path)
    return path


def test_classes_and_changes_are_those_of_the_state(state):
    printed = soba_command("inspect", state)
    found = inspect(soba.load(state))
    assert f"{state.name}: soba+, 4 classes, 48 samples seen, {len(found.samples)} kept" in printed
    for each in found.classes:
        [line] = [line for line in printed.splitlines() if line.startswith(each.name)]
        numbers = line.removeprefix(each.name).split()
        assert numbers == [f"{each.mass:.1f}", str(each.zero_shot), str(each.adapted)]
    changed, total = found.changed_of(found.samples.drawn)
    assert f"drawn by chance from the stream: {changed} of {total} (" in printed
    for change in found.changes[:10]:
        before, after = CLASSES[change.before], CLASSES[change.after]
        assert f"  {change.count} x {before} -> {after}" in printed


def test_the_page_shows_the_files_that_are_found(state, icon_stream, tmp_path):
    page = tmp_path / "page.html"
    printed = soba_command("inspect", state, "--images", icon_stream, "--prompts", "-o", page)
    assert "not found" not in printed and f"page in {page}" in printed
    content = page.read_text()
    assert content.count("data:image/jpeg") >= 20 and 'src="http' not in content
    for name in CLASSES:
        assert f"<h3>{name}</h3>" in content
    shown = set(re.findall(r"<small>(\d\d [^<]*\.png)</small>", content))
    assert shown and shown <= {file.name for file in icon_stream.iterdir()}
    # The two templates were encoded one by one, and stand in the terminal and on the page.
    for template in ("an icon of a {}.", "{}"):
        assert re.search(rf"% {re.escape(template)}$", printed, re.MULTILINE)
        assert template in content
    assert "Names that the images contradict" in content


def test_files_that_are_not_there_are_counted(state, tmp_path):
    printed = soba_command("inspect", state, "--images", tmp_path, "-o", tmp_path / "page.html")
    count = len(inspect(soba.load(state)).samples)
    assert f"{count} of {count} samples were not found" in printed
    assert "data:image/jpeg" not in (tmp_path / "page.html").read_text()


def test_an_adapter_without_names_or_samples(tmp_path):
    images, _, text = example_stream(n=200, classes=5, width=12)
    path = tmp_path / "state.safetensors"
    for method in soba.list_methods(family="stream"):
        adapter = soba.create_adapter(method, text, logit_scale=20.0)
        adapter.adapt(images)
        adapter.save(path)
        printed = soba_command("inspect", path)
        assert re.search(r"^class 4\b", printed, re.MULTILINE), method
        keeps = len(inspect(adapter).samples) > 0
        assert ("keeps no samples" in printed) != keeps
        if not keeps:
            assert "keeps no samples to check prompts with" in refused("inspect", path, "--prompts")
    soba.SOBAPlus(text).save(path)
    assert "0 samples seen, none kept" in soba_command("inspect", path)
    adapter = soba.SOBAPlus(text, logit_scale=20.0)
    adapter.adapt(images, ids=np.arange(200))
    adapter.save(path)
    named = soba_command("inspect", path, "--classes", "ant,bee,cow,dog,elk")
    assert re.search(r"^elk +\d", named, re.MULTILINE) and "class 4" not in named
    message = refused("inspect", path, "--classes", "ant,bee")
    assert "2 class names for a state of 5 classes" in message
    printed = soba_command("inspect", path, "--images", tmp_path)
    assert "not known by the content of images" in printed


def test_what_is_no_state_or_no_page_is_refused(state, tmp_path):
    assert "the page is an .html file" in refused("inspect", state, "-o", tmp_path / "page.pdf")
    assert "knows the names of its classes" in refused("inspect", state, "--classes", "a,b,c,d")
    (tmp_path / "state").write_bytes(b"nothing")
    assert str(tmp_path / "state") in refused("inspect", tmp_path / "state")
