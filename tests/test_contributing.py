"""The worked examples of docs/contributing.md do what it says, each in a process of its own."""

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")


def blocks(section):
    """The Python blocks below a heading: files by their name, and what is run with them."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    code = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    headers = [re.match(r"# (\w+\.py)\n", block) for block in code]
    files = {name[1]: block for name, block in zip(headers, code, strict=True) if name}
    return files, [block for name, block in zip(headers, code, strict=True) if not name]


@pytest.mark.parametrize("section", ["Add a method", "Add a data set", "Add an encoder"])
def test_a_worked_example(section, tmp_path):
    files, run = blocks(section)
    assert files and run
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "example.py").write_text("\n".join(run), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
