import json
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archives import hugging_face, png, tar_content, webdataset
from flaky import FlakyReads
from run_cli import refused, soba_command

import soba
from soba.datasets import load_images
from soba.datasets.archive import _HELD


def shade(images, index):
    return images.image(index).getpixel((0, 0))[0]


@pytest.fixture(params=["a.tar", "a.tar.gz", "a.parquet"])
def archive(request, tmp_path):
    """200 pictures, each of its own shade."""
    path = tmp_path / request.param
    if path.suffix == ".parquet":
        hugging_face(path, [png(number) for number in range(200)], row_group_size=70)
    else:
        members = ((f"{number:03d}.png", png(number)) for number in range(200))
        path.write_bytes(tar_content(members, "w:gz" if path.suffix == ".gz" else "w"))
    return path


def test_images_by_their_numbers_in_any_order(archive):
    images = load_images(archive, ["cat", "dog"])
    assert len(images) == 200 and images.name == "a"
    assert images.keys[7] in (f"{archive}/007.png", f"{archive}/7.png")
    order = [*range(200), 3, 2, 199, 0, 150, 150, *range(0, 200, _HELD), *range(199, 190, -1)]
    assert [shade(images, index) for index in order] == order


def test_threads_share_one_reader(archive):
    images, shades = load_images(archive, ["cat", "dog"]), {}

    def read(start):
        for index in range(start, 200, 4):
            shades[index] = shade(images, index)

    threads = [threading.Thread(target=read, args=[start]) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shades == {index: index for index in range(200)}


def labelled(path, labels, note=None):
    table = pa.table({"image": [png(1)] * len(labels), "label": labels})
    if note is not None:
        features = {"label": {"names": note, "_type": "ClassLabel"}}
        text = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": text})
    pq.write_table(table, path)
    return path


def test_labels_of_a_parquet_file(tmp_path):
    path = tmp_path / "a.parquet"
    images = load_images(labelled(path, ["dog", "cat", "dog"]))
    assert images.class_names == ("cat", "dog") and images.labels.tolist() == [1, 0, 1]
    images = load_images(labelled(path, [2, 0, 0], ["cat", "hot_dog", "fox"]))
    assert images.class_names == ("cat", "hot dog", "fox") and images.labels.tolist() == [2, 0, 0]
    images = load_images(labelled(path, [2, 0, 0], ["a", "b", "c"]), ["d", "e", "f"])
    assert images.class_names == ("d", "e", "f") and images.labels.tolist() == [2, 0, 0]
    for none in ([-1, -1], [None, None]):
        images = load_images(labelled(path, none, ["cat", "dog"]), ["cat", "dog"])
        assert images.labels is None and images.class_names == ("cat", "dog")
    with pytest.raises(ValueError, match=r"a\.parquet: no label in rows 1"):
        load_images(labelled(path, [0, -1, 1], ["cat", "dog"]))
    with pytest.raises(ValueError, match=r"a\.parquet: labels that are not exactly one of the 2"):
        load_images(labelled(path, [0, 2], ["cat", "dog"]))


def test_what_holds_no_image_is_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_content([]))
    (tmp_path / "a.parquet").write_bytes(b"no table")
    for name, why in {"a.tar": "holds no images", "a.parquet": "Parquet", "b.tar": "found"}.items():
        with pytest.raises(ValueError, match=rf"{name}: .*{why}"):
            load_images(tmp_path / name)


def test_an_archive_that_was_replaced_is_told(tmp_path):
    tar = tmp_path / "a.tar"
    tar.write_bytes(tar_content(webdataset(5)))
    images = load_images(tar)
    tar.write_bytes(tar_content(webdataset(2)))
    assert shade(images, 1) == 1
    with pytest.raises(OSError, match="changed since it was listed"):
        images.image(4)


