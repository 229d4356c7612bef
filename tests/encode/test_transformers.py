"""Models of transformers as encoders: real architectures, random weights, folders of our own."""

import json
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_clip import open_clip, openclip
from tiny_hf import BIAS, PROCESSORS, build_model, change_json, image_processors, save_model
from tiny_hf import transformers as hf

import soba
from soba.encode._hf_folder import read_preprocess
from soba.encode._imports import no_transformers
from soba.encode.preprocess import Preprocess
from soba.encode.transformers import TransformersEncoder
from soba.testing import check_encoder
from soba.tune.tpt import TPT

KINDS = ("clip", "siglip", "siglip2")
TEXTS = ["a photo of a cat.", "two tables", "snow at night in a long sentence of many words"]
SIZES = [(40, 40), (50, 64), (33, 47), (39, 32), (32, 39), (90, 33)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each kind of model; not to be written to."""
    root = tmp_path_factory.mktemp("models")
    return {kind: save_model(root / kind, kind) for kind in KINDS}


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*address):
        raise AssertionError(f"somebody wants to talk to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def load(folder, **options):
    return soba.load_encoder(f"hf:{folder}", device="cpu", **options)


def pictures():
    rng = np.random.default_rng(0)
    noise = [rng.integers(256, size=(*size, 3), dtype=np.uint8) for size in SIZES]
    return [Image.fromarray(pixels) for pixels in noise]


def unit(rows):
    return torch.nn.functional.normalize(rows, dim=-1).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_the_contract(kind, folders, tmp_path, no_network):
    other = save_model(tmp_path / "other", kind, seed=1)
    greyer = shutil.copytree(folders[kind], tmp_path / "greyer")
    change_json(greyer / "preprocessor_config.json", image_mean=[0.1, 0.2, 0.3])
    sharper = shutil.copytree(folders[kind], tmp_path / "sharper")
    config = json.loads((sharper / "config.json").read_text())
    change_json(sharper / "config.json", text_config=config["text_config"] | {"hidden_act": "relu"})
    others = [load(path) for path in (other, greyer, sharper)]
    others.append(load(folders[kind], precision="autocast"))
    encoder = load(folders[kind])
    check_encoder(encoder, same=load(folders[kind]), others=others)
    check_encoder(others[-1])
    assert encoder.logit_scale == pytest.approx(np.exp(3.0))
    assert (encoder.logit_bias, encoder.sigmoid) == ((0.0, False) if kind == "clip" else (BIAS, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_of_transformers(kind, folders):
    encoder = load(folders[kind])
    model = getattr(hf, type(encoder.model).__name__).from_pretrained(folders[kind])
    processor = image_processors[kind].from_pretrained(folders[kind])
    tokenizer = hf.AutoTokenizer.from_pretrained(folders[kind])
    # Models of any shape see other shapes than squares in another way there.
    images = [each for each in pictures() if kind != "siglip2" or each.width == each.height]
    pixels = np.stack([encoder.preprocess(image) for image in images])
    padding = {"padding": True} if kind == "clip" else {"padding": "max_length", "max_length": 64}
    with torch.no_grad():
        theirs = [
            model.get_image_features(**processor(images=[image], return_tensors="pt")).pooler_output
            for image in images
        ]
        words = tokenizer(TEXTS, return_tensors="pt", truncation=True, **padding)
        text = model.get_text_features(**words).pooler_output
    np.testing.assert_allclose(encoder.encode_pixels(pixels), unit(torch.cat(theirs)), atol=2e-6)
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), unit(text), atol=2e-6)


def in_open_clip(encoder):
    """The same weights, in open_clip's model and under its names."""
    config, weights = encoder.model.config, encoder.model.state_dict()
    text, vision = config.text_config, config.vision_config
    shape = {"width": 32, "layers": 2, "mlp_ratio": 1.5}
    model = open_clip.CLIP(
        config.projection_dim,
        shape | {"head_width": 8, "patch_size": 8, "image_size": vision.image_size},
        shape | {"heads": 4, "vocab_size": text.vocab_size, "context_length": 77},
        quick_gelu=True,
    )
    names = {
        "positional_embedding": "text_model.embeddings.position_embedding.weight",
        "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
        "visual.class_embedding": "vision_model.embeddings.class_embedding",
        "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
        "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
        "logit_scale": "logit_scale",
    }
    blocks = {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "attn.out_proj": "self_attn.out_proj"}
    blocks |= {"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    norms = {
        "ln_final": "text_model.final_layer_norm",
        "visual.ln_pre": "vision_model.pre_layrnorm",
    }
    norms |= {"visual.ln_post": "vision_model.post_layernorm"}
    state = {}
    for there, here in (("", "text_model"), ("visual.", "vision_model")):
        for layer in range(2):
            block, from_ = f"{there}transformer.resblocks.{layer}", f"{here}.encoder.layers.{layer}"
            norms |= {f"{block}.{a}": f"{from_}.{b}" for a, b in blocks.items()}
            for part in ("weight", "bias"):
                parts = [weights[f"{from_}.self_attn.{each}_proj.{part}"] for each in "qkv"]
                state[f"{block}.attn.in_proj_{part}"] = torch.cat(parts)
    names |= {f"{a}.{part}": f"{b}.{part}" for a, b in norms.items() for part in ("weight", "bias")}
    state |= {there: weights[here] for there, here in names.items()}
    state["text_projection"] = weights["text_projection.weight"].T
    state["visual.proj"] = weights["visual_projection.weight"].T
    model.load_state_dict(state)
    return openclip.OpenClip(model, encoder.tokens, encoder.preprocess)


def test_the_same_weights_in_open_clip_give_the_same_features(folders):
    encoder = load(folders["clip"], gradients=True)
    twin = in_open_clip(encoder)
    pixels = np.stack([encoder.preprocess(image) for image in pictures()])
    np.testing.assert_allclose(encoder.encode_pixels(pixels), twin.encode_pixels(pixels), atol=1e-4)
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), twin.encode_texts(TEXTS), atol=1e-4)
    assert encoder.logit_scale == pytest.approx(twin.logit_scale)
    views = np.random.default_rng(0).normal(size=(2, 10, 24)).astype(np.float32)
    tuned, expected = (TPT(clip, ["cat", "two tables"]).adapt(views) for clip in (encoder, twin))
    np.testing.assert_allclose(tuned, expected, rtol=1e-3, atol=1e-3)
    untuned = soba.ZeroShot(encoder.encode_texts(TEXTS[:2]), logit_scale=encoder.logit_scale)
    assert np.abs(tuned - untuned.logits(views[:, 0])).max() > 0.1  # something was tuned at all


