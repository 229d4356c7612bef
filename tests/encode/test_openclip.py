"""open_clip models as encoders: real architectures with random weights, since none can be had."""

import importlib.metadata
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from onnx_models import model_folder
from PIL import Image
from safetensors.torch import save_file
from tiny_clip import CONFIG, CONTEXT, open_clip, tiny_clip, tokenizer

from soba.encode._imports import no_open_clip
from soba.encode.openclip import OpenClip
from soba.encode.preprocess import Preprocess
from soba.encode.prompts import classifier

image_transform_v2, PreprocessCfg = (
    getattr(open_clip.transform, name) for name in ("image_transform_v2", "PreprocessCfg")
)


@pytest.fixture(scope="module", params=["RN50", "ViT-B-16"])
def real(request):
    torch.manual_seed(0)
    return OpenClip.load(request.param, "random", device="cpu")


def images(n=3):
    rng = np.random.default_rng(0)
    sizes = [(300, 260), (224, 224), (150, 400)][:n]
    return [Image.fromarray(rng.integers(256, size=(*size, 3), dtype=np.uint8)) for size in sizes]


def unit(rows):
    return torch.nn.functional.normalize(rows, dim=-1).numpy()


def test_features_are_open_clips_own(real):
    assert real.width == {"RN50": 1024, "ViT-B-16": 512}[real.name.partition("/")[0]]
    assert real.logit_scale == pytest.approx(1 / 0.07, rel=1e-5)
    transform = image_transform_v2(PreprocessCfg(**real.model.visual.preprocess_cfg), False)
    ours = np.stack([real.preprocess(image) for image in images()])
    theirs = torch.stack([transform(image) for image in images()])
    np.testing.assert_array_equal(ours, theirs.numpy())
    texts = ["a photo of a dog.", "a photo of a cat."]
    with torch.no_grad():
        expected = unit(real.model.encode_image(theirs))
        expected_text = unit(real.model.encode_text(open_clip.get_tokenizer("RN50")(texts)))
    features, text_features = real.encode_pixels(ours), real.encode_texts(texts)
    assert features.dtype == text_features.dtype == np.float32
    np.testing.assert_allclose(features, expected, atol=2e-6)
    np.testing.assert_allclose(text_features, expected_text, atol=2e-6)


def test_squashed_images_are_open_clips_own():
    settings = {"size": 32, "mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bilinear"}
    model = open_clip.CLIP(**CONFIG)
    model.visual.preprocess_cfg = settings | {"resize_mode": "squash"}
    encoder = OpenClip(model, tokenizer)
    transform = image_transform_v2(PreprocessCfg(**model.visual.preprocess_cfg), False)
    for image in images():
        np.testing.assert_array_equal(encoder.preprocess(image), transform(image).numpy())
    assert encoder.preprocess.as_dict()["resize"] == "squash"


def test_batches_do_not_matter_and_nothing_gives_nothing():
    pixels = np.random.default_rng(0).normal(size=(7, 3, 32, 32)).astype(np.float32)
    texts = [f"word {i}" for i in range(7)]
    one, many = tiny_clip(batch_size=64), tiny_clip(batch_size=3)
    np.testing.assert_allclose(one.encode_pixels(pixels), many.encode_pixels(pixels), atol=1e-6)
    np.testing.assert_allclose(one.encode_texts(texts), many.encode_texts(texts), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(one.encode_pixels(pixels), axis=1), 1, atol=1e-6)
    assert one.encode_texts([]).shape == one.encode_pixels(pixels[:0]).shape == (0, 16)
    assert one.width == 16


@pytest.mark.parametrize(
    "text",
    [
        {},
        {"pool_type": "last", "no_causal_mask": True},
        {"pool_type": "eos", "eos_id": 257},
        {"proj_bias": True},
        {"proj_type": "none", "width": 16},
    ],
    ids=str,
)
def test_text_towers_of_all_kinds(text):
    torch.manual_seed(0)
    config = CONFIG | {"text_cfg": CONFIG["text_cfg"] | text}
    for kind in (open_clip.CLIP, open_clip.CustomTextCLIP):
        encoder = OpenClip(kind(**config), tokenizer, Preprocess(size=32))
        assert encoder.text_tower is not None
        texts = ["a dog", "a much longer sentence", ""]
        expected = unit(encoder.model.encode_text(encoder.tokens(texts)))
        np.testing.assert_allclose(encoder.encode_texts(texts), expected, atol=2e-6)


