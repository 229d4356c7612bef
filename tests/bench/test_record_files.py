"""Records as files: damage is named, and one run at a time."""

import errno
import fcntl
import json

import pytest

from soba.bench.record_files import alone, read_object, write_record


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff\xfe"])
def test_what_is_no_object_is_named(tmp_path, content):
    path = tmp_path / "cell.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"cell\.json: not a record; remove it"):
        read_object(path)


def test_written_and_read(tmp_path):
    write_record(tmp_path / "cell.json", {"accuracy": 1.5})
    assert read_object(tmp_path / "cell.json") == {"accuracy": 1.5}
    assert json.loads((tmp_path / "cell.json").read_text()) == {"accuracy": 1.5}


def test_a_second_run_is_refused(tmp_path):
    with (
        alone(tmp_path),
        pytest.raises(ValueError, match="another run is working in this folder"),
        alone(tmp_path),
    ):
        pass
    with alone(tmp_path):  # the first one let go
        pass


def test_a_file_system_without_locks_is_no_other_run(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    done = []
    with (
        pytest.warns(UserWarning, match=r"cannot be locked \(No locks available\)"),
        alone(tmp_path),
    ):
        done.append("work")
    assert done