def test_ends_in_the_manner_of_old_configurations(folders, tmp_path):
    old = shutil.copytree(folders["clip"], tmp_path / "old")
    config = json.loads((old / "config.json").read_text())
    change_json(old / "config.json", text_config=config["text_config"] | {"eos_token_id": 2})
    encoder = load(old)
    np.testing.assert_allclose(
        encoder.encode_texts(TEXTS), load(folders["clip"]).encode_texts(TEXTS), atol=1e-6
    )
    check_encoder(encoder)


@pytest.mark.parametrize("kind", ["siglip", "siglip2"])
def test_siglip_says_that_it_passes_no_gradients(kind, folders):
    assert load(folders[kind]).text_tower is None
    with pytest.raises(ValueError, match="no gradients pass through its text tower"):
        load(folders[kind], gradients=True)


def test_threads_share_a_tokenizer(folders):
    encoder = load(folders["clip"])

    def lengths(first):
        """Of tokens as tuners take them, and as the model does: no longer than need be."""
        widths = {"max_length": set(), "longest": set()}
        for place in range(first, first + 200):
            padding = list(widths)[place % 2]
            read = encoder._read(TEXTS[:1] * (1 + place % 5), padding)["input_ids"]
            widths[padding].add(read.shape[1])
        return widths

    alone = lengths(0)
    assert alone["max_length"] == {77} != alone["longest"] and len(alone["longest"]) == 1
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lengths, range(8))) == [alone] * 8


def test_half_precision_is_close(folders):
    pixels = np.stack([load(folders["clip"]).preprocess(image) for image in pictures()])
    whole, half = (load(folders["clip"], precision=kind) for kind in ("fp32", "bf16"))
    assert half.model.dtype == torch.bfloat16 and half.precision == "bf16"
    for a, b in zip(whole.encode_pixels(pixels), half.encode_pixels(pixels), strict=True):
        assert a @ b > 0.99
    with pytest.raises(ValueError, match="precision must be one of fp32"):
        load(folders["clip"], precision="fp8")