def test_towers_of_other_makes_run_as_open_clip_runs_them():
    config = CONFIG | {"text_cfg": CONFIG["text_cfg"] | {"embed_cls": True}}
    torch.manual_seed(0)
    encoder = OpenClip(open_clip.CustomTextCLIP(**config), tokenizer, Preprocess(size=32))
    assert encoder.text_tower is None
    expected = unit(encoder.model.encode_text(encoder.tokens(["a dog"])))
    np.testing.assert_allclose(encoder.encode_texts(["a dog"]), expected, atol=1e-6)


def test_class_names_that_the_tokenizer_reads_alike_are_refused():
    names, prompts = ["Cat", "cat"], ["a photo of a {}."]
    as_they_are = classifier(tiny_clip().encode_texts, names, prompts)
    assert as_they_are.shape == (2, 16)
    lower = OpenClip(
        tiny_clip().model, lambda texts: tokenizer([t.lower() for t in texts]), Preprocess(size=32)
    )
    with pytest.raises(ValueError, match="'Cat' and 'cat': the same to this encoder"):
        classifier(lower.encode_texts, names, prompts)


def test_the_model_is_frozen():
    model = tiny_clip().model
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())


def test_fingerprint_is_of_weights_preprocessing_and_precision():
    same = tiny_clip().fingerprint
    assert same == tiny_clip().fingerprint and len(same) == 64
    torch.manual_seed(0)
    cropped = OpenClip(open_clip.CLIP(**CONFIG), tokenizer, Preprocess(size=31))
    others = {
        tiny_clip(seed=1).fingerprint,
        tiny_clip(precision="autocast").fingerprint,
        tiny_clip(name="other").fingerprint,
        cropped.fingerprint,
    }
    assert len(others | {same}) == 5


def test_half_precision_is_close():
    pixels = np.random.default_rng(0).normal(size=(4, 3, 32, 32)).astype(np.float32)
    full, auto = tiny_clip(), tiny_clip(precision="autocast")
    for verb, given in (("encode_pixels", pixels), ("encode_texts", ["a dog", "a cat"])):
        expected, features = getattr(full, verb)(given), getattr(auto, verb)(given)
        assert features.dtype == np.float32
        assert not np.array_equal(features, expected)
        assert (features * expected).sum(axis=1).min() > 0.999
    torch.manual_seed(0)
    half = OpenClip.load("RN50", "random", device="cpu", precision="bf16")
    text = half.encode_texts(["a dog"])
    assert text.dtype == np.float32 and np.linalg.norm(text) == pytest.approx(1, abs=1e-5)
    assert half.encode_pixels(np.zeros((1, 3, 224, 224), np.float32)).shape == (1, 1024)


@pytest.fixture
def known(monkeypatch):
    """open_clip knows the small architecture by name."""
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny-clip", CONFIG)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_local_files(known, tmp_path, suffix):
    torch.manual_seed(0)
    original = OpenClip.load("tiny-clip", "random", device="cpu", tokenizer=tokenizer)
    path = tmp_path / f"weights.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(original.model.state_dict(), path)
    loaded = OpenClip.load("tiny-clip", path, device="cpu", tokenizer=tokenizer)
    assert loaded.fingerprint == original.fingerprint
    np.testing.assert_array_equal(loaded.encode_texts(["dog"]), original.encode_texts(["dog"]))
    assert loaded.name == f"tiny-clip/weights.{suffix}"


def test_wrong_files_are_named(known, tmp_path):
    junk = tmp_path / "junk.pt"
    junk.write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"junk\.pt: not weights of tiny-clip"):
        OpenClip.load("tiny-clip", junk)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.ones(2)}, foreign)
    with pytest.raises(ValueError, match=r"foreign\.safetensors: not weights of tiny-clip"):
        OpenClip.load("tiny-clip", str(foreign), tokenizer=tokenizer)


