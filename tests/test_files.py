import os

import numpy as np
import pytest

import soba
from soba._files import replacing


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "state.safetensors"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half of the new")
        raise RuntimeError("crash")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["state.safetensors"]


def test_load_finds_the_class(tmp_path):
    rng = np.random.default_rng(0)
    for name in soba.list_adapters():
        adapter = soba.adapter(name, rng.normal(size=(3, 5)))
        adapter.save(tmp_path / name)
        assert type(soba.load(tmp_path / name)) is type(adapter)
    with pytest.raises(ValueError, match=r"(?s)tda.*of adapter 'tda', not of 'soba'"):
        soba.SOBA.load(tmp_path / "tda")
    with pytest.raises(ValueError, match=r"alpha=15\.0, not 3"):
        soba.load(tmp_path / "soba", alpha=3)
    with pytest.raises(FileNotFoundError):
        soba.load(tmp_path / "nothing")
    (tmp_path / "noise").write_bytes(os.urandom(500))
    with pytest.raises(ValueError, match="noise"):
        soba.load(tmp_path / "noise")


def test_unknown_names_get_a_hint():
    with pytest.raises(ValueError, match="Did you mean 'soba'"):
        soba.adapter("sobba", np.eye(2))
