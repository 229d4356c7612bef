import pytest
from archives import png

from soba.encode.images import list_images
from soba.encode.lists import expand_braces, read_list
from soba.encode.pictures import NoPicture


def names(images):
    return [picture.name for picture in list_images(images)]


def test_a_path_on_each_line(tmp_path):
    file = tmp_path / "lists" / "test.txt"
    file.parent.mkdir()
    file.write_bytes("\ufeffa.png\r\n\n  deep/é b.png \n/abs/c.png\ns3://bucket/d.png".encode())
    assert read_list(str(file)) == [
        f"{tmp_path}/lists/a.png",
        f"{tmp_path}/lists/deep/é b.png",
        "/abs/c.png",
        "s3://bucket/d.png",
    ]
    assert names(file) == read_list(str(file))


def test_relative_paths_stay_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test.txt").write_text("a.png\nb/c.png\n")
    assert names("test.txt") == ["a.png", "b/c.png"]


def test_lists_by_url(store):
    store.put("a.png", png(1))
    text = store.put("lists/test.txt", b"../a.png\nb.png\n")
    table = store.put("lists/test.csv", b"label,path\nx,b.png\ny,\n")
    store.put("lists/b.png", png(2))
    assert names(text)[1] == f"{store.url}/lists/b.png"
    pictures = list(list_images([text, table]))
    assert pictures[1].open().getpixel((0, 0)) == (2, 40, 90)
    assert pictures[2].name == pictures[1].name
    assert (pictures[3].name, pictures[3].problem) == (f"{table}, row 2", "no path")


@pytest.mark.parametrize(
    ("content", "name", "problem"),
    [
        (b"\xff\xfe", "a.txt", "not UTF-8 text"),
        (b"\xff\xfe", "a.csv", "not UTF-8 text"),
        (b"image\nx.png\n", "a.csv", "needs a column 'path', has image"),
    ],
)
def test_what_is_no_list(tmp_path, store, content, name, problem):
    (tmp_path / name).write_bytes(content)
    for path in (str(tmp_path / name), store.put(name, content)):
        [picture] = list_images(path)
        assert isinstance(picture, NoPicture) and picture.name == path
        assert picture.problem == problem
    [picture] = list_images(f"{store.url}/missing.txt")
    assert picture.problem == "No such file or directory"


def test_braces(tmp_path):
    assert expand_braces("a-{9..11}.tar") == ["a-9.tar", "a-10.tar", "a-11.tar"]
    assert expand_braces("a-{02..00}.tar") == ["a-02.tar", "a-01.tar", "a-00.tar"]
    assert expand_braces("s3://b/{x,y}-{00..01}.tar") == [
        "s3://b/x-00.tar",
        "s3://b/x-01.tar",
        "s3://b/y-00.tar",
        "s3://b/y-01.tar",
    ]
    for literal in ("a{b}.png", "a{}.png", "{1..b}.png", "plain.png", "a}{b.png"):
        assert expand_braces(literal) == [literal]
    (tmp_path / "{a,b}.png").write_bytes(png(1))  # a file of that name is that file
    assert names(tmp_path / "{a,b}.png") == [str(tmp_path / "{a,b}.png")]
    assert names(tmp_path / "{c,d}.png") == [str(tmp_path / f"{name}.png") for name in "cd"]
