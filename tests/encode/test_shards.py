import json
import os
import pickle
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archives import hugging_face, png, tar_content, webdataset
from hypothesis import given
from hypothesis import strategies as st

from soba.encode import shards as shards_module
from soba.encode.files import looks_of
from soba.encode.pictures import NoPicture
from soba.encode.shards import SourceShard, list_shards


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of ten pictures, in the present folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    for number in range(10):
        folder = "photos/deep" if number % 2 else "photos"
        (tmp_path / folder / f"{number}.png").write_bytes(png(number))
    return tmp_path / "photos"


def names(shards):
    return [[picture.name for picture in shard.pictures()] for shard in shards]


def test_files_are_cut_in_the_order_of_their_names(photos):
    everything = [f"photos/{n}.png" for n in (0, 2, 4, 6, 8)]
    everything += [f"photos/deep/{n}.png" for n in (1, 3, 5, 7, 9)]
    shards = list_shards("photos", size=4)
    assert names(shards) == [everything[:4], everything[4:8], everything[8:]]
    assert [shard.count for shard in shards] == [4, 4, 2]
    assert {shard.kind for shard in shards} == {"files"}
    assert list_shards("photos", size=4) == shards
    assert list_shards(["photos/deep/*.png", "photos/[0-9].png"], size=4) == shards
    assert names(list_shards("photos/**/*.png")) == [everything]
    with open("list.txt", "w") as lines:  # a list's order, and what it says twice, decides nothing
        lines.write("\n".join([*reversed(everything), everything[0]]))
    assert list_shards("list.txt", size=4) == shards
    with open("table.csv", "w") as lines:
        lines.write("\n".join(["label,path", *(f"x,{name}" for name in everything)]))
    assert list_shards("table.csv", size=4) == shards


def test_a_list_may_name_what_is_not_there(photos):
    with open("table.csv", "w") as lines:
        lines.write("path,label\nphotos/0.png,x\n,x\nphotos/none.png,x\n")
    [shard] = list_shards("table.csv")
    nothing, fine, missing = shard.pictures()  # a picture for every row
    assert isinstance(nothing, NoPicture) and nothing.problem == "no path"
    assert fine.open().size == (8, 8)
    with pytest.raises(FileNotFoundError):
        missing.open()
    assert shard.changed() is None
    (photos / "none.png").write_bytes(png(1))
    assert shard.changed().startswith("photos/0.png and 1 more: not what was listed")


def test_tars_and_parquet_files_are_a_shard_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        (tmp_path / f"train-{number:03d}.tar").write_bytes(tar_content(webdataset(number + 1)))
    tars = [f"train-{number:03d}.tar" for number in range(3)]
    for source in (".", "*.tar", "train-{000..002}.tar", tars, tars[::-1]):
        shards = list_shards(source)
        assert [shard.paths for shard in shards] == [(name,) for name in tars]
        assert [shard.kind for shard in shards] == ["tar"] * 3
        assert [shard.count for shard in shards] == [None] * 3
        assert names(shards)[1] == ["train-001.tar/0000.png", "train-001.tar/0001.png"]
    hugging_face("a.parquet", [png(1), png(2)])
    [shard] = list_shards("a.parquet")
    assert (shard.kind, shard.count) == ("parquet", 2)
    assert names([shard]) == [["a.parquet/0.png", "a.parquet/1.png"]]
    with pytest.raises(ValueError, match=r"^\.: holds Parquet files and tars; say which with a"):
        list_shards(".")
    with pytest.raises(ValueError, match=r"train-003\.tar: not found"):
        list_shards("train-{000..003}.tar")


