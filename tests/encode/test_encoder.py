"""Encoders by name, and what they say of themselves."""

import contextlib
import subprocess
import sys

import numpy as np
import pytest
import tiny_clip
from onnx_models import image_tower, model_folder
from tiny_clip import CONFIG, open_clip, openclip
from tiny_clip import tiny_clip as small_clip

import soba
from soba.encode.encoder import Encoder, load_encoder, split_name
from soba.encode.onnx import OnnxEncoder
from soba.encode.prompts import classifier
from soba.tune.tpt import TPT


class Least(Encoder):
    """All that an encoder has to have, and nothing else."""

    name, width, logit_scale, fingerprint = "least", 4, 10.0, "least-1"
    preprocess = tiny_clip.Preprocess(size=2)

    def encode_pixels(self, pixels):
        return np.eye(4, dtype=np.float32)[: len(pixels)]

    def encode_texts(self, texts):
        return np.eye(4, dtype=np.float32)[[len(text) % 4 for text in texts]]


def test_what_an_encoder_need_not_say():
    least = Least()
    assert (least.device, least.precision, least.logit_bias) == ("cpu", "fp32", 0.0)
    assert least.text_tower is None and least.tokens(["a"]) is None
    with pytest.raises(ValueError, match="'Cat' and 'cat': the same"):
        classifier(least.encode_texts, ["Cat", "cat"], ["{}"])


def test_what_the_ones_of_soba_say(tmp_path):
    tiny, half = OnnxEncoder.tiny(), image_tower(tmp_path / "half.onnx", half=True)
    assert (tiny.device, tiny.precision, tiny.text_tower) == ("cpu", "fp32", None)
    assert OnnxEncoder.load(half).precision == "fp16"
    clip = small_clip(precision="autocast")
    assert (clip.device, clip.precision, clip.logit_bias) == ("cpu", "autocast", 0.0)
    assert clip.text_tower is not None
    biased = open_clip.CLIP(**CONFIG, init_logit_bias=-10.0)
    encoder = openclip.OpenClip(biased, tiny_clip.tokenizer, tiny_clip.Preprocess(size=32))
    assert encoder.logit_bias == -10.0


def test_tiny_in_torch_where_gradients_are_wanted():
    plain, tunable = load_encoder("tiny"), load_encoder("tiny", device="cpu", gradients=True)
    assert plain.text_tower is None and tunable.text_tower is not None
    sentences = ["an icon of a bell."]
    np.testing.assert_allclose(
        tunable.encode_texts(sentences), plain.encode_texts(sentences), atol=1e-4
    )
    assert soba.load_encoder is load_encoder


def test_gradients_that_are_not_to_be_had_are_refused(tmp_path, monkeypatch):
    folder = model_folder(tmp_path / "mine")
    for name in (folder, folder / "image.onnx"):
        with pytest.raises(ValueError, match="an ONNX model passes no gradients"):
            load_encoder(str(name), gradients=True)
    towerless = small_clip()
    towerless.text_tower = None
    monkeypatch.setattr(openclip.OpenClip, "load", lambda *names, **options: towerless)
    assert load_encoder("RN50/openai") is towerless
    with pytest.raises(ValueError, match="RN50/openai: no gradients pass"):
        load_encoder("RN50/openai", gradients=True)


class Borrowed(Encoder):
    """Nobody's class that soba knows, with a text tower that passes gradients."""

    def __init__(self):
        self._clip = small_clip()
        for name in ("name", "width", "preprocess", "logit_scale", "fingerprint", "text_tower"):
            setattr(self, name, getattr(self._clip, name))

    def encode_pixels(self, pixels):
        return self._clip.encode_pixels(pixels)

    def encode_texts(self, texts):
        return self._clip.encode_texts(texts)

    def tokens(self, texts):
        return tiny_clip.tokenizer(texts)  # of numpy


def test_tuners_ask_for_a_text_tower_and_not_for_a_class():
    names, rng = ["cat", "dog"], np.random.default_rng(0)
    views = rng.normal(size=(3, 10, 16)).astype(np.float32)
    direct, borrowed = TPT(small_clip(), names), TPT(Borrowed(), names)
    np.testing.assert_array_equal(borrowed.adapt(views), direct.adapt(views))
    for without in (Least(), OnnxEncoder.tiny()):
        with pytest.raises(ValueError, match=r"prompts cannot be tuned.*gradients=True"):
            TPT(without, names)