SETTINGS = [
    ("clip", {}),
    ("clip", {"size": {"shortest_edge": 40}}),
    ("clip", {"size": {"height": 32, "width": 32}}),
    ("clip", {"size": {"height": 48, "width": 48}, "resample": 2}),
    ("clip", {"resample": 1, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}),
    ("clip", {"do_normalize": False}),
    ("siglip", {}),
    ("siglip", {"resample": 0}),
    ("siglip", {"do_center_crop": True, "crop_size": {"height": 25, "width": 25}}),
]


@pytest.mark.parametrize(("kind", "changed"), SETTINGS)
def test_pixels_are_those_of_the_image_processors(kind, changed):
    processor = image_processors[kind](**(PROCESSORS[kind] | changed))
    ours = read_preprocess(processor.to_dict(), kind)
    for image in (*pictures(), pictures()[1].convert("L"), pictures()[2].convert("RGBA")):
        theirs = processor(images=[image], return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(ours(image), theirs, atol=1e-6)


def test_settings_of_older_days_and_those_left_out():
    old = {"size": 224, "crop_size": 224, "resample": 3, "do_center_crop": True}
    assert read_preprocess(old) == read_preprocess({}) == Preprocess(crop="floored")
    square = Preprocess(224, (0.5,) * 3, (0.5,) * 3, resize="squash", crop="floored")
    assert read_preprocess({}, "siglip") == square
    assert read_preprocess({}, "siglip2").as_dict() == square.as_dict() | {
        "size": 256,
        "interpolation": "bilinear",
    }


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"do_resize": False}, "do_resize is false"),
        ({"do_rescale": False}, "do_rescale is false"),
        ({"rescale_factor": 1.0}, "divided by 255, not multiplied by 1.0"),
        ({"resample": 7}, "resample is 7"),
        ({"size": {"height": 32, "width": 40}}, "size is no square"),
        ({"size": {"longest_edge": 40}}, "size is no square"),
        ({"size": {"shortest_edge": 40}, "do_center_crop": False}, "nothing is cut off"),
        ({"size": {"shortest_edge": 20}, "crop_size": 32}, "32 pixels is cut out of 20"),
        ({"image_mean": [0.5, 0.5]}, "not enough values"),
    ],
)
def test_settings_that_make_no_squares_are_refused(settings, problem):
    with pytest.raises(ValueError, match=problem):
        read_preprocess(settings)


def foreign(folder):
    """The weights of an image tower alone, under the name of a whole model."""
    hf.CLIPModel.from_pretrained(folder).vision_model.save_pretrained(folder / "tower")
    shutil.copy(folder / "tower" / "model.safetensors", folder)


def endless(folder):
    """A text tower that waits for an end which the tokenizer never writes."""
    text = json.loads((folder / "config.json").read_text())["text_config"]
    change_json(folder / "config.json", text_config=text | {"eos_token_id": 7})


def wordy(folder):
    """A tokenizer of more tokens than the text tower has."""
    build_model("clip", 300, 299).save_pretrained(folder)


