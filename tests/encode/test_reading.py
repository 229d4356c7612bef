"""What may pass is told apart from what is damaged, wherever it comes up."""

import errno
import io
import os
import pickle

import pytest
from archives import hugging_face, png, tar_content, webdataset
from flaky import FlakyReads

from soba.encode import files
from soba.encode._reading import ReadFailure
from soba.encode.archives import Archive
from soba.encode.files import open_file
from soba.encode.pictures import FilePicture, NoPicture

ERRORS = [
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    TimeoutError(),
    OSError("503 Slow Down"),
    RuntimeError("the session is closed"),
    PermissionError(errno.EACCES, "the token has expired"),
]


@pytest.fixture(params=["tar", "tgz", "parquet"])
def archive(request, store, tmp_path):
    """The URL of an archive of some pictures."""
    if request.param == "parquet":
        hugging_face(tmp_path / "a", [png(n) for n in range(20)], row_group_size=5)
        return store.put("a.parquet", (tmp_path / "a").read_bytes())
    mode = "w" if request.param == "tar" else "w:gz"
    return store.put(f"a.{request.param}", tar_content(webdataset(20), mode))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_wherever_reading_an_archive_fails_it_may_pass(archive, store, monkeypatch, error):
    whole = [picture.name for picture in Archive(archive).pictures()]
    reads = FlakyReads(monkeypatch, store.system)
    for number in range(100):
        reads.fail_at(number, error)
        pictures = list(Archive(archive).pictures())
        if not reads.has_failed:
            break
        lost = [picture for picture in pictures if isinstance(picture, NoPicture)]
        assert lost and all(picture.may_pass for picture in lost), number
        with pytest.raises(ReadFailure, match=f"^{store.url}"):
            lost[0].open()
    assert 1 < number < 99 and [picture.name for picture in pictures] == whole


def test_damage_does_not_pass(tmp_path, store):
    hugging_face(tmp_path / "a.parquet", [png(1)])
    contents = {
        "a.parquet": (tmp_path / "a.parquet").read_bytes(),
        "a.tar": tar_content(webdataset(2)),
        "a.tgz": tar_content(webdataset(2), "w:gz"),
    }
    for name, content in contents.items():
        for url in (store.put(name, content[: len(content) // 3]), f"{store.url}/none/{name}"):
            *_, last = Archive(url).pictures()
            assert isinstance(last, NoPicture) and not last.may_pass, url
            with pytest.raises(OSError) as caught:
                last.open()
            assert not isinstance(caught.value, ReadFailure)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_picture_that_cannot_be_read_just_now(store, monkeypatch, error):
    picture = FilePicture(store.put("a.png", png(1)))
    reads = FlakyReads(monkeypatch, store.system)
    reads.fail_at(0, error)
    with pytest.raises(ReadFailure, match=f"^{picture.name}: .") as caught:
        picture.open()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert picture.open().size == (8, 8)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE, errno.EIO])
def test_a_disk_that_fails(tmp_path, monkeypatch, number):
    file = tmp_path / "a.png"
    file.write_bytes(png(1))

    def fail(path):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(files, "check_file", fail)
    with pytest.raises(ReadFailure, match=rf"a\.png: {os.strerror(number)}"):
        open_file(str(file))


def test_what_is_no_file_stays_so(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("none", "loop", "file/below", "pipe", ".", "n" * 300):
        with pytest.raises(OSError) as caught:
            open_file(str(tmp_path / name))
        assert not isinstance(caught.value, ReadFailure), name


def test_a_file_is_read_as_any_other(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    with open_file(str(path)) as file:
        assert file.seekable() and file.read(3) == b"one" and file.tell() == 3
        assert file.seek(-4, io.SEEK_END) == 4 and file.read() == b"two\n"
        file.seek(0)
        assert io.TextIOWrapper(file).readlines() == ["one\n", "two\n"]
    assert file.closed
