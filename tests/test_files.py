import os

import numpy as np
import pytest
import safetensors.numpy

import soba
from soba._files import load_checked, replacing, save_arrays, save_checked


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


ARRAYS = {
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "labels": np.array([1, 2, 3], np.uint8),
    "big": np.arange(4, dtype=">f8"),
    "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "none": np.empty((0, 5), np.int16),
    "flags": np.array([True, False]),
}


def test_arrays_of_any_kind_come_back(tmp_path):
    save_arrays(tmp_path / "plain", ARRAYS, {"note": "ü"})
    save_checked(tmp_path / "checked", ARRAYS | {"one": np.array(3.0)}, {})
    for found in (
        safetensors.numpy.load_file(tmp_path / "plain"),
        load_checked(tmp_path / "checked")[0],
    ):
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype.newbyteorder("<")
    with pytest.raises(TypeError, match=r"no: words is of <U1, which is not stored"):
        save_arrays(tmp_path / "no", {"words": np.array(["a"])}, {})
    assert not (tmp_path / "no").exists()


def test_the_same_content_makes_the_same_bytes(tmp_path):
    paths = [tmp_path / str(i) for i in range(8)]
    for path in paths:
        save_checked(path, ARRAYS, {"a": 1, "note": {"sha256": "0" * 64}})
    assert len({path.read_bytes() for path in paths}) == 1
    assert load_checked(paths[0])[1]["note"] == {"sha256": "0" * 64}


def test_a_note_travels_with_the_state(tmp_path):
    adapter = soba.SOBA(np.eye(3))
    adapter.save(tmp_path / "plain")
    adapter.save(tmp_path / "noted", note={"class_names": ["ü", "b", "c"]})
    assert soba.adapt.base.read_note(tmp_path / "plain") == {}
    assert soba.adapt.base.read_note(tmp_path / "noted") == {"class_names": ["ü", "b", "c"]}
    assert soba.load(tmp_path / "noted").state()["meta"] == adapter.state()["meta"]
