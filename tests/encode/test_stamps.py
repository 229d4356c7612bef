import os

import pytest

from soba.encode._stamps import UNKNOWN, UNMADE, UNREADABLE, is_changed, is_gone, stamp


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"a cat")
    return path


def test_the_same_file(picture):
    before = stamp(picture)
    assert not is_changed(picture, before)
    assert before == stamp(picture)
    os.utime(picture, (1, 1))
    assert not is_changed(picture, before)  # its content is the same
    picture.unlink()
    picture.write_bytes(b"a cat")
    assert not is_changed(picture, before)


def test_another_file_of_the_same_size_and_time(picture):
    seen, before = picture.stat(), stamp(picture)
    times = (seen.st_atime_ns, seen.st_mtime_ns)
    picture.write_bytes(b"a cow")
    while picture.stat().st_ctime_ns == seen.st_ctime_ns:  # systems count in milliseconds
        os.utime(picture, ns=times)
    os.utime(picture, ns=times)
    assert is_changed(picture, before)
    before, other = stamp(picture), picture.with_name("b.png")
    other.write_bytes(b"a dog")
    os.utime(other, ns=times)
    other.replace(picture)
    assert is_changed(picture, before)


def test_files_that_cannot_be_read(picture, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "none.png", tmp_path, tmp_path / "pipe.png"):
        assert stamp(path) == UNREADABLE
        assert not is_changed(path, UNREADABLE)
        assert not is_changed(path, stamp(picture))  # what was made of it is kept
        assert is_changed(path, UNMADE)
    assert is_changed(picture, UNREADABLE)
    assert is_gone(tmp_path / "none.png", stamp(picture))
    assert not is_gone(picture, stamp(picture))
    for before in (UNKNOWN, UNREADABLE, UNMADE):
        assert not is_gone(tmp_path / "none.png", before)


def test_what_is_not_known_and_what_is_to_be_made(picture, tmp_path):
    for path in (picture, tmp_path / "none.png"):
        assert not is_changed(path, UNKNOWN)
        assert is_changed(path, UNMADE)
