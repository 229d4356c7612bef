"""What a run is about is fixed once, whoever comes first."""

import json
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import NAMES, make_folder, write_lake

from soba.encode.onnx import OnnxEncoder
from soba.encode.shards import SourceShard
from soba.scale.folder import ShardFolder
from soba.scale.manifest import Manifest, ids_of, parse_part, read_manifest


@given(st.integers(1, 70), st.integers(1, 70))
def test_workers_share_all_shards_out(shards, count):
    parts = (SourceShard("tar", (f"{n}.tar",), "stamp") for n in range(shards))
    manifest = Manifest("lake", 1, tuple(parts), "encoder", None, 4, 100.0, ("cat",), ("a {}.",))
    taken = [number for index in range(count) for number in manifest.part(index, count)]
    assert sorted(taken) == list(range(shards))


def test_each_worker_takes_every_nth_shard(lake_run):
    manifest = lake_run.manifest
    assert [list(manifest.part(index, 3)) for index in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert list(manifest.part(9, 20)) == []  # more workers than shards: nothing to do
    for wrong in ((3, 3), (-1, 3), (0, 0)):
        with pytest.raises(ValueError, match="shard"):
            manifest.part(*wrong)


@pytest.mark.parametrize("text", ["4/4", "1", "a/4", "1/0", "-1/4", "1/4/2", ""])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(ValueError, match="shard"):
        parse_part(text)


def test_ids_of_a_shard_are_one_interval():
    assert ids_of(0, np.arange(3)).tolist() == [0, 1, 2]
    assert ids_of(2**31 - 1, np.array([2**32 - 1])).tolist() == [2**63 - 1]
    with pytest.raises(ValueError, match="shard 4"):
        ids_of(4, np.array([2**32]))


def test_the_same_lake_makes_the_same_manifest(tmp_path, tiny, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lake(tmp_path / "lake", tiny, (5, 6))
    one = make_folder(tmp_path / "one", "lake", tiny)
    two = make_folder(tmp_path / "two", "lake", tiny)
    assert one.manifest.digest == two.manifest.digest
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (
        tmp_path / "two" / "manifest.json"
    ).read_bytes()
    assert read_manifest(tmp_path / "one" / "manifest.json") == one.manifest
    assert pickle.loads(pickle.dumps(one)).manifest == one.manifest
    again = make_folder(tmp_path / "one", "lake", tiny)
    assert again.manifest == one.manifest
    np.testing.assert_array_equal(again.text_features, one.text_features)


def test_all_who_come_at_once_work_on_one_manifest(tmp_path, tiny):
    lake = write_lake(tmp_path / "lake", tiny, (4, 4, 4))
    barrier, digests, errors = threading.Barrier(6), [], []

    def come(names):
        barrier.wait()
        try:
            digests.append(make_folder(tmp_path / "run", lake, tiny, names).manifest.digest)
        except ValueError as error:
            errors.append(str(error))

    lists = [NAMES, NAMES[::-1]] * 3
    threads = [threading.Thread(target=come, args=(names,)) for names in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(digests) == 3 and len(set(digests)) == 1
    assert len(errors) == 3 and all("the classes" in error for error in errors)
    assert digests[0] == ShardFolder.open(tmp_path / "run").manifest.digest
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "manifest.json",
        "text.safetensors",
    ]


def test_another_run_in_the_folder_is_refused_and_both_are_named(tmp_path, tiny):
    lake = write_lake(tmp_path / "lake", tiny, (4, 4))
    other = write_lake(tmp_path / "other", tiny, (4, 4), seed=5)
    first = make_folder(tmp_path / "run", lake, tiny)
    for source, names, what in ((other, NAMES, "the input"), (lake, NAMES[1:], "the classes")):
        with pytest.raises(ValueError, match=what) as caught:
            make_folder(tmp_path / "run", source, tiny, names)
        message = str(caught.value)
        assert str(tmp_path / "run") in message and first.manifest.digest[:8] in message
        assert repr(str(lake)) in message and repr(str(source)) in message
    assert ShardFolder.open(tmp_path / "run").manifest == first.manifest


def test_another_encoder_is_refused(tmp_path, tiny):
    lake = write_lake(tmp_path / "lake", tiny, (4,))
    make_folder(tmp_path / "run", lake, tiny)
    other = OnnxEncoder.tiny(threads=1)
    other.fingerprint = "another"
    with pytest.raises(ValueError, match="the encoder"):
        make_folder(tmp_path / "run", lake, other)


def test_class_names_that_cannot_be_told_apart_leave_no_manifest(tmp_path, tiny):
    lake = write_lake(tmp_path / "lake", tiny, (4,))
    with pytest.raises(ValueError, match="bell"):
        make_folder(tmp_path / "run", lake, tiny, ("bell", "bell"))
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("name", ["manifest.json", "text.safetensors"])
def test_a_file_that_was_lost_is_made_again(tmp_path, tiny, name):
    lake = write_lake(tmp_path / "lake", tiny, (4, 4))
    make_folder(tmp_path / "run", lake, tiny)
    content = (tmp_path / "run" / name).read_bytes()
    (tmp_path / "run" / name).unlink()
    make_folder(tmp_path / "run", lake, tiny)
    assert (tmp_path / "run" / name).read_bytes() == content


def test_a_lost_manifest_is_not_replaced_by_one_of_another_run(tmp_path, tiny):
    lake = write_lake(tmp_path / "lake", tiny, (4, 4))
    make_folder(tmp_path / "run", lake, tiny)
    (tmp_path / "run" / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"text\.safetensors: is of another run"):
        make_folder(tmp_path / "run", lake, tiny, NAMES[1:])
    make_folder(tmp_path / "run", lake, tiny)


@pytest.mark.parametrize("name", ["manifest.json", "text.safetensors"])
def test_a_damaged_file_is_named(tmp_path, tiny, name):
    lake = write_lake(tmp_path / "lake", tiny, (4,))
    make_folder(tmp_path / "run", lake, tiny)
    path = tmp_path / "run" / name
    content = path.read_bytes()
    for cut in range(0, len(content) - 2, max(1, len(content) // 16)):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=name):
            ShardFolder.open(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"shards": [{"kind": "tar"}]},
        {"shards": []},
        {"class_names": [1, 2]},
        {"templates": None},
    ],
)
def test_a_manifest_may_hold_anything(tmp_path, tiny, change):
    lake = write_lake(tmp_path / "lake", tiny, (4,))
    make_folder(tmp_path / "run", lake, tiny)
    path = tmp_path / "run" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"manifest\.json"):
        ShardFolder.open(tmp_path / "run")