@pytest.mark.parametrize(
    ("name", "pretrained", "both"),
    [
        ("ViT-B-16/openai", None, ("ViT-B-16", "openai")),
        ("ViT-B-16", "openai", ("ViT-B-16", "openai")),
        ("RN50/weights/of/mine.pt", None, ("RN50", "weights/of/mine.pt")),
        ("RN50//weights/mine.pt", None, ("RN50", "/weights/mine.pt")),
        ("hf-hub:someone/something", None, ("hf-hub:someone/something", None)),
        ("local-dir:/models/mine", None, ("local-dir:/models/mine", None)),
        ("tiny", None, ("tiny", None)),
        ("models/mine.onnx", None, ("models/mine.onnx", None)),
        ("hf:someone/something", None, ("hf:someone/something", None)),
    ],
)
def test_names_that_say_model_and_weights(name, pretrained, both, monkeypatch):
    assert split_name(name, pretrained) == both
    asked = []
    monkeypatch.setattr(openclip.OpenClip, "load", lambda *names, **options: asked.append(names))
    if not name.startswith(("tiny", "models", "hf:")):
        with contextlib.suppress(AttributeError):
            load_encoder(name, pretrained)
        assert asked == [both]


def test_an_encoder_knows_what_to_open_it_by_again(tmp_path, monkeypatch):
    assert load_encoder("tiny").opened_as == {"name": "tiny", "precision": "fp32"}
    assert load_encoder("tiny", device="cpu", gradients=True).opened_as is None
    assert OnnxEncoder.tiny().opened_as is None  # nobody opened it by name
    folder = model_folder(tmp_path / "mine")
    weights = tmp_path / "weights.pt"
    weights.touch()
    monkeypatch.chdir(tmp_path)
    assert load_encoder("mine").opened_as["name"] == str(folder)
    assert load_encoder("mine/image.onnx").opened_as["name"] == str(folder / "image.onnx")
    monkeypatch.setattr(openclip.OpenClip, "load", lambda *names, **options: small_clip())
    for model, pretrained, name in (
        ("RN50", "openai", "RN50/openai"),
        ("RN50/openai", None, "RN50/openai"),
        ("RN50", "weights.pt", f"RN50/{weights}"),
        ("hf-hub:someone/something", None, "hf-hub:someone/something"),
    ):
        opened_as = load_encoder(model, pretrained, precision="bf16").opened_as
        assert opened_as == {"name": name, "precision": "bf16"}
    assert split_name(f"RN50/{weights}") == ("RN50", str(weights))


def test_weights_are_said_once():
    with pytest.raises(ValueError, match="RN50/openai: says its weights already"):
        load_encoder("RN50/openai", "yfcc15m")
    with pytest.raises(ValueError, match="tiny: carries its own weights"):
        load_encoder("tiny", "openai")


def test_folders_come_before_models_of_open_clip(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "RN50" / "openai")
    assert isinstance(load_encoder("RN50/openai"), OnnxEncoder)
    assert split_name("RN50/openai") == ("RN50/openai", None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tinny", "did you mean tiny"),
        ("Tiny", "did you mean tiny"),
        ("ViT-B-61/openai", r"no model 'ViT-B-61': did you mean .*ViT-B-16"),
        ("vit-b-16/openai", r"no model 'vit-b-16': did you mean ViT-B-16"),
        ("rn50", r"no model 'rn50': did you mean RN50"),
        ("/no/such/folder", r"'/no/such/folder': no such file or folder"),
        ("./mine", r"'\./mine': no such file or folder"),
        ("models/mine", r"'models/mine': no such file or folder.*FILE\.onnx \[cli\], FOLDER"),
        ("hf:./mine", r"no encoder .hf:\./mine.: no such folder"),
        ("no/such.onnx", r"such\.onnx: no such file"),
    ],
)
def test_names_that_nobody_answers_to(name, said):
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        load_encoder(name)


def test_what_needs_no_torch_imports_none():
    code = (
        "import sys, soba.encode.encoder as e; assert 'PIL' not in sys.modules; e.load_encoder(); "
        "e.split_name('RN50/openai'); assert not {'torch', 'open_clip'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_paths_that_are_not_there_are_said_before_torch_is_asked_for(tmp_path):
    for name in (tmp_path / "nothing", "./nothing", "~/nothing"):
        with pytest.raises(ValueError, match="nothing': no such file or folder"):
            load_encoder(name)
    with pytest.raises(ValueError, match="its name is empty"):
        load_encoder("")
