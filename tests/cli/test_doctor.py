import importlib.metadata
import sys

import pytest
from image_trees import Pictures, aircraft_tree
from run_cli import refused, soba_command

import soba
from soba.cli import doctor
from soba.datasets import NAMES


def test_it_says_what_is_there():
    printed = soba_command("doctor")
    assert soba.__version__ in printed
    assert f"numpy {importlib.metadata.version('numpy')}" in printed
    assert "cores" in printed
    assert "128 dimensions, logit scale" in printed
    assert "missing" not in printed


def test_it_says_what_to_install(monkeypatch):
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda n: None if n in ("torch", "rich") else real(n))
    lines = soba_command("doctor").splitlines()
    (torch_line,) = [line for line in lines if line.startswith("torch")]
    assert "torch missing" in torch_line
    assert "pip install 'soba-tta[torch]'" in torch_line
    (cli_line,) = [line for line in lines if line.startswith("cli")]
    assert "pip install 'soba-tta[cli]'" in cli_line


def test_a_torch_that_does_not_run_is_an_answer_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # there, but its import fails
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert "torch cannot be imported" in soba_command("doctor")


def test_weights_in_the_cache_are_listed(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "none found" in soba_command("doctor")
    for file in (
        "hf/hub/models--timm--vit_base/snapshots/1/open_clip_model.safetensors",
        ".cache/clip/RN50.pt",
    ):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    assert "2 files: RN50, timm/vit_base" in soba_command("doctor")


def test_a_data_folder_is_looked_through(tmp_path):
    folder = aircraft_tree(tmp_path / "data", Pictures(tmp_path))
    printed = soba_command("doctor", "--data", tmp_path / "data", code=1)
    lines = [line.strip() for line in printed.splitlines()]
    assert "aircraft: as it should be" in lines
    assert sum(line.endswith("as it should be") for line in lines) == 1
    for name in NAMES:
        assert any(line.startswith(f"{name}:") for line in lines)
    (folder / "images" / "0000300.jpg").unlink()
    printed = soba_command("doctor", "--data", tmp_path / "data", code=1)
    assert "0000300.jpg" in printed
    assert "as it should be" not in printed


@pytest.mark.parametrize("name", ["absent", "file"])
def test_no_folder_at_all(tmp_path, name):
    (tmp_path / "file").touch()
    assert f"{name}: not a folder" in refused("doctor", "--data", tmp_path / name)
