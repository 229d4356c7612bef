import gzip
import itertools
import os
import tarfile

import pytest
from archives import png, tar_content, webdataset

from soba.encode import tars
from soba.encode.images import list_images
from soba.encode.pictures import NoPicture
from soba.encode.tars import tar_pictures


def listed(path):
    """(name, problem) of all that is in a tar; what can be opened has none."""
    pictures = []
    for picture in tar_pictures(str(path)):
        problem = picture.problem if isinstance(picture, NoPicture) else ""
        pictures.append((picture.name, problem))
    return pictures


def test_a_sample_of_webdataset_is_one_picture(tmp_path):
    tar = tmp_path / "train.tar"
    tar.write_bytes(tar_content(webdataset(5)))
    assert listed(tar) == [(f"{tar}/{number:04d}.png", "") for number in range(5)]
    for number, picture in enumerate(list_images(tar)):
        assert picture.open().getpixel((0, 0)) == (number, 40, 90)
        [file] = list_images(png(number))
        file.open()
        assert picture.content_id == file.content_id  # the bytes decide, wherever they lie


@pytest.mark.parametrize("name", ["train.tar.gz", "train.TGZ"])
def test_compressed(tmp_path, name):
    (tmp_path / name).write_bytes(tar_content(webdataset(3), "w:gz"))
    assert [name for name, _ in listed(tmp_path / name)] == [
        f"{tmp_path / name}/{number:04d}.png" for number in range(3)
    ]


def test_dots_in_names_cost_nobody_a_picture(tmp_path):
    tar = tmp_path / "tour.tar"
    names = [f"tour.day{day:02d}.png" for day in range(20)]
    tar.write_bytes(tar_content((name, png(3)) for name in names))
    assert [name for name, _ in listed(tar)] == [f"{tar}/{name}" for name in names]
    # The picture with nothing but a suffix is the sample's, wherever it stands among the others.
    names = ["b/a.mask.png", "b/a.jpg", "b/a.png", "b/a.edge.png", "c/a.png", "._c.png", "d.txt"]
    tar.write_bytes(tar_content((name, png(3)) for name in names))
    assert [name for name, _ in listed(tar)] == [f"{tar}/b/a.jpg", f"{tar}/c/a.png"]


def test_long_names_links_and_broken_pictures(tmp_path):
    tar = tmp_path / "odd.tar"
    long = "folder/" * 30 + "a.png"
    members = [(long, png(1)), ("link.png", None), ("torn.png", b"no picture"), ("z.png", png(2))]
    tar.write_bytes(tar_content(members))
    assert listed(tar) == [
        (f"{tar}/{long}", ""),
        (f"{tar}/link.png", "a link or device in the archive, not a file"),
        (f"{tar}/torn.png", ""),
        (f"{tar}/z.png", ""),
    ]
    torn = list(tar_pictures(str(tar)))[2]
    with pytest.raises(OSError, match="cannot identify"):
        torn.open()


def test_a_folder_that_was_packed_from_within(tmp_path):
    (tmp_path / "in" / "odd.png").mkdir(parents=True)
    for name in ("a.png", "odd.png/b.png"):
        (tmp_path / "in" / name).write_bytes(png(1))
    tar = tmp_path / "dot.tar"
    with tarfile.open(tar, "w") as file:
        file.add(tmp_path / "in", ".")
    assert sorted(listed(tar)) == [(f"{tar}/a.png", ""), (f"{tar}/odd.png/b.png", "")]


def test_wherever_it_is_cut_off_what_can_be_read_comes_and_then_one_error(tmp_path):
    content = tar_content((f"{number}.png", png(number)) for number in range(4))
    ends = 4 * 1024  # a header and a block each
    tar = tmp_path / "cut.tar"
    for cut in [*range(0, ends + 1, 128), ends + 100]:
        tar.write_bytes(content[:cut])
        *pictures, (name, problem) = listed(tar)
        whole = sum(number * 1024 + 512 + len(png(number)) <= cut for number in range(4))
        assert pictures == [(f"{tar}/{number}.png", "") for number in range(whole)], cut
        assert name == str(tar) and problem.startswith("truncated or corrupted"), cut
    tar.write_bytes(content[: ends + 1024])
    assert len(listed(tar)) == 4 and not any(problem for _, problem in listed(tar))


def test_a_damaged_header_is_no_end(tmp_path):
    content = bytearray(tar_content((f"{number}.png", png(number)) for number in range(4)))
    content[2048 + 3] ^= 255  # in the name of the third
    tar = tmp_path / "damaged.tar"
    tar.write_bytes(content)
    assert listed(tar) == [
        (f"{tar}/0.png", ""),
        (f"{tar}/1.png", ""),
        (str(tar), "truncated or corrupted (bad checksum)"),
    ]


def test_a_compressed_one_is_verified_to_its_last_byte(tmp_path):
    content = tar_content(webdataset(3), "w:gz")
    tar = tmp_path / "a.tgz"
    checksum = len(content) - 6
    flipped = content[:checksum] + bytes([content[checksum] ^ 1]) + content[checksum + 1 :]
    for damaged in (content[:-9], flipped, content[:40], b"", b"no archive at all"):
        tar.write_bytes(damaged)
        name, problem = listed(tar)[-1]
        assert name == str(tar) and problem, damaged[:20]
    assert len(gzip.decompress(content)) > 40


def test_members_are_read_as_they_are_asked_for(tmp_path):
    """A tar without an end can be listed, so no more of it is held than is asked for."""
    pipe = tmp_path / "endless.tar"
    tar = tar_content((f"{number}.png", png(1)) for number in range(64))[: 64 * 1024]
    pipe.write_bytes(tar * 20)
    pictures = tar_pictures(str(pipe))
    assert len(list(itertools.islice(pictures, 10))) == 10
    os.truncate(pipe, 0)  # what was read ahead is less than the file
    rest = list(pictures)
    assert len(rest) < 200 and isinstance(rest[-1], NoPicture)


def test_what_is_not_there(tmp_path, store):
    assert listed(tmp_path / "no.tar") == [(f"{tmp_path}/no.tar", "No such file or directory")]
    assert listed(f"{store.url}/no.tar") == [(f"{store.url}/no.tar", "No such file or directory")]
    url = store.put("a/train.tar", tar_content(webdataset(2)))
    assert listed(url) == [(f"{url}/0000.png", ""), (f"{url}/0001.png", "")]


def test_a_sample_of_many_pictures_is_not_held(tmp_path, monkeypatch):
    tar, read = tmp_path / "tour.tar", []
    content = tar_content((f"tour.day{day:02d}.png", png(3)) for day in range(40))
    tar.write_bytes(content)
    picture = tars._picture
    monkeypatch.setattr(tars, "_picture", lambda *given: read.append(1) or picture(*given))
    pictures = tar_pictures(str(tar))
    next(pictures)
    assert len(read) < 20
    assert len(list(pictures)) == 39
    tar.write_bytes(content[: 3 * 1024 + 700])  # what is held when the tar ends is given, too
    assert [name for name, _ in listed(tar)] == [
        *(f"{tar}/tour.day{day:02d}.png" for day in range(4)),
        str(tar),
    ]