def test_openai_archives_get_quick_gelu(known, tmp_path):
    torch.manual_seed(0)
    model = open_clip.CLIP(**CONFIG, quick_gelu=True).eval()
    path = tmp_path / "openai.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is on its way out; OpenAI's files are not
        given = torch.ones(1, 3, 32, 32), torch.ones(1, CONTEXT, dtype=torch.int64)
        traced = torch.jit.trace(model, given, check_trace=False)
        torch.jit.save(traced, path)
        loaded = OpenClip.load("tiny-clip", path, device="cpu", tokenizer=tokenizer)
    expected = OpenClip(model, tokenizer, Preprocess(size=32)).encode_texts(["dog"])
    np.testing.assert_allclose(loaded.encode_texts(["dog"]), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["RN50", "RN50-quickgelu", "ViT-B-16"])
def test_openai_tags_get_quick_gelu(name, monkeypatch):
    """Without weights to download: what open_clip is asked to build."""
    asked = {}
    create = open_clip.create_model

    def without_weights(model, pretrained, **options):
        asked.update(options)
        return create(model, load_weights=False, **options)

    monkeypatch.setattr(open_clip, "create_model", without_weights)
    encoder = OpenClip.load(name, "openai", device="cpu")
    assert asked["force_quick_gelu"] is True
    gates = {type(m).__name__ for m in encoder.model.transformer.modules()}
    assert "QuickGELU" in gates and "GELU" not in gates


def test_what_is_missing_is_said():
    with pytest.raises(ValueError, match=r"RN50 needs weights.*--pretrained.*openai.*random"):
        OpenClip.load("RN50")
    with pytest.raises(ValueError, match=r"opnai: neither a file nor a tag.*openai"):
        OpenClip.load("RN50", "opnai")
    with pytest.raises(ValueError, match=r"no model 'ViT-B16': did you mean ViT-B-16"):
        OpenClip.load("ViT-B16", "openai")
    with pytest.raises(ValueError, match="leave --pretrained out"):
        OpenClip.load("local-dir:somewhere", "openai")
    with pytest.raises(ValueError, match="precision must be one of"):
        OpenClip.load("RN50", "random", precision="int8")
    with pytest.raises(ValueError, match="device 'abacus' is not to be had"):
        OpenClip.load("RN50", "random", device="abacus")
    with pytest.raises(ValueError, match="give preprocess="):
        OpenClip(open_clip.CLIP(**CONFIG), tokenizer)
    with pytest.raises(ValueError, match=r"\(n, 3, 32, 32\), not \(1, 3, 16, 16\)"):
        tiny_clip().encode_pixels(np.zeros((1, 3, 16, 16), np.float32))
    with pytest.raises(TypeError, match="list of sentences"):
        tiny_clip().encode_texts("a dog")


def test_without_open_clip_the_import_says_what_to_install():
    code = "import sys; sys.modules['open_clip'] = None; import soba.encode.openclip"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode != 0
    assert "needs torch and open_clip: pip install 'soba-tta[torch]'" in run.stderr


def test_a_torchvision_of_another_torch_gets_a_remedy():
    error = no_open_clip(RuntimeError("operator torchvision::nms does not exist"))
    torch_version = importlib.metadata.version("torch")
    assert f"torch {torch_version} and torchvision " in str(error)
    assert "pip install --force-reinstall torch torchvision --index-url" in str(error)


MISFIT = """
import sys

class Misfit:
    def find_spec(self, name, *_):
        if name == "open_clip":
            raise RuntimeError("operator torchvision::nms does not exist")

sys.meta_path.insert(0, Misfit())
from soba.cli import main
main()
"""


def test_the_command_says_the_remedy_for_models_and_for_the_tokenizer(tmp_path, icon_stream):
    folder = model_folder(tmp_path / "mine")
    config = folder / "open_clip_config.json"
    config.write_text(config.read_text().replace('"bytes"', '"clip"'))
    for model in (folder, "ViT-B-16"):
        command = ["classify", icon_stream, "--classes", "a,b", "--model", model]
        run = subprocess.run(
            [sys.executable, "-c", MISFIT, *command], capture_output=True, text=True
        )
        assert run.returncode == 2
        (line,) = run.stderr.splitlines()
        assert line.startswith("error: torch ")
        assert "do not fit together" in line and "pip install --force-reinstall" in line
