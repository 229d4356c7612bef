"""docs/huggingface.md does what it says; what was not run is counted."""

import re

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image
from tiny_hf import save_model

PAGE = (ROOT / "docs" / "huggingface.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
NOT_RUN = [block for block in BLOCKS if block.startswith("# not run here\n")]


@pytest.mark.filterwarnings("ignore:OpenCV:UserWarning")
def test_the_examples_run(tmp_path, monkeypatch, capsys):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    model = save_model(tmp_path / "model")
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(4):
        pixels = rng.integers(256, size=(40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    names = {}
    for block in BLOCKS:
        if block not in NOT_RUN:
            exec(block.replace("openai/clip-vit-base-patch16", str(model)), names)
    printed = capsys.readouterr().out.splitlines()
    assert sum("photos/" in line for line in printed) == 2 * 4
    assert sum("should be" in line for line in printed) == 5
    assert (tmp_path / "cats.soba").is_file()
    assert len(names["answers"]) == 2 and len(names["plain"]) == 2


def test_what_was_not_run_is_counted_and_is_python():
    assert len(NOT_RUN) == 3 and len(BLOCKS) == 8
    for block in NOT_RUN:
        compile(block, "huggingface.md", "exec")
