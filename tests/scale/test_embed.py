"""Shards of images become feature files: the same bytes whoever makes them, and only once."""

import os
import shutil

import numpy as np
import pytest
from archives import tar_content
from flaky import FlakyReads
from PIL import Image
from runs import NAMES, PROMPTS, make_folder, make_run, rows_of, write_lake

from soba.datasets.icons import icons
from soba.encode.feature_shards import read_feature_shard
from soba.encode.onnx import OnnxEncoder
from soba.encode.prompts import classifier
from soba.scale.embed import Embedder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Twelve icons, of which one cannot be read; not to be written to."""
    folder = tmp_path_factory.mktemp("pictures")
    drawn = icons("source", per_class=1)
    for index in range(12):
        drawn.image(index).save(folder / f"{index:02d}.png")
    (folder / "07.png").write_bytes(b"no picture")
    return folder


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.path.glob("features-*.parquet"))}


def test_images_become_rows_at_their_positions(tmp_path, tiny, pictures):
    folder = make_folder(tmp_path / "run", pictures, tiny, shard_size=5)
    counted = []
    embedder = Embedder(folder, lambda: tiny, batch=2, step=counted.append)
    results = [embedder(number) for number in range(3)]
    assert [(each.rows, len(each.broken), each.was_there) for each in results] == [
        (5, 0, False),
        (4, 1, False),
        (2, 0, False),
    ]
    assert sum(counted) == 12
    ids, features = rows_of(folder)
    expected = [n << 32 | p for n, size in enumerate((5, 5, 2)) for p in range(size)]
    expected.remove(1 << 32 | 2)  # 07.png
    assert ids.tolist() == expected
    [broken] = folder.features(1).broken
    assert (broken.id, os.path.basename(broken.key)) == (1 << 32 | 2, "07.png")
    assert broken.error
    plain = [tiny.preprocess(Image.open(path)) for path in sorted(pictures.glob("*.png"))[:3]]
    np.testing.assert_allclose(features[:3], tiny.encode_pixels(np.stack(plain)), atol=1e-3)


def test_labels_and_entropies_are_those_of_the_stored_features(tmp_path, tiny):
    import pyarrow.parquet as pq

    folder = make_run(tmp_path, tiny, (40,))
    _, features = rows_of(folder)
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    text = classifier(tiny.encode_texts, NAMES, PROMPTS)
    logits = tiny.logit_scale * features.astype(np.float64) @ text.T
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    table = pq.read_table(folder.feature_file(0))
    assert table["clip_label"].to_pylist() == shares.argmax(axis=1).tolist()
    entropies = -(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=1)
    np.testing.assert_allclose(table["clip_entropy"].to_numpy(), entropies, rtol=1e-3, atol=1e-5)


def test_who_makes_a_file_leaves_no_trace_in_it(tmp_path, tiny, pictures):
    one = make_folder(tmp_path / "one", pictures, tiny, shard_size=4)
    two = make_folder(tmp_path / "two", pictures, tiny, shard_size=4)
    alone = Embedder(one, lambda: tiny)
    for number in range(3):
        alone(number)
    for number in (2, 0, 1):  # three workers, each with an encoder of its own
        Embedder(two, lambda: OnnxEncoder.tiny(threads=1))(number)
    assert bytes_of(one) == bytes_of(two)


def test_what_is_there_stays(tmp_path, tiny, pictures):
    folder = make_folder(tmp_path / "run", pictures, tiny, shard_size=4)
    first = Embedder(folder, lambda: tiny)(1)
    before = folder.feature_file(1).stat().st_mtime_ns

    def no_encoder():
        raise AssertionError("the encoder is opened for nothing")

    again = Embedder(folder, no_encoder)(1)
    assert again.was_there and (again.rows, again.broken) == (first.rows, first.broken)
    assert folder.feature_file(1).stat().st_mtime_ns == before


def test_what_is_there_must_be_of_this_run(tmp_path, tiny):
    here = make_run(tmp_path / "here", tiny, (5, 5))
    there = make_run(tmp_path / "there", tiny, (5, 5), seed=9)
    shutil.copy(there.feature_file(0), here.feature_file(0))
    with pytest.raises(ValueError, match=r"features-00000.parquet: is of another run"):
        Embedder(here, lambda: tiny)(0)
    shutil.copy(here.feature_file(1), here.feature_file(0))  # the right run, the wrong shard
    with pytest.raises(ValueError, match=r"features-00000.parquet"):
        here.features(0)


def test_a_truncated_feature_file_is_named(tmp_path, tiny):
    folder = make_run(tmp_path, tiny, (50,))
    file = folder.feature_file(0)
    content = file.read_bytes()
    for cut in range(0, len(content), 997):
        file.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=r"features-00000.parquet"):
            Embedder(folder, lambda: tiny)(0)


def test_a_shard_that_changed_is_refused(tmp_path, tiny):
    lake = write_lake(tmp_path / "lake", tiny, (5, 5, 5))
    folder = make_folder(tmp_path / "run", lake, tiny)
    embedder = Embedder(folder, lambda: tiny)
    embedder(0)
    np.save(lake / "part-001.npy", np.ones((5, 128), np.float32))
    (lake / "part-002.npy").unlink()
    for number, what in ((1, "part-001.npy"), (2, "part-002.npy")):
        with pytest.raises(ValueError, match=f"shard {number} is not any more .*{what}"):
            embedder(number)
        assert not folder.feature_file(number).exists()
    assert embedder(0).was_there  # what was encoded before it changed is not asked for again


def test_a_shard_that_changes_while_it_is_read_leaves_no_file(tmp_path, tiny, pictures):
    copied = shutil.copytree(pictures, tmp_path / "pictures")
    folder = make_folder(tmp_path / "run", copied, tiny, shard_size=12)

    def change(count):
        Image.new("RGB", (80, 80)).save(copied / "00.png")

    with pytest.raises(ValueError, match="shard 0 is not any more"):
        Embedder(folder, lambda: tiny, batch=4, step=change)(0)
    assert bytes_of(folder) == {}


def test_a_failure_that_passes_is_not_recorded(tmp_path, tiny, pictures, store, monkeypatch):
    members = [(path.name, path.read_bytes()) for path in sorted(pictures.iterdir())]
    store.put("lake/a.tar", tar_content(members))
    for name, content in members:
        store.put(f"loose/{name}", content)
    reads = FlakyReads(monkeypatch, store.system)
    for source in ("lake", "loose"):
        folder = make_folder(tmp_path / source, f"{store.url}/{source}", tiny)
        embedder = Embedder(folder, lambda: tiny, batch=4)
        reads.fail_at(1, ConnectionResetError(104, "Connection reset by peer"))
        with pytest.raises(OSError, match=rf"^{store.url}/{source}/.*: Connection reset by peer"):
            embedder(0)
        assert bytes_of(folder) == {}
        again = embedder(0)
        assert (again.rows, len(again.broken), again.was_there) == (11, 1, False)


def test_rows_without_a_direction_are_recorded(tmp_path, tiny):
    lake = write_lake(tmp_path / "lake", tiny, (4,))
    rows = np.load(lake / "part-000.npy")
    rows[1] = 0
    rows[3] = np.nan
    np.save(lake / "part-000.npy", rows)
    folder = make_folder(tmp_path / "run", lake, tiny)
    result = Embedder(folder, lambda: tiny)(0)
    assert result.rows == 2 and [each.id for each in result.broken] == [1, 3]
    assert [key.rpartition("/")[2] for key in next(folder.blocks(0)).keys] == ["0", "2"]


def test_features_of_another_width_are_refused(tmp_path, tiny):
    lake = tmp_path / "lake"
    lake.mkdir()
    np.save(lake / "a.npy", np.ones((3, 16), np.float32))
    folder = make_folder(tmp_path / "run", lake, tiny)
    with pytest.raises(ValueError, match=r"a.npy: rows of 16 dimensions"):
        Embedder(folder, lambda: tiny)(0)
    assert bytes_of(folder) == {}


def test_another_encoder_makes_no_features(tmp_path, tiny, pictures):
    folder = make_folder(tmp_path / "run", pictures, tiny)
    other = OnnxEncoder.tiny(threads=1)
    other.fingerprint = "another"
    with pytest.raises(ValueError, match="was begun with encoder"):
        Embedder(folder, lambda: other)(0)


def test_feature_files_say_what_they_are(lake_run):
    shard = read_feature_shard(lake_run.feature_file(3))
    assert shard.meta.id_space == lake_run.manifest.id_space
    assert shard.meta.source_stamp == lake_run.manifest.shards[3].stamp
    assert shard.meta.encoder_fingerprint == lake_run.manifest.encoder