def cut(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


DAMAGES = {
    "no config.json in it": lambda folder: (folder / "config.json").unlink(),
    "config.json: not JSON": lambda folder: (folder / "config.json").write_text("{"),
    "config.json: expected an object": lambda folder: (folder / "config.json").write_text("[]"),
    "a model of type 'bert', where clip": lambda folder: change_json(
        folder / "config.json", model_type="bert"
    ),
    "no weights in it": lambda folder: (folder / "model.safetensors").unlink(),
    "not weights of CLIPModel: ": cut,
    r"\d+ weights of CLIPModel are missing": foreign,
    "preprocessor_config.json nor processor": lambda folder: (
        folder / "preprocessor_config.json"
    ).unlink(),
    "32 x 32 pixels, whose images .* 24 x 24": lambda folder: change_json(
        folder / "preprocessor_config.json", crop_size=24
    ),
    "its tokenizer cannot be read": lambda folder: (folder / "tokenizer.json").write_text("{"),
    "puts no end token behind a text": endless,
    r"gives token \d+, and its text tower knows 300": wordy,
}


@pytest.mark.parametrize("problem", DAMAGES)
def test_bad_folders_are_named_in_one_line(problem, folders, tmp_path, no_network):
    folder = shutil.copytree(folders["clip"], tmp_path / "mine")
    DAMAGES[problem](folder)
    with pytest.raises(ValueError, match=problem) as caught:
        load(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_processors_in_one_file(folders, tmp_path):
    folder = shutil.copytree(folders["clip"], tmp_path / "mine")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    assert load(folder).fingerprint == load(folders["clip"]).fingerprint


def test_a_classifier_finds_its_folder_again(folders, tmp_path, monkeypatch, no_network):
    folder = shutil.copytree(folders["clip"], tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    classifier = soba.Classifier("hf:mine", ["cat", "dog"])
    assert classifier.encoder.opened_as == {"name": f"hf:{folder}", "precision": "fp32"}
    expected = [answer.probability for answer in classifier.classify(pictures())]
    classifier.save("cats.soba")
    monkeypatch.chdir("/")
    loaded = soba.load(tmp_path / "cats.soba")
    answers = [answer.probability for answer in loaded.classify(pictures(), learn=False)]
    assert answers == pytest.approx(expected, abs=1e-5)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="mine: the model is not there any more"):
        list(soba.load(tmp_path / "cats.soba").classify(pictures()))
    with pytest.raises(ValueError, match="no encoder 'hf:/no/such': no such folder"):
        soba.load_encoder("hf:/no/such")
    with pytest.raises(ValueError, match="carries its own weights"):
        soba.load_encoder("hf:someone/something", "openai")


def test_names_on_the_hub_are_not_downloaded_unasked(folders, tmp_path, monkeypatch, no_network):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    stored, commit = tmp_path / "hub" / "models--someone--clip", "0" * 40
    shutil.copytree(folders["clip"], stored / "snapshots" / commit)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(commit)
    encoder = load(folders["clip"])
    encoder.opened_as = {"name": "hf:someone/clip", "precision": "fp32"}
    soba.Classifier(encoder, ["cat", "dog"]).save(tmp_path / "cats.soba")
    answers = list(soba.load(tmp_path / "cats.soba").classify(pictures()))
    assert len(answers) == len(SIZES) and not any(answer.error for answer in answers)
    shutil.rmtree(stored)
    with pytest.raises(FileNotFoundError, match="hf:someone/clip are not on this machine, and no"):
        list(soba.load(tmp_path / "cats.soba").classify(pictures()))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=r"hf:someone/clip are not to be had here .*hf:FOLDER"):
        soba.load_encoder("hf:someone/clip")


def test_models_of_other_kinds_at_hand_are_refused():
    text = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = hf.CLIPTextModel(hf.CLIPTextConfig(**text, intermediate_size=8))
    model.logit_scale = torch.zeros(())
    with pytest.raises(ValueError, match="a model of type 'clip_text_model', not clip"):
        TransformersEncoder(model, None, Preprocess())


def test_what_to_do_without_transformers_or_with_a_torchvision_of_another_torch():
    for package, needs in (("torch", "torch and transformers"), ("PIL", "Pillow")):
        code = f"import sys, soba; sys.modules['{package}'] = None; soba.load_encoder('hf:a/b')"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert f"needs {needs}: pip install 'soba-tta[hf]'" in run.stderr
    code = "import sys, soba; sys.modules['torch'] = None; soba.load_encoder('hf:./b')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "no encoder 'hf:./b': no such folder" in run.stderr
    broken = ModuleNotFoundError("Could not import module 'CLIPModel'.")
    broken.__cause__ = RuntimeError("operator torchvision::nms does not exist")
    said = str(no_transformers(broken))
    assert "do not fit together, so transformers does not run" in said
    assert "or remove torchvision, which soba does not need" in said


HIDDEN = """
import sys
sys.modules["torchvision"] = None
import numpy as np, soba
from soba.hf import pipeline
from PIL import Image
encoder = soba.load_encoder("hf:" + sys.argv[1], device="cpu")
picture = Image.fromarray(np.full((50, 40, 3), 128, np.uint8))
(answer,) = soba.Classifier(encoder, ["cat", "dog"]).classify(picture)
assert answer.label in ("cat", "dog") and not answer.error, answer
assert len(pipeline(model=encoder)(picture, candidate_labels=["cat", "dog"])) == 2
assert not [name for name in sys.modules if name.startswith(("torchvision.", "open_clip"))]
"""


def test_torchvision_is_not_needed(folders):
    subprocess.run([sys.executable, "-c", HIDDEN, str(folders["clip"])], check=True)
