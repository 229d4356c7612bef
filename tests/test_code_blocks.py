"""Every code block of README and docs runs, or says why it does not; both are counted.

To see the counts: pytest tests/test_code_blocks.py -s.
"""

import shutil
from collections import Counter

import numpy as np
import pytest
import typer
from code_blocks import commands, indented, languages, run_page
from conftest import ROOT
from serving import Server

from soba import registry
from soba.cli import app

PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
# Pages whose blocks need a stage of their own; the tests named here run them.
ELSEWHERE = {
    "docs/contributing.md": "tests/test_contributing.py",
    "docs/huggingface.md": "tests/test_huggingface_page.py",
}
# Blocks that do not run, by page. A new one has to be counted here, so that somebody looks at it.
NOT_RUN = {
    "docs/index.md": 1,  # sets up environments
    "docs/scale.md": 2,  # Slurm; SQL that another test runs
    "docs/serve.md": 1,  # runs in tests/test_deploy.py
    "docs/tutorials/engineer.md": 3,  # installs; a server; a person who labels
    "docs/tutorials/operator.md": 1,  # starts a server
    "docs/tutorials/researcher.md": 1,  # installs
}
FENCED_PAGES = [name for name, path in PAGES.items() if languages(path) and name not in ELSEWHERE]
counts = Counter()


@pytest.fixture
def stage(icon_stream, tmp_path, monkeypatch):
    """A folder with what the pages take for granted: icons, features, a labelled file.

    A method that a page registers is gone with it: other tests look at all methods there are.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    rng = np.random.default_rng(0)
    rows = {"image_features": rng.normal(size=(40, 16)), "text_features": rng.normal(size=(6, 16))}
    np.savez("features.npz", **{k: v.astype(np.float32) for k, v in rows.items()}, logit_scale=50.0)
    return icon_stream


@pytest.mark.parametrize("name", FENCED_PAGES)
def test_the_blocks_of_a_page_run(name, stage):
    if 'Path("icons").mkdir()' not in PAGES[name].read_text():  # else it draws its own
        shutil.copytree(stage, "icons")
    ran = _run(name)
    assert len(ran.skipped) == NOT_RUN.get(name, 0), ran.skipped
    assert all(len(reason) > 8 for reason in ran.skipped.values())
    assert len(ran.run) + len(ran.skipped) == len(languages(PAGES[name]))
    counts.update(ran.run)
    counts["skipped, with a reason"] += len(ran.skipped)


def _run(name):
    if "soba.Client(" not in PAGES[name].read_text() or name == "docs/serve.md":
        return run_page(PAGES[name])
    with Server("sqlite:///served.db") as server:
        return run_page(PAGES[name], [("http://127.0.0.1:8000", server.url)])


def test_pages_that_run_elsewhere_do():
    for name, test in ELSEWHERE.items():
        if name in PAGES:
            assert PAGES[name].name in (ROOT / test).read_text()
            counts[f"in {test}"] = len(languages(PAGES[name]))


def test_every_soba_command_on_a_page_knows_its_options():
    known = typer.main.get_command(app).commands
    checked = 0
    for name, path in PAGES.items():
        for first, *words in commands(path):
            assert first in known or first.startswith("-"), f"{name}: soba {first}"
            command = known.get(first)
            if command is None:
                continue
            if hasattr(command, "commands"):
                command = command.commands[words[0]]
            options = {option for parameter in command.params for option in parameter.opts}
            options |= {o for p in command.params for o in p.secondary_opts} | {"--help"}
            asked = {word.split("=")[0] for word in words if word.startswith("-") and word != "-"}
            assert asked <= options, f"{name}: soba {first} has no {asked - options}"
            checked += 1
    counts["soba commands whose options were checked"] = checked
    assert checked > 50


def test_the_counts_are_shown():
    """What ran by now, and what stands on the pages and does not run."""
    counts["indented: shell, or drawn, not run"] = sum(len(indented(p)) for p in PAGES.values())
    for what, number in sorted(counts.items()):
        print(f"{number:4} {what}")
    assert set(NOT_RUN) <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_fenced_block_says_its_language(name):
    fences = sum(line.strip().startswith("```") for line in PAGES[name].read_text().splitlines())
    assert fences == 2 * len(languages(PAGES[name]))
