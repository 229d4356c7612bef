"""ONNX models against torch, and what is said of files that are none."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.torch
import tiny_clip
import torch
from onnx import TensorProto, helper
from onnx_models import SIZE, image_tower, int8, model_folder, save, text_tower, wide_weights
from PIL import Image

import soba.tiny
from soba.datasets.icons import icons
from soba.encode.encoder import load_encoder
from soba.encode.onnx import OnnxEncoder
from soba.encode.preprocess import Preprocess
from soba.encode.prompts import classifier
from soba.encode.tokens import ByteTokenizer

TINY = Path(soba.tiny.__file__).parent
TEXTS = ["an icon of a bell.", "a photo of a cat.", "", "ü" * 90]


@pytest.fixture(scope="module")
def tiny():
    return OnnxEncoder.tiny(threads=1)


@pytest.fixture(scope="module")
def pixels(tiny):
    drawn = icons("rendition", per_class=1)
    return np.stack([tiny.preprocess(drawn.image(i)) for i in range(5)])


# The tiny CLIP ----------------------------------------------------------------------------------


def test_both_towers_equal_torch(tiny, pixels):
    settings = json.loads((TINY / "open_clip_config.json").read_text())["model_cfg"]
    model = tiny_clip.open_clip.CLIP(**settings).eval()
    weights = safetensors.torch.load_file(TINY / "open_clip_model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    tokens = ByteTokenizer(settings["text_cfg"]["context_length"])(TEXTS)
    with torch.inference_mode():
        image = model.encode_image(torch.from_numpy(pixels), normalize=True).numpy()
        text = model.encode_text(torch.from_numpy(tokens), normalize=True).numpy()
    np.testing.assert_allclose(tiny.encode_pixels(pixels), image, rtol=0, atol=1e-4)
    np.testing.assert_allclose(tiny.encode_texts(TEXTS), text, rtol=0, atol=1e-4)


def test_open_clip_reads_the_folder_itself(tiny, pixels):
    encoder = tiny_clip.openclip.OpenClip.load(
        f"local-dir:{TINY}", tokenizer=ByteTokenizer(64), device="cpu"
    )
    assert encoder.preprocess == tiny.preprocess
    np.testing.assert_allclose(
        encoder.encode_pixels(pixels), tiny.encode_pixels(pixels), rtol=0, atol=1e-4
    )
    np.testing.assert_allclose(
        encoder.encode_texts(TEXTS), tiny.encode_texts(TEXTS), rtol=0, atol=1e-4
    )


def test_it_is_small_and_says_what_it_is(tiny):
    assert sum(file.stat().st_size for file in TINY.iterdir() if file.is_file()) < 10e6
    assert (tiny.name, tiny.width, tiny.preprocess.size) == ("tiny", 128, 96)
    assert tiny.logit_scale > 0
    assert load_encoder().fingerprint == tiny.fingerprint


def test_rows_are_unit_and_do_not_depend_on_their_neighbours(tiny, pixels):
    many = tiny.encode_pixels(np.concatenate([pixels] * 15))  # more than one run
    assert many.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(many, axis=1), 1.0, atol=1e-6)
    alone = np.concatenate([tiny.encode_pixels(row[None]) for row in pixels])
    np.testing.assert_allclose(many.reshape(15, 5, -1), [alone] * 15, rtol=0, atol=1e-5)
    assert tiny.encode_pixels(pixels[:0]).shape == (0, 128)
    assert tiny.encode_texts([]).shape == (0, 128)
    with pytest.raises(TypeError, match="not one string"):
        tiny.encode_texts("a cat")
    with pytest.raises(ValueError, match=r"\(n, 3, 96, 96\), not \(1, 3, 8, 8\)"):
        tiny.encode_pixels(np.zeros((1, 3, 8, 8), np.float32))


# Other people's ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_a_batch_frozen_at_export_is_filled_up(tmp_path, count):
    free = OnnxEncoder.load(image_tower(tmp_path / "free.onnx"))
    frozen = OnnxEncoder.load(image_tower(tmp_path / "frozen.onnx", shape=(4, 3, SIZE, SIZE)))
    rows = np.random.default_rng(0).normal(size=(count, 3, SIZE, SIZE)).astype(np.float32)
    np.testing.assert_allclose(frozen.encode_pixels(rows), free.encode_pixels(rows), atol=1e-6)


def test_half_precision_inputs(tmp_path):
    full = OnnxEncoder.load(image_tower(tmp_path / "full.onnx"))
    half = OnnxEncoder.load(image_tower(tmp_path / "half.onnx", half=True))
    rows = np.random.default_rng(0).normal(size=(5, 3, SIZE, SIZE)).astype(np.float32)
    features = half.encode_pixels(rows)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, full.encode_pixels(rows), atol=1e-2)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, atol=1e-6)


def cosines(features, expected):
    return (features * expected).sum(axis=1)


def test_int8_towers_stay_close_to_their_float_ones(tiny, pixels, tmp_path):
    """Cosines of 0.9998 and 0.9995; with sums that overflow the texts fall to 0.9964."""
    shutil.copy(TINY / "open_clip_config.json", tmp_path)
    assert int8(TINY / "image.onnx", tmp_path / "image.onnx").count("ConvInteger") > 30
    assert int8(TINY / "text.onnx", tmp_path / "text.onnx").count("MatMulInteger") > 10
    encoder = OnnxEncoder.load(tmp_path, threads=1)
    assert cosines(encoder.encode_pixels(pixels), tiny.encode_pixels(pixels)).min() > 0.999
    assert cosines(encoder.encode_texts(TEXTS), tiny.encode_texts(TEXTS)).min() > 0.999
    for tower in (encoder._image, encoder._text):  # with VNNI the cosines alone would not tell
        options = tower._session.get_session_options()
        assert options.get_session_config_entry("session.x64quantprecision") == "1"


def test_int8_sums_of_large_weights_do_not_overflow(tmp_path):
    """Where they do, the cosine is 0.983."""
    floats = OnnxEncoder.load(wide_weights(tmp_path / "floats.onnx"))
    assert "MatMulInteger" in int8(tmp_path / "floats.onnx", tmp_path / "bytes.onnx")
    quantised = OnnxEncoder.load(tmp_path / "bytes.onnx")
    bright = np.linspace(0.9, 1.0, 3 * 3 * SIZE**2, dtype=np.float32).reshape(3, 3, SIZE, SIZE)
    similarity = cosines(quantised.encode_pixels(bright), floats.encode_pixels(bright))
    assert similarity.min() > 0.9999


def test_a_row_without_direction_is_not_hidden(tmp_path):
    encoder = OnnxEncoder.load(image_tower(tmp_path / "image.onnx"))
    rows = np.ones((2, 3, SIZE, SIZE), np.float32)
    rows[0] = 0
    features = encoder.encode_pixels(rows)
    assert np.isnan(features[0]).all()
    assert np.isfinite(features[1]).all()


def test_a_folder_is_a_model(tmp_path):
    encoder = load_encoder(str(model_folder(tmp_path / "mine")))
    assert (encoder.name, encoder.width, encoder.logit_scale) == ("mine", 4, 20.0)
    assert encoder.preprocess == Preprocess(SIZE, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert encoder.encode_texts(["a", "b"]).shape == (2, 4)
    text_tower(tmp_path / "mine" / "text.onnx", kind=TensorProto.INT32)
    again = load_encoder(str(tmp_path / "mine"))
    np.testing.assert_allclose(again.encode_texts(["a"]), encoder.encode_texts(["a"]), atol=1e-6)
    with pytest.raises(ValueError, match="--pretrained has no place here"):
        load_encoder(str(tmp_path / "mine"), "openai")


def test_a_lone_image_tower(tmp_path):
    path = image_tower(tmp_path / "image.onnx")
    encoder = load_encoder(str(path))
    assert encoder.preprocess.size == SIZE
    image = Image.new("RGB", (20, 10), "red")
    assert encoder.encode_pixels(encoder.preprocess(image)[None]).shape == (1, 4)
    with pytest.raises(ValueError, match=r"image\.onnx: has no text tower beside it"):
        encoder.encode_texts(["a"])


def test_the_image_tower_of_a_folder_stands_for_the_folder(tmp_path):
    folder = model_folder(tmp_path / "mine")
    whole, by_file = (load_encoder(str(path)) for path in (folder, folder / "image.onnx"))
    assert (by_file.name, by_file.fingerprint) == (whole.name, whole.fingerprint)
    texts = ["a photo of a cat."]
    np.testing.assert_array_equal(by_file.encode_texts(texts), whole.encode_texts(texts))


@pytest.mark.parametrize("tokenizer", ["bytes", "clip"])
def test_class_names_in_other_letters_are_the_same_to_both_tokenizers(tmp_path, tokenizer):
    folder = model_folder(tmp_path / "mine")
    content = json.loads((folder / "open_clip_config.json").read_text())
    content["soba"]["tokenizer"] = tokenizer
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    encode = OnnxEncoder.load(folder).encode_texts
    with pytest.raises(ValueError, match="'Cat' and 'cat': the same to this encoder"):
        classifier(encode, ["Cat", "dog", "cat"], ["a photo of a {}."])
    assert classifier(encode, ["cat", "cats", "dog"], ["a photo of a {}."]).shape == (3, 4)


def test_clips_own_tokenizer_is_the_default_of_a_folder(tmp_path):
    folder = model_folder(tmp_path / "mine")
    content = json.loads((folder / "open_clip_config.json").read_text())
    del content["soba"]
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    encoder = OnnxEncoder.load(folder)
    assert encoder.logit_scale == 100.0
    assert np.isfinite(encoder.encode_texts(["a photo of a cat."])).all()


def test_the_fingerprint_tells_models_apart(tmp_path):
    folder = model_folder(tmp_path / "mine")
    seen = {OnnxEncoder.load(folder).fingerprint}
    assert OnnxEncoder.load(folder).fingerprint in seen

    def changed():
        fingerprint = OnnxEncoder.load(folder).fingerprint
        new = fingerprint not in seen
        seen.add(fingerprint)
        return new

    image_tower(folder / "image.onnx", gain=2.0)
    assert changed()
    text_tower(folder / "text.onnx", kind=TensorProto.INT32)
    assert changed()
    config = folder / "open_clip_config.json"
    config.write_text(config.read_text().replace("[1, 1, 1]", "[1, 1, 2]"))
    assert changed()
    # The same graph, with its weights in a file of their own.
    for gain in (1.0, 2.0):
        model = onnx.load(image_tower(tmp_path / "whole.onnx", gain=gain))
        for stale in folder.glob("image.onnx*"):
            stale.unlink()
        onnx.save(
            model,
            folder / "image.onnx",
            save_as_external_data=True,
            location="image.onnx.data",
            size_threshold=0,
        )
        assert changed()


# Files that are no models -----------------------------------------------------------------------


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def identity(path, shape, kind=TensorProto.FLOAT):
    node = helper.make_node("Identity", ["x"], ["y"])
    return save(path, [node], [value("x", shape, kind)], [value("y", shape, kind)])


def test_image_towers_of_the_wrong_shape(tmp_path):
    path = tmp_path / "image.onnx"
    for make, problem in (
        (lambda: identity(path, ("n", 4)), "expected one input of 4 dimensions"),
        (lambda: identity(path, ("n", 3, 8, 8)), r"expected an output of shape \(n, d\)"),
        (lambda: identity(path, ("n", 3, 8, 8), TensorProto.INT64), "expected one input"),
        (lambda: image_tower(path, shape=("n", 1, 8, 8)), r"images are \(n, 3, size, size\)"),
        (lambda: image_tower(path, shape=("n", 3, 8, 9)), r"images are \(n, 3, size, size\)"),
        (lambda: path.write_bytes(b"no model"), "not a usable ONNX model"),
        (lambda: path.write_bytes(b""), "not a usable ONNX model"),
        (
            lambda: path.write_bytes((TINY / "image.onnx").read_bytes()[:50_000]),
            "not a usable ONNX model",
        ),
    ):
        make()
        with pytest.raises(ValueError, match=rf"image\.onnx: .*{problem}") as caught:
            OnnxEncoder.load(path)
        assert "\n" not in str(caught.value)
    two = [value("a", ("n", 3, 8, 8)), value("b", ("n", 3, 8, 8))]
    save(path, [helper.make_node("Add", ["a", "b"], ["y"])], two, [value("y", ("n", 3, 8, 8))])
    with pytest.raises(ValueError, match=r"expected one input of 4 dimensions, not a .*, b "):
        OnnxEncoder.load(path)
    with pytest.raises(FileNotFoundError, match=r"none\.onnx: no such file"):
        OnnxEncoder.load(tmp_path / "none.onnx")


def test_towers_that_do_not_belong_together(tmp_path):
    folder = model_folder(tmp_path / "mine")
    text_tower(folder / "text.onnx", width=5)
    with pytest.raises(ValueError, match=r"text\.onnx: features of 5 dimensions, but .* has 4"):
        OnnxEncoder.load(folder)
    with pytest.raises(ValueError, match=r"text\.onnx: a text tower needs a tokenizer"):
        OnnxEncoder(folder / "image.onnx", folder / "text.onnx")
    with pytest.raises(ValueError, match="images of 8 pixels, the preprocessing makes 16"):
        OnnxEncoder(folder / "image.onnx", preprocess=Preprocess(16))
    with pytest.raises(ValueError, match="logit_scale must be positive"):
        OnnxEncoder(folder / "image.onnx", logit_scale=0.0)
    with pytest.raises(FileNotFoundError, match=r"no image\.onnx in it"):
        OnnxEncoder.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not a model description"),
        ("[]", "not a model description"),
        ('{"model_cfg": {}}', "not a model description .*vision_cfg"),
        (None, "tokenizer must be bytes or clip, not 'words'"),
        ("longest", "resize mode must be shortest or squash, not 'longest'"),
    ],
)
def test_descriptions_that_are_none(tmp_path, content, problem):
    folder = model_folder(tmp_path / "mine")
    config = folder / "open_clip_config.json"
    whole = json.loads(config.read_text())
    if content is None:
        whole["soba"]["tokenizer"] = "words"
    elif content == "longest":
        whole["preprocess_cfg"]["resize_mode"] = "longest"
    config.write_text(json.dumps(whole) if content in (None, "longest") else content)
    with pytest.raises(ValueError, match=rf"open_clip_config\.json: .*{problem}"):
        OnnxEncoder.load(folder)


def test_a_description_may_ask_for_squashed_images(tmp_path):
    folder = model_folder(tmp_path / "mine")
    plain = OnnxEncoder.load(folder)
    config = folder / "open_clip_config.json"
    whole = json.loads(config.read_text())
    whole["preprocess_cfg"]["resize_mode"] = "squash"
    config.write_text(json.dumps(whole))
    squash = OnnxEncoder.load(folder)
    assert squash.fingerprint != plain.fingerprint
    wide = np.zeros((8, 40, 3), np.uint8)
    wide[:, :12] = 255  # a bright edge that the centre does not show
    picture = Image.fromarray(wide)
    assert squash.preprocess(picture).max() == 1 and plain.preprocess(picture).max() == 0


def test_a_folder_without_a_description_has_images_only(tmp_path):
    folder = model_folder(tmp_path / "mine")
    (folder / "open_clip_config.json").unlink()
    with pytest.raises(ValueError, match="needs a tokenizer"):
        OnnxEncoder.load(folder)
    (folder / "text.onnx").unlink()
    assert OnnxEncoder.load(folder).width == 4
    shutil.rmtree(folder)


def test_one_thread_takes_one_batch_at_a_time(tmp_path, monkeypatch):
    folder = model_folder(tmp_path / "mine")
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert OnnxEncoder.load(folder).batches_at_once == 2
    assert OnnxEncoder.load(folder, threads=1).batches_at_once == 1
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert OnnxEncoder.load(folder).batches_at_once == 1
