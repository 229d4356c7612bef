"""JSON that is nested too deeply, wherever it is read: one line that names the file."""

import json

import pytest
from image_trees import Pictures, coop_tree, generated_split
from onnx_models import model_folder
from report_records import record
from run_cli import refused

from soba.bench.method_factory import generated_views
from soba.bench.protocol import views
from soba.bench.record import read_object
from soba.datasets import load
from soba.encode.onnx import OnnxEncoder
from soba.encode.prompts import read_class_names
from soba.feature_set import FeatureSet, read_note
from soba.report.read import read_results
from soba.testing import example_stream

DEEP = "[" * 100_000 + "]" * 100_000
FEATURES, LABELS, TEXT = example_stream(n=20, classes=4, width=8)


@pytest.mark.parametrize("read", [read_class_names, read_object, read_results])
def test_files_of_json(tmp_path, read):
    path = tmp_path / "deep.json"
    path.write_text(DEEP)
    with pytest.raises(ValueError, match=r"deep\.json: "):
        read(path)


def test_a_record_among_others_is_left_out(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "deep.json").write_text(DEEP)
    (tmp_path / "efficiency.json").write_text(DEEP)
    assert "records/deep.json: it is nested too deeply" in refused("report", tmp_path)


def test_a_model_and_a_split_file(tmp_path):
    folder = model_folder(tmp_path / "model")
    (folder / "open_clip_config.json").write_text(DEEP)
    with pytest.raises(ValueError, match=r"open_clip_config\.json: .*nested too deeply"):
        OnnxEncoder.load(folder)
    coop_tree(tmp_path, Pictures(tmp_path), "dtd", generated_split("dtd"))
    (file,) = (tmp_path / "dtd").glob("split*.json")
    file.write_text(DEEP)
    with pytest.raises(ValueError, match=r"split_zhou.*\.json: .*nested too deeply"):
        load("dtd", tmp_path)


@pytest.mark.parametrize(("key", "read"), [("soba", FeatureSet.load), ("note", read_note)])
def test_what_a_feature_file_says_of_itself(tmp_path, key, read):
    path = tmp_path / "f.safetensors"
    header = json.dumps({"__metadata__": {key: DEEP}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match=r"f\.safetensors: .*nested too deeply"):
        read(path)


def test_what_is_said_of_views_is_free_text():
    for policy in (DEEP, "as I like it", "[1]", '{"generated": "many"}', None):
        features = FeatureSet(FEATURES, TEXT, labels=LABELS, view_policy=policy)
        assert generated_views(features) == 0
    assert views(record(view_policy=f'{{"count": {DEEP}}}'))