def test_embed_makes_of_an_archive_what_it_makes_of_its_files(tmp_path, icon_folder):
    paths = sorted(icon_folder.rglob("*.png"))
    names = sorted({path.parent.name for path in paths})
    (tmp_path / "names.txt").write_text("\n".join(names))
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
    images.append({"bytes": b"no picture", "path": "torn.png"})
    labels = [names.index(path.parent.name) for path in paths] + [0]
    table = pa.table({"image": pa.array(images, kind), "label": labels})
    pq.write_table(table, tmp_path / "icons.parquet")
    members = [(f"{n:02d}.png", path.read_bytes()) for n, path in enumerate(paths)]
    (tmp_path / "icons.tar").write_bytes(tar_content(members))
    (tmp_path / "list.txt").write_text("\n".join(map(str, paths)))
    features = {}
    for source in (
        icon_folder,
        *(tmp_path / f for f in ("icons.parquet", "icons.tar", "list.txt")),
    ):
        output = tmp_path / f"{source.name}.safetensors"
        command = ["embed", source, "-o", output, "--classes-file", tmp_path / "names.txt"]
        printed = soba_command(*command)
        assert ("torn.png" in printed) == (source.suffix == ".parquet")
        features[source.name] = soba.FeatureSet.load(output)
    folder = features.pop("icons")
    for name, made in features.items():
        np.testing.assert_array_equal(made.image_features, folder.image_features, name)
        assert made.class_names == folder.class_names
    assert features["icons.parquet"].labels.tolist() == folder.labels.tolist()
    assert features["icons.tar"].labels is None
    (tmp_path / "icons.tar").write_bytes(tar_content(members[:3]))
    line = refused(
        "embed",
        tmp_path / "icons.tar",
        "-o",
        tmp_path / "icons.tar.safetensors",
        "--classes-file",
        tmp_path / "names.txt",
    )
    assert "holds other features" in line
    line = refused("embed", "memory://bucket/photos", "-o", tmp_path / "f.safetensors")
    assert "memory://bucket/photos: not found" in line


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Three tars and three Parquet files of four pictures each, in the present folder."""
    monkeypatch.chdir(tmp_path)
    for kind in ("tars", "tables"):
        (tmp_path / kind).mkdir()
    for part in range(3):
        contents = [png(4 * part + number) for number in range(4)]
        members = [(f"{number}.png", content) for number, content in enumerate(contents)]
        (tmp_path / "tars" / f"{part}.tar").write_bytes(tar_content(members))
        hugging_face(tmp_path / "tables" / f"{part}.parquet", contents)
    (tmp_path / "list.txt").write_text("tars/2.tar\ntars/0.tar\ntars/1.tar\n")
    return tmp_path


@pytest.mark.parametrize(
    "source",
    ["tars", "tars/*.tar", "tars/{0..2}.tar", "ta[r]s", "list.txt", "tables", "tables/*.parquet"],
)
def test_several_archives_are_one_set(shards, source):
    images = load_images(source, ["cat", "dog"])
    assert [shade(images, index) for index in range(12)] == list(range(12))
    assert len(set(images.keys)) == 12
    assert (images.labels is None) == ("tables" not in source)
    by_url = load_images(f"file://{shards}/tables/{{0,1}}.parquet", ["cat", "dog"])
    assert [shade(by_url, index) for index in (0, 7, 3)] == [0, 7, 3]
    assert by_url.labels.tolist() == [1] * 8
    assert by_url.recipe not in ("", images.recipe)


def test_several_archives_have_one_set_of_names(shards):
    labelled(shards / "tables" / "0.parquet", [0], ["cat", "dog"])
    labelled(shards / "tables" / "1.parquet", [1], ["cat", "dog"])
    images = load_images("tables/{0,1}.parquet")
    assert (images.class_names, images.labels.tolist()) == (("cat", "dog"), [0, 1])
    labelled(shards / "tables" / "1.parquet", [1], ["dog", "cat"])
    with pytest.raises(ValueError, match="note different class names"):
        load_images("tables/{0,1}.parquet")
    assert load_images("tables/{0,1}.parquet", ["cat", "dog"]).labels.tolist() == [0, 1]


def test_images_at_urls(shards, store):
    for number in range(5):
        store.put(f"photos/{number}.png", png(number))
    for source in ("", "/*.png", "/{0..4}.png"):
        images = load_images(f"{store.url}/photos{source}", ["cat", "dog"])
        assert images.keys == tuple(f"{store.url}/photos/{number}.png" for number in range(5))
        assert [shade(images, index) for index in (4, 0, 2)] == [4, 0, 2]
    np.save("a.npy", np.ones((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"a\.npy: holds features, which go with --shards"):
        load_images(f"file://{shards}/a.npy")


def test_a_listing_that_breaks_off_is_not_taken_for_a_shorter_set(shards, store, monkeypatch):
    url = store.put("a.tar", tar_content((f"{n}.png", png(n)) for n in range(30)))
    reads = FlakyReads(monkeypatch, store.system)
    reads.fail_at(1, ConnectionResetError(104, "Connection reset by peer"))
    with pytest.raises(OSError, match=r"a\.tar: Connection reset by peer"):
        load_images(url, ["cat", "dog"])
    assert len(load_images(url, ["cat", "dog"])) == 30


@pytest.mark.parametrize(
    "source", ["tars", "tars/{0..2}.tar", "photos/*.png", "photos/{0..11}.png"]
)
def test_embed_takes_what_classify_takes(shards, source):
    (shards / "photos").mkdir()
    for number in range(12):
        (shards / "photos" / f"{number}.png").write_bytes(png(number))
    (shards / "names.txt").write_text("cat\ndog\n")
    options = ("-o", "f.safetensors", "--classes-file", "names.txt")
    for prefix in ("", f"file://{shards}/"):
        assert "12 x 128 features" in soba_command("embed", prefix + source, *options)
        (shards / "f.safetensors").unlink()
    assert "no*.png: no such folder" in refused("embed", "no*.png", *options)
