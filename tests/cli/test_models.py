"""classify and embed with encoders other than the tiny CLIP."""

import csv
import shutil

import numpy as np
import pytest
import tiny_clip
from onnx_models import image_tower
from PIL import Image
from run_cli import refused, soba_command

import soba
from soba.bench.metrics import softmax
from soba.cli import _common
from soba.encode.onnx import OnnxEncoder

CLASSES = ("ant", "bee", "cat", "dog")


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_lone_image_tower_with_text_features(icon_stream, tmp_path):
    tower = image_tower(tmp_path / "image.onnx")
    rng = np.random.default_rng(0)
    np.save(tmp_path / "text.npy", rng.normal(size=(4, 4)))
    files = sorted(icon_stream.iterdir())[:5]
    options = ("--model", tower, "--method", "zero-shot")
    command = ("classify", *files, "--classes", ",".join(CLASSES), *options)
    assert "has no text tower" in refused(*command)
    path = tmp_path / "out.csv"
    soba_command(*command, "--text-features", tmp_path / "text.npy", "-o", path)
    lines = rows(path)
    encoder = OnnxEncoder.load(tower)
    pixels = np.stack([encoder.preprocess(Image.open(file)) for file in files])
    text = np.load(tmp_path / "text.npy")
    logits = encoder.encode_pixels(pixels) @ (text / np.linalg.norm(text, axis=1)[:, None]).T
    assert [row["label"] for row in lines] == [CLASSES[best] for best in logits.argmax(1)]
    assert [row["label"] for row in lines] == [row["zero_shot"] for row in lines]


@pytest.mark.parametrize("name", ["RN50", "ViT-B-16"])
def test_open_clip_models_embed_and_classify(name, icon_folder, tmp_path, monkeypatch):
    tiny_clip.torch.manual_seed(0)
    encoder = _common.load_encoder(name, "random", device="cpu")
    loaded = []

    def once(model, pretrained, **options):  # random weights are others each time
        loaded.append((model, pretrained, options["device"]))
        return encoder

    monkeypatch.setattr(_common, "load_encoder", once)
    folder = tmp_path / "images"
    for file in sorted(icon_folder.glob("*/*.png"))[2:6]:
        (folder / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / file.parent.name)
    options = ("--model", name, "--pretrained", "random", "--device", "cpu", "--batch", 4)
    features = tmp_path / "features.safetensors"
    printed = soba_command("embed", folder, "-o", features, *options)
    width = {"RN50": 1024, "ViT-B-16": 512}[name]
    assert f"4 x {width} features, labelled, 2 classes" in printed
    feature_set = soba.FeatureSet.load(features)
    feature_set.check_values()
    assert feature_set.prompts == ("a photo of a {}.",)
    names = ",".join(feature_set.class_names)
    soba_command(
        "classify", folder, "--classes", names, "-o", tmp_path / "out.csv", *options,
        "--method", "zero-shot",
    )  # fmt: skip
    logits = np.asarray(feature_set.image_features, np.float32) @ feature_set.text_features.T
    for row, cosines in zip(rows(tmp_path / "out.csv"), logits, strict=True):
        chances = softmax(feature_set.logit_scale * cosines[None])[0]
        assert float(row["zero_shot_probability"]) == pytest.approx(chances.max(), abs=2e-2)
    assert loaded == [(name, "random", "cpu")] * 2