def test_a_damaged_archive_is_listed_and_says_so_when_it_is_read(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing")
    [shard] = list_shards(tmp_path)
    assert shard.count is None
    [picture] = shard.pictures()
    assert picture.name == str(tmp_path / "a.parquet") and picture.problem


def test_embeddings_with_and_without_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.eye(5, dtype=np.float16)
    for number in range(2):
        np.save(f"part{number}.npy", rows * (number + 2))
    pq.write_table(pa.table({"key": list("abcde")}), "part1.parquet")
    one, two = list_shards(".")
    assert (one.kind, one.paths, one.count) == ("embeddings", ("part0.npy",), 5)
    assert two.paths == ("part1.npy", "part1.parquet")
    [(keys, features)] = one.features()
    assert keys[0] == "part0.npy/0" and (features == np.eye(5)).all()
    [(keys, features)] = two.features()
    assert keys == list("abcde") and features.dtype == np.float32
    with pytest.raises(ValueError, match=r"part0\.npy: holds features, not images"):
        one.pictures()
    pq.write_table(pa.table({"key": list("abcde")}), "other.parquet")
    with pytest.raises(ValueError, match="holds Parquet files and embeddings"):
        list_shards(".")


@pytest.mark.parametrize("is_remote", [False, True])
def test_embeddings_as_clip_retrieval_lays_them_out(tmp_path, monkeypatch, store, is_remote):
    monkeypatch.chdir(tmp_path)
    for folder in ("out/img_emb", "out/text_emb", "out/metadata"):
        (tmp_path / folder).mkdir(parents=True)
    for part in range(2):
        for kind in ("img", "text"):
            np.save(f"out/{kind}_emb/{kind}_emb_{part}.npy", np.ones((3, 4), np.float16))
        paths = [f"{part}/{row}.jpg" for row in range(3)]
        pq.write_table(
            pa.table({"image_path": paths, "caption": list("abc")}),
            f"out/metadata/metadata_{part}.parquet",
        )
    root = "out"
    if is_remote:
        for path in tmp_path.rglob("*.*"):
            store.put(str(path.relative_to(tmp_path)), path.read_bytes())
        root = f"{store.url}/out"
    for source in (root, f"{root}/img_emb", f"{root}/img_emb/*.npy"):
        shards = list_shards(source)
        assert [shard.paths for shard in shards] == [
            (f"{root}/img_emb/img_emb_{part}.npy", f"{root}/metadata/metadata_{part}.parquet")
            for part in range(2)
        ]
        [(keys, features)] = shards[1].features()
        assert keys == ["1/0.jpg", "1/1.jpg", "1/2.jpg"] and features.shape == (3, 4)


def test_by_url(store):
    for number in range(5):
        store.put(f"photos/{number}.png", png(number))
    url = f"{store.url}/photos"
    shards = list_shards(url, size=3)
    assert names(shards) == [[f"{url}/{n}.png" for n in range(3)], [f"{url}/3.png", f"{url}/4.png"]]
    assert list_shards(f"{url}/*.png", size=3) == shards
    store.put("photos/4.png", png(4) + b" ")
    assert shards[0].changed() is None and "4.png" in list_shards(url)[0].paths[4]
    assert "not what was listed" in shards[1].changed()
    tar = store.put("shards/a.tar", tar_content(webdataset(2)))
    [shard] = list_shards(f"{store.url}/shards")
    assert names([shard]) == [[f"{tar}/0000.png", f"{tar}/0001.png"]]
    with pytest.raises(ValueError, match=r"none\.tar: not found"):
        list_shards(f"{store.url}/none.tar")


def test_a_store_is_asked_once_for_all_files(store, monkeypatch, tmp_path):
    """One request after the other would take hours for a lake."""
    np.save(tmp_path / "a.npy", np.ones((3, 4), np.float16))
    pq.write_table(pa.table({"key": list("abc")}), tmp_path / "a.parquet")
    for number in range(20):
        store.put(f"tars/{number:02d}.tar", tar_content(webdataset(1)))
        store.put(f"arrays/{number:02d}.npy", (tmp_path / "a.npy").read_bytes())
        store.put(f"arrays/{number:02d}.parquet", (tmp_path / "a.parquet").read_bytes())
    asked, looks_at = Counter(), []
    kind = type(store.system)
    for name in ("info", "exists"):
        monkeypatch.setattr(kind, name, counted(getattr(kind, name), asked))

    def look(paths, **settings):
        looks_at.append(paths)
        return looks_of(paths, **settings)

    monkeypatch.setattr(shards_module, "looks_of", look)
    for source in ("tars/{00..19}.tar", "arrays/{00..19}.npy"):
        listed = list_shards(f"{store.url}/{source}")
        assert len(listed) == 20 and set(asked.values()) == {1} and len(looks_at) == 1
        assert all(shard.changed() is None for shard in listed)
        asked.clear()
        looks_at.clear()
    assert {len(shard.paths) for shard in listed} == {2}  # the tables, too
    with pytest.raises(ValueError, match=r"tars/20\.tar: not found"):
        list_shards(f"{store.url}/tars/{{00..20}}.tar")
    assert len(looks_at) == 1


def counted(method, asked):
    def ask(system, path, **settings):
        asked[path] += 1
        return method(system, path, **settings)

    return ask


def test_a_shard_tells_what_has_changed(photos):
    one, two = list_shards("photos", size=5)
    assert one.changed() is None and two.changed() is None
    (photos / "4.png").write_bytes(png(4) + b" ")
    assert one.changed() == (
        "photos/0.png and 4 more: not what was listed, size or time of change differ"
    )
    os.utime(photos / "deep" / "1.png", ns=(0, 1))  # replaced by one of its size
    assert "not what was listed" in two.changed()
    (photos / "deep" / "1.png").unlink()
    assert two.changed() == "photos/deep/1.png: not there"


def test_shards_pickle_and_are_json(photos):
    for shard in list_shards("photos", size=4):
        assert pickle.loads(pickle.dumps(shard)) == shard
        copy = SourceShard.from_json(json.loads(json.dumps(shard.to_json())))
        assert copy == shard and hash(copy) == hash(shard)
        assert copy.changed() is None


@given(st.sampled_from(["files", "tar", "parquet", "embeddings"]), st.text(), st.integers(0))
def test_any_shard_is_json(kind, path, count):
    shard = SourceShard(kind, (path,), "00", count)
    assert SourceShard.from_json(json.loads(json.dumps(shard.to_json()))) == shard


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "zip"},
        {"kind": ["tar"]},
        {"paths": []},
        {"paths": "a.tar"},
        {"paths": ["a.tar", "b.tar"]},
        {"paths": [3]},
        {"stamp": None},
        {"count": -1},
        {"count": "7"},
        {"count": True},
        {"more": 1},
    ],
)
def test_json_that_is_no_shard(change):
    value = SourceShard("tar", ("a.tar",), "00").to_json() | change
    with pytest.raises(ValueError, match=r"not a shard of a source|not the number of rows"):
        SourceShard.from_json(value)


@pytest.mark.parametrize("value", [None, [], "tar", {"kind": "tar"}])
def test_values_that_are_no_shard(value):
    with pytest.raises(ValueError, match="not a shard of a source"):
        SourceShard.from_json(value)


def test_sources_that_are_none(photos, tmp_path):
    (tmp_path / "empty").mkdir()
    (photos / "a.tar").write_bytes(tar_content(webdataset(1)))
    for source, why in {
        "empty": "empty: holds no images, tars",
        "emp*": r"emp\*: holds no images, tars",
        "none": "none: not found",
        "no*": r"no\*: not found",
        "none.tar": "none.tar: not found",
        "photos": "photos: holds images and tars",
    }.items():
        with pytest.raises(ValueError, match=why):
            list_shards(source)
    with pytest.raises(ValueError, match="no files"):
        list_shards([])
    with pytest.raises(ValueError, match="size must be at least 1, not 0"):
        list_shards("photos", size=0)
