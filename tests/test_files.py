import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
import safetensors.numpy
from disks import full_disk
from methods import FROM_TEXT

import soba
from soba._files import alone, load_checked, parse_json, replacing, save_arrays, save_checked

HOLDING = """
import sys
from soba._files import alone, replacing
with {work}:
    print("holding", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_process(work, path):
    """A process inside of `with work:`, until the test closes its input or kills it."""
    command = [sys.executable, "-c", HOLDING.format(work=work), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"holding\n"
        yield process


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "state.safetensors"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half of the new")
        raise RuntimeError("crash")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["state.safetensors"]


def hidden(folder):
    return [name for name in os.listdir(folder) if name.startswith(".")]


def test_what_killed_runs_leave_is_removed_by_the_next(tmp_path):
    path = tmp_path / "state.[1]"  # a name that is a pattern, too
    work = "replacing(sys.argv[1]) as temporary"
    precious = {".state.[1].original", ".state.[1].old.tmp", ".state.1.0123abcd.tmp"}
    for name in precious:
        (tmp_path / name).write_text("mine")
    with another_process(work, path) as killed:
        (litter,) = set(hidden(tmp_path)) - precious
        killed.kill()
    assert (tmp_path / litter).exists()
    with another_process(work, path) as living:
        (writing,) = set(hidden(tmp_path)) - precious  # the litter is gone
        assert writing != litter
        for content in ("first", "second"):
            with replacing(path) as temporary:
                temporary.write_text(content)
            assert path.read_text() == content
        assert set(hidden(tmp_path)) == precious | {writing}
        (tmp_path / writing).write_text("third")
        living.communicate()
    assert living.returncode == 0
    assert path.read_text() == "third"
    assert set(hidden(tmp_path)) == precious


def test_a_new_file_that_is_taken_for_litter_is_made_again(tmp_path, monkeypatch):
    real = fcntl.flock
    removed = []

    def slow(file, how):  # another run finds the new file before it is locked
        if not removed:
            removed.extend(hidden(tmp_path))
            os.unlink(tmp_path / removed[0])
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with replacing(tmp_path / "state") as temporary:
        assert hidden(tmp_path) == [temporary.name] != removed
        temporary.write_text("whole")
    assert os.listdir(tmp_path) == ["state"]
    assert (tmp_path / "state").read_text() == "whole"


def test_savers_at_the_same_time_do_not_break_each_other(tmp_path):
    path, problems = tmp_path / "state", []
    umask = os.umask(0o027)

    def save(number):
        try:
            for _ in range(30):
                with replacing(path) as temporary:
                    temporary.write_text(str(number) * 1000)
                assert len(set(path.read_text())) == 1
        except BaseException as error:
            problems.append(error)

    try:
        threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        now = os.umask(umask)
    assert problems == []
    assert os.listdir(tmp_path) == ["state"]
    assert (now, stat.S_IMODE(path.stat().st_mode)) == (0o027, 0o640)


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (tmp_path / "link").symlink_to("elsewhere/state")
    (tmp_path / "chain").symlink_to("link")
    for name, content in (("link", "new"), ("chain", "newer")):  # at first it leads nowhere
        with replacing(tmp_path / name) as temporary:
            temporary.write_text(content)
        assert (tmp_path / name).is_symlink()
        assert (folder / "state").read_text() == content
        assert hidden(tmp_path) == hidden(folder) == []
    (tmp_path / "lost").symlink_to("nowhere/state")
    with pytest.raises(FileNotFoundError, match="lost: the folder does not exist"):
        replacing(tmp_path / "lost").__enter__()


def test_only_files_are_replaced(tmp_path):
    (tmp_path / "loop").symlink_to("back")
    (tmp_path / "back").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    for name in ("loop", "folder", "pipe"):
        with pytest.raises(ValueError, match=f"{name}: exists, and is not a file"):
            replacing(tmp_path / name).__enter__()
    assert sorted(os.listdir(tmp_path)) == before


def test_the_content_is_on_disk_before_its_name_and_the_name_after(tmp_path, monkeypatch):
    path, calls = tmp_path / "state", []
    sync, replace = os.fsync, os.replace

    def fsync(handle):
        status = os.fstat(handle)
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
        calls.append(("sync", kind, status.st_ino, status.st_size if kind == "file" else None))
        sync(handle)

    def renamed(source, target):
        calls.append(("rename", os.stat(source).st_ino))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", renamed)
    with replacing(path) as temporary:
        temporary.write_text("whole")
    file, folder = path.stat().st_ino, tmp_path.stat().st_ino
    assert calls == [
        ("sync", "file", file, 5),
        ("rename", file),
        ("sync", "folder", folder, None),
    ]


def test_a_full_disk_names_the_file(tmp_path):
    path = tmp_path / "state"
    arrays = {"many": np.zeros(100_000)}
    for save in (
        lambda: save_arrays(path, arrays, {}),
        lambda: save_checked(path, arrays, {}),
        lambda: soba.SOBA(np.eye(300)).save(path),
    ):
        with full_disk(10_000), pytest.raises(OSError, match=r"File too large: '.*/state'") as end:
            save()
        assert end.value.errno == errno.EFBIG
        assert os.listdir(tmp_path) == []
    with pytest.raises(OSError, match=r"^\[Errno 28\] .*/state'$"), replacing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match=r"other\.png"), replacing(path):  # not about this file
        raise OSError(errno.ENOSPC, "No space left on device", "other.png")


def test_load_finds_the_class(tmp_path):
    rng = np.random.default_rng(0)
    for name in FROM_TEXT:
        adapter = soba.create_adapter(name, rng.normal(size=(3, 6)))
        adapter.save(tmp_path / name)
        assert type(soba.load(tmp_path / name)) is type(adapter)
    with pytest.raises(ValueError, match=r"(?s)tda.*of adapter 'tda', not of 'soba'"):
        soba.SOBA.load(tmp_path / "tda")
    with pytest.raises(ValueError, match=r"alpha=15\.0, not 3"):
        soba.load(tmp_path / "soba", expect={"alpha": 3})
    with pytest.raises(FileNotFoundError):
        soba.load(tmp_path / "nothing")
    (tmp_path / "noise").write_bytes(os.urandom(500))
    with pytest.raises(ValueError, match="noise"):
        soba.load(tmp_path / "noise")


def test_unknown_names_get_a_hint():
    with pytest.raises(ValueError, match="Did you mean 'soba'"):
        soba.create_adapter("sobba", np.eye(2))


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
    for arrays in (
        safetensors.numpy.load_file(tmp_path / "plain"),
        load_checked(tmp_path / "checked")[0],
    ):
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(arrays[name], array)
            assert arrays[name].dtype == array.dtype.newbyteorder("<")
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
    assert "note" not in load_checked(tmp_path / "plain")[1]
    assert load_checked(tmp_path / "noted")[1]["note"] == {"class_names": ["ü", "b", "c"]}
    assert soba.load(tmp_path / "noted").state()["meta"] == adapter.state()["meta"]


@pytest.mark.parametrize(("name", "what"), [("", "in this folder"), ("a.csv", "on this file")])
def test_a_second_run_is_refused(tmp_path, name, what):
    path = tmp_path / name
    (tmp_path / "link").symlink_to(path)
    for other in (path, tmp_path / "link"):
        with (
            alone(path),
            pytest.raises(ValueError, match=f"another run is working {what}"),
            alone(other),
        ):
            pass
    with alone(path):  # the first one let go
        pass
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("name", ["", "a.csv"])
def test_a_second_process_is_refused_until_the_first_ends(tmp_path, name):
    path = tmp_path / name
    with another_process("alone(sys.argv[1])", path) as process:
        with pytest.raises(ValueError, match="another run is working"), alone(path):
            pass
        assert hidden(tmp_path)  # the lock of the living run is still there
        process.kill()
    assert hidden(tmp_path)  # it could not clean up
    with alone(path):
        pass
    assert hidden(tmp_path) == []


def test_a_lock_that_its_owner_has_just_removed_is_no_lock(tmp_path, monkeypatch):
    real = fcntl.flock
    calls = []

    def late(file, how):  # the run before ends between opening and locking
        calls.append(file)
        if len(calls) == 1:
            os.unlink(tmp_path / ".lock")
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with alone(tmp_path):
        with pytest.raises(ValueError, match="another run"), alone(tmp_path):
            pass
        assert hidden(tmp_path) == [".lock"]
    assert hidden(tmp_path) == []


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


def deep(levels=100_000):
    return "[" * levels + "]" * levels


def test_json_that_is_nested_too_deeply_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(deep())
    with pytest.raises(ValueError, match=r"Expecting value"):
        parse_json("[" * 3)
    path = tmp_path / "state"
    for meta, problem in ((deep(), "nested too deeply"), ("[1]", "no JSON object")):
        _write_state(path, {"meta": meta})
        with pytest.raises(ValueError, match=rf"state: not readable as a soba state .*{problem}"):
            load_checked(path)


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}},
        {"a": {"dtype": "F32", "shape": [0, 2**62, 8], "data_offsets": [0, 0]}},
        {"a": {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}},
        {"a": {"dtype": "F99", "shape": [0], "data_offsets": [0, 0]}},
    ],
)
def test_a_state_that_claims_what_it_does_not_hold(tmp_path, header):
    _write_state(tmp_path / "state", {"meta": "{}"}, header)
    with pytest.raises(ValueError, match="state: not readable as a soba state file"):
        load_checked(tmp_path / "state")


def _write_state(path, metadata, header=()):
    """A file with a right checksum, whatever it holds."""
    blank = "0" * 64
    metadata = {**metadata, "sha256": blank}
    text = json.dumps({"__metadata__": metadata, **dict(header)}, separators=(",", ":")).encode()
    content = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(content).hexdigest()
    path.write_bytes(content.replace(blank.encode(), digest.encode()))
