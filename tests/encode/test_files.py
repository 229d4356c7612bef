"""Paths that fsspec opens, through fsspec itself: a store in memory, and file://."""

import sys

import fsspec
import pytest
from archives import png, tar_content, webdataset
from fsspec import AbstractFileSystem

from soba.encode.archives import kind_of
from soba.encode.files import is_pattern, looks_of, open_file, remote_files
from soba.encode.images import list_images
from soba.encode.lists import is_list


@pytest.fixture
def photos(store):
    for shade, name in enumerate(("b.png", "a.png", "deep/c.png", "deep/er/d.png")):
        store.put(f"photos/{name}", png(shade))
    store.put("photos/notes.md", b"no image")
    store.put("photos/.hidden/e.png", png(9))
    store.put("photos/deep/.f.png", png(9))
    return store


def names(images):
    return [picture.name for picture in list_images(images)]


def test_folders_patterns_and_files(photos):
    url = f"{photos.url}/photos"
    everything = [f"{url}/{name}" for name in ("a.png", "b.png", "deep/c.png", "deep/er/d.png")]
    assert names(url) == names(f"{url}/") == everything
    assert names(f"{url}/*.png") == everything[:2]
    assert names(f"{url}/**/*.png") == everything
    assert names(f"{url}/d*") == everything[2:]  # folders stand for what is below them
    assert names(f"{photos.url}/*/[ab].png") == everything[:2]
    bucket = photos.url.removeprefix("memory://")
    assert names(f"memory://{bucket[:-1]}?/photos/*.png") == everything[:2]
    assert names(everything[3]) == everything[3:]
    picture = next(list_images(f"{url}/b.png"))
    assert picture.open().getpixel((0, 0)) == (0, 40, 90)
    [alone] = list_images(png(0))
    alone.open()
    assert picture.content_id == alone.content_id


def test_file_urls_are_called_by_their_urls(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a.png", "deep/b.png"):
        (tmp_path / name).write_bytes(png(1))
    url = f"file://{tmp_path}"
    assert names(url) == [f"{url}/a.png", f"{url}/deep/b.png"]
    assert names(f"{url}/*/*.png") == [f"{url}/deep/b.png"]
    assert next(list_images(f"{url}/a.png")).open().size == (8, 8)


def test_archives_where_there_are_no_images(photos, tmp_path):
    tar = photos.put("shards/a.tar", tar_content(webdataset(2)))
    assert names(f"{photos.url}/shards") == [f"{tar}/0000.png", f"{tar}/0001.png"]
    assert names(f"{photos.url}/shards/{{a,b}}.tar")[:2] == names(tar)
    photos.put("photos/a.tar", tar_content(webdataset(2)))
    assert not any(".tar" in name for name in names(f"{photos.url}/photos"))
    (tmp_path / "a.tar").write_bytes(tar_content(webdataset(2)))
    for source in (tmp_path, tmp_path / "*.tar", tmp_path / "*", tmp_path / "a.tar"):
        assert names(source) == [f"{tmp_path}/a.tar/0000.png", f"{tmp_path}/a.tar/0001.png"]


def test_what_is_not_there(photos):
    [picture] = list_images(f"{photos.url}/photos/none.png")
    with pytest.raises(FileNotFoundError, match="No such file"):
        picture.open()
    photos.put("empty/notes.md", b"")
    for source, problem in {
        f"{photos.url}/empty": "holds no images",
        f"{photos.url}/photos/*.gif": "holds no images",
        "nowhere://bucket/*.png": "Protocol not known: nowhere",
    }.items():
        [picture] = list_images(source)
        assert problem in picture.problem, source


def test_looks_tell_that_a_file_was_replaced(store, tmp_path):
    url, file = store.put("a.png", png(1)), tmp_path / "a.png"
    file.write_bytes(png(1))
    paths = [url, str(file), f"file://{file}", f"{store.url}/none.png", str(tmp_path / "none.png")]
    before = looks_of(paths)
    assert before[3:] == ["missing", "missing"]
    assert looks_of(paths, fresh=True) == before
    store.put("a.png", png(1) + b" ")
    file.write_bytes(png(1) + b" ")
    after = looks_of(paths, fresh=True)
    assert all(now != then for now, then in zip(after[:3], before[:3], strict=True))


def test_files_are_listed_each_once_and_in_order(photos):
    url = f"{photos.url}/photos"
    assert remote_files(f"{url}/a.png") is None
    assert remote_files(f"{url}/**") == sorted(set(remote_files(f"{url}/**")))


def test_without_fsspec_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ImportError, match=r"needs fsspec: pip install 'soba-tta\[sources\]'"):
        open_file("memory://bucket/a.png")
    [picture] = list_images("memory://bucket/*.png")
    assert "needs fsspec: pip install" in picture.problem


def test_a_web_address_may_be_signed():
    """Its query is no wildcard, and what it is stands before it."""
    url = "https://host.invalid/photos"
    names = [
        f"{url}/a.tar?key=1",
        f"{url}/a.png?key=[2]",
        f"{url}/a.tar.gz?x=.csv",
        f"{url}/a.txt?k",
    ]
    assert [kind_of(name) for name in names] == ["tar", "files", "tar", None]
    assert [is_pattern(name) for name in names] == [False] * 4
    assert is_pattern(f"{url}/*.png?key=1") and is_pattern("s3://bucket/?.png")
    assert is_list(names[3]) and not is_list(names[2])


class Refusing(AbstractFileSystem):
    """A store that answers everything with an error of its own kind."""

    protocol = "refusing"

    def ls(self, path, detail=True, **settings):
        raise RuntimeError("no credentials")

    def info(self, path, **settings):
        raise RuntimeError("no credentials")

    def _open(self, path, *given, **settings):
        raise RuntimeError("no credentials")


def test_a_store_that_refuses_is_named_and_nothing_is_taken_for_missing():
    fsspec.register_implementation("refusing", Refusing, clobber=True)
    for source in ("refusing://bucket/*.png", "refusing://bucket/a.tar", "refusing://bucket/a.txt"):
        [picture] = list_images(source)
        assert picture.name == source and "no credentials" in picture.problem
    [picture] = list_images("refusing://bucket/a.png")
    with pytest.raises(OSError, match=r"refusing://bucket/a\.png: no credentials"):
        picture.open()
    with pytest.raises(OSError, match=r"refusing://bucket/a\.png: no credentials"):
        looks_of(["refusing://bucket/a.png"])
