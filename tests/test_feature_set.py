import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import torch

import soba
from soba import FeatureSet
from soba._files import save_arrays
from soba.feature_set import read_note
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=40, classes=4, width=8)


def example(**changes):
    values = {
        "image_features": FEATURES.astype(np.float16),
        "text_features": TEXT,
        "logit_scale": 50.0,
        "labels": LABELS,
        "class_names": ("a", "b", "c", "d"),
        "prompts": ("a photo of a {}.", "art of a {}."),
        "prompt_features": np.stack([TEXT, TEXT[::-1]]).astype(np.float32),
        "support_features": FEATURES[:5],
        "support_labels": LABELS[:5],
        "val_features": FEATURES[5:9],
        "val_labels": LABELS[5:9],
        "encoder_fingerprint": "tiny-1",
        "templates_fingerprint": "01234567",
    }
    return FeatureSet(**values | changes)


def same(one, other):
    for name in (
        "image_features",
        "text_features",
        "prompt_features",
        "labels",
        "support_features",
        "val_labels",
    ):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert one.class_names == other.class_names
    assert one.logit_scale == other.logit_scale
    assert one.encoder_fingerprint == other.encoder_fingerprint
    assert one.templates_fingerprint == other.templates_fingerprint


def test_safetensors_round_trip_is_memory_mapped(tmp_path):
    path = tmp_path / "features.safetensors"
    example().save(path)
    loaded = FeatureSet.load(path)
    same(loaded, example())
    assert isinstance(loaded.image_features, np.memmap)
    assert loaded.image_features.dtype == np.float16
    views = example(image_features=np.repeat(FEATURES[:, None], 3, 1).astype(np.float32))
    views.save(path)
    assert FeatureSet.load(path).image_features.shape == (40, 3, 8)
    assert (loaded.views, FeatureSet.load(path).views) == (1, 3)
    soba.SOBA(loaded.text_features).adapt(loaded.image_features)


def test_npz_and_pt(tmp_path):
    arrays = {
        "image_features": FEATURES,
        "text_features": TEXT,
        "labels": LABELS,
        "logit_scale": np.array(50.0),
        "class_names": np.array(["a", "b", "c", "d"]),
        "anything_else": np.zeros(3),
    }
    np.savez(tmp_path / "f.npz", **arrays)
    loaded = FeatureSet.load(tmp_path / "f.npz")
    assert (loaded.logit_scale, loaded.class_names) == (50.0, ("a", "b", "c", "d"))
    tensors = {
        name: torch.asarray(arrays[name]) for name in ("image_features", "text_features", "labels")
    }
    torch.save(
        tensors | {"logit_scale": 50.0, "class_names": ["a", "b", "c", "d"]}, tmp_path / "f.pt"
    )
    loaded = FeatureSet.load(tmp_path / "f.pt")
    assert np.array_equal(loaded.image_features, FEATURES)
    assert loaded.class_names == ("a", "b", "c", "d")


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_pickles_never_run(tmp_path):
    trace = tmp_path / "trace"
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"image_features": Bomb(trace)}))
    torch.save({"image_features": Bomb(trace)}, tmp_path / "zipped.pt")
    np.savez(tmp_path / "objects.npz", image_features=np.array([Bomb(trace)]), text_features=TEXT)
    for name in ("plain.pt", "zipped.pt", "objects.npz"):
        with pytest.raises(ValueError, match=name):
            FeatureSet.load(tmp_path / name)
    assert not trace.exists()


@pytest.mark.parametrize("name", ["f.safetensors", "f.npz", "f.pt"])
def test_damaged_files_are_named(tmp_path, name):
    path = tmp_path / name
    if name.endswith("npz"):
        np.savez(path, image_features=FEATURES, text_features=TEXT)
    elif name.endswith("pt"):
        torch.save({"image_features": torch.asarray(FEATURES)}, path)
    else:
        example().save(path)
    content = path.read_bytes()
    for length in range(0, len(content) - 64, 64):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=name):
            FeatureSet.load(path)
    path.write_text("hello")
    with pytest.raises(ValueError, match=name):
        FeatureSet.load(path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"labels": LABELS + 1}, "labels out of range: 1 to 4 where there are 4 classes"),
        ({"labels": LABELS[:-1]}, "labels of shape"),
        ({"labels": LABELS.astype(float)}, "labels must be integers"),
        ({"image_features": FEATURES[:, :5]}, "to match the text features"),
        ({"image_features": np.ones((3, 8), int)}, "must be floating point"),
        ({"text_features": TEXT[:0]}, "text_features must have shape"),
        ({"class_names": ("a",)}, "1 class_names for 4 rows"),
        ({"prompt_features": TEXT}, r"prompt_features must have shape \(P, 4, 8\)"),
        ({"prompt_features": TEXT[None, :3]}, r"prompt_features must have shape \(P, 4, 8\)"),
        ({"prompts": ("a {}.",)}, "1 prompts for prompt_features of 2"),
        ({"prompt_features": np.ones((2, 4, 8), int)}, "prompt_features must be floating point"),
        ({"logit_scale": 0.0}, "logit_scale must be 1 at least"),
        ({"support_labels": None}, "support_features without support_labels"),
        ({"val_features": None}, "val_labels without val_features"),
        ({"support_labels": LABELS[:5] - 9}, "support_labels out of range"),
    ],
)
def test_problems_are_said(changes, problem):
    with pytest.raises(ValueError, match=problem):
        example(**changes)


def test_problems_name_the_file(tmp_path):
    np.savez(tmp_path / "bad.npz", image_features=FEATURES, text_features=TEXT, labels=LABELS + 1)
    with pytest.raises(ValueError, match=r"bad\.npz: labels out of range"):
        FeatureSet.load(tmp_path / "bad.npz")
    np.savez(tmp_path / "half.npz", image_features=FEATURES)
    with pytest.raises(ValueError, match=r"half\.npz: lacks text_features"):
        FeatureSet.load(tmp_path / "half.npz")
    with pytest.raises(ValueError, match=r"end in \.safetensors, \.npz, \.pt"):
        FeatureSet.load(tmp_path / "f.csv")
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        FeatureSet.load(tmp_path / "none.npz")
    for value, problem in ((np.nan, "NaN"), (np.inf, "infinite"), (0.0, "all zeros")):
        spoiled = FEATURES.copy()
        spoiled[7] = value
        np.savez(tmp_path / "nan.npz", image_features=spoiled, text_features=TEXT)
        with pytest.raises(ValueError, match=rf"nan\.npz: image_features: row 7 .*{problem}"):
            FeatureSet.load(tmp_path / "nan.npz").check_values()


def test_prompt_features_are_read_and_checked(tmp_path):
    prompts = np.stack([TEXT, TEXT[::-1]])
    arrays = {"image_features": FEATURES, "text_features": TEXT, "prompt_features": prompts}
    np.savez(tmp_path / "p.npz", **arrays)
    assert np.array_equal(FeatureSet.load(tmp_path / "p.npz").prompt_features, prompts)
    prompts[1, 2] = np.nan
    np.savez(tmp_path / "p.npz", **arrays)
    with pytest.raises(ValueError, match=r"p\.npz: prompt_features: row 1 holds NaN"):
        FeatureSet.load(tmp_path / "p.npz").check_values()


def test_fingerprints_do_not_mix(tmp_path):
    example(encoder_fingerprint="ViT-B-16").save(tmp_path / "one.safetensors")
    example(encoder_fingerprint="RN50").save(tmp_path / "two.safetensors")
    one, two = (FeatureSet.load(tmp_path / f"{n}.safetensors") for n in ("one", "two"))
    for join in (one.with_support, one.with_val):
        with pytest.raises(ValueError, match=r"two\.safetensors.*RN50.*one\.safetensors.*ViT-B-16"):
            join(two)
    assert np.array_equal(one.with_support(one).support_labels, one.labels)
    with pytest.raises(ValueError, match="has no labels"):
        one.with_val(example(labels=None))
    with pytest.raises(ValueError, match="other class names"):
        one.with_val(example(encoder_fingerprint=None, class_names=("a", "b", "c", "e")))


def test_a_zip_that_is_no_archive_of_arrays(tmp_path):
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as archive:
        archive.writestr("image_features.npy", b"nonsense")
        archive.writestr("text_features.npy", b"nonsense")
    with pytest.raises(ValueError, match=r"z\.npz"):
        FeatureSet.load(tmp_path / "z.npz")


def only_header(shape):
    """A .npy file without its values."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_header_is_not_believed(tmp_path, compression):
    path = tmp_path / "z.npz"
    for shape in ((10**12, 8), (5, 8), (-1, 8), (10**30, 0, -1)):
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("image_features.npy", only_header(shape) + bytes(100))
        with pytest.raises(ValueError, match=r"z\.npz: .*image_features claims the shape"):
            FeatureSet.load(path)


def test_archives_that_cannot_be_opened(tmp_path):
    path = tmp_path / "z.npz"
    np.savez(path, image_features=FEATURES, text_features=TEXT)
    whole = path.read_bytes()
    local, central = whole.index(b"PK\3\4"), whole.index(b"PK\1\2")
    locked = bytearray(whole)
    locked[local + 6] |= 1
    locked[central + 8] |= 1
    unknown = bytearray(whole)
    unknown[local + 8] = unknown[central + 10] = 9  # a compression that is not read here
    torn = whole.replace(FEATURES.tobytes()[:8], b"\xff" * 8)
    for content, problem in (
        (locked, "encrypted"),
        (unknown, "compression"),
        (torn, "CRC"),
        (whole[:-30], ""),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"z\.npz: not a readable .*{problem}"):
            FeatureSet.load(path)


def test_arrays_of_any_order_come_from_npz(tmp_path):
    features = np.asfortranarray(FEATURES)
    np.savez_compressed(tmp_path / "f.npz", image_features=features, text_features=TEXT)
    loaded = FeatureSet.load(tmp_path / "f.npz")
    assert np.array_equal(loaded.image_features, FEATURES)
    np.savez(tmp_path / "f.npz", image_features=FEATURES[:0], text_features=TEXT)
    assert FeatureSet.load(tmp_path / "f.npz").image_features.shape == (0, 8)


def test_tensors_that_are_being_trained_or_of_half_precision_are_read(tmp_path):
    images = torch.asarray(FEATURES).bfloat16()
    text = torch.asarray(TEXT)
    learned = torch.nn.Parameter(text.clone())
    scale = torch.tensor(50.0, requires_grad=True)
    tensors = {"image_features": images, "text_features": learned, "logit_scale": scale}
    torch.save(tensors, tmp_path / "f.pt")
    loaded = FeatureSet.load(tmp_path / "f.pt")
    assert np.array_equal(loaded.image_features, images.float().numpy())
    assert np.array_equal(loaded.text_features, text.numpy())
    assert loaded.image_features.dtype == np.float32
    assert loaded.logit_scale == 50.0


ODD_TENSORS = {
    "image_features is a sparse tensor": lambda features: features.to_sparse(),
    "image_features is a meta tensor": lambda features: features.to("meta"),
    "image_features claims the shape": lambda features: features[0].clone().expand(10**12, 8),
    "image_features must be floating point": lambda features: features.to(torch.complex64),
}


@pytest.mark.filterwarnings("ignore")  # of torch, which calls some kinds unfinished
@pytest.mark.parametrize("problem", ODD_TENSORS)
def test_tensors_without_plain_values_are_refused(tmp_path, problem):
    features = ODD_TENSORS[problem](torch.asarray(FEATURES))
    torch.save({"image_features": features, "text_features": torch.eye(8)}, tmp_path / "f.pt")
    with pytest.raises(ValueError, match=rf"f\.pt: {problem}"):
        FeatureSet.load(tmp_path / "f.pt")


def write_safetensors(path, header, data=b""):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_bfloat16_of_safetensors_is_read(tmp_path):
    path = tmp_path / "f.safetensors"
    images = torch.asarray(FEATURES).bfloat16()
    text = np.asarray(TEXT, "<f4")
    data = images.view(torch.int16).numpy().tobytes() + text.tobytes()
    middle = 2 * FEATURES.size
    entries = {
        "image_features": {"dtype": "BF16", "shape": [40, 8], "data_offsets": [0, middle]},
        "text_features": {"dtype": "F32", "shape": [4, 8], "data_offsets": [middle, len(data)]},
    }
    write_safetensors(path, entries, data)
    loaded = FeatureSet.load(path)
    assert loaded.image_features.dtype == np.float32
    assert np.array_equal(loaded.image_features, images.float().numpy())
    entries["image_features"] |= {"dtype": "F8_E4M3", "data_offsets": [0, 320]}
    entries["text_features"]["data_offsets"] = [320, 448]
    write_safetensors(path, entries, bytes(448))
    with pytest.raises(ValueError, match=r"f\.safetensors: .*F8_E4M3, which is not read"):
        FeatureSet.load(path)


def test_safetensors_that_claim_more_than_they_hold(tmp_path):
    path = tmp_path / "f.safetensors"
    rows = {"dtype": "F32", "shape": [10**12, 8], "data_offsets": [0, 32 * 10**12]}
    write_safetensors(path, {"image_features": rows})
    claims = [path.read_bytes()]
    claims += [length.to_bytes(8, "little") + b"{}" for length in (3, 10**9, 2**63)]
    for content in claims:
        path.write_bytes(content)
        for read in (FeatureSet.load, read_note):
            with pytest.raises(ValueError, match=r"f\.safetensors: not a readable"):
                read(path)


def test_names_that_are_no_list_are_refused(tmp_path):
    for names in ("abcd", 4):
        np.savez(tmp_path / "f.npz", image_features=FEATURES, text_features=TEXT, class_names=names)
        with pytest.raises(ValueError, match=r"f\.npz: class_names is not a list of texts"):
            FeatureSet.load(tmp_path / "f.npz")


def test_sets_of_other_classes_and_prompts_mix_if_the_encoder_is_the_same():
    one = example()
    for encoder, templates in (("tiny-1", "fedcba98"), ("tiny-1", None), (None, None)):
        prints = {"encoder_fingerprint": encoder, "templates_fingerprint": templates}
        one.check_encoder(example(**prints, class_names=("a", "b", "c", "e")))
        assert one.with_support(example(**prints)).templates_fingerprint == "01234567"
    with pytest.raises(ValueError, match="different encoders do not mix"):
        one.check_encoder(example(encoder_fingerprint="tiny-2"))
    narrow = FeatureSet(np.eye(2), np.eye(2), labels=np.arange(2))
    with pytest.raises(ValueError, match=r"2 dimensions.*do not mix"):
        one.check_encoder(narrow)


@pytest.mark.parametrize(
    ("joined", "encoder", "templates"),
    [
        ("tiny-0123456789abcdef-01234567", "tiny-0123456789abcdef", "01234567"),
        ("tiny-0123456789abcdef", "tiny-0123456789abcdef", None),
        (f"{'0a' * 32}-89abcdef", "0a" * 32, "89abcdef"),
        ("my-encoder", "my-encoder", None),
    ],
)
@pytest.mark.parametrize("kind", ["safetensors", "npz", "pt"])
def test_files_with_one_fingerprint_of_both_are_read(tmp_path, kind, joined, encoder, templates):
    path = tmp_path / f"before.{kind}"
    arrays = {"image_features": FEATURES, "text_features": TEXT}
    if kind == "safetensors":
        save_arrays(path, arrays, {"soba": json.dumps({"fingerprint": joined})})
    elif kind == "npz":
        np.savez(path, **arrays, fingerprint=joined)
    else:
        tensors = {name: torch.asarray(array) for name, array in arrays.items()}
        torch.save(tensors | {"fingerprint": joined}, path)
    before = FeatureSet.load(path)
    assert (before.encoder_fingerprint, before.templates_fingerprint) == (encoder, templates)
    example(encoder_fingerprint=encoder).check_encoder(before)
    with pytest.raises(ValueError, match="different encoders"):
        example(encoder_fingerprint="another").check_encoder(before)


def test_a_feature_set_brings_its_logit_scale_to_an_adapter():
    features = FeatureSet(FEATURES, TEXT, logit_scale=30.0)
    for method in (soba.ZeroShot, soba.SOBAPlus):
        adapter = method(features)
        assert adapter.logit_scale == 30.0
        expected = method(TEXT, logit_scale=30.0)
        assert np.array_equal(adapter.logits(FEATURES), expected.logits(FEATURES))
        assert method(features, logit_scale=30.0).logit_scale == 30.0
    with pytest.raises(ValueError, match=r"logit_scale 20\.0, where the feature set has 30\.0"):
        soba.SOBAPlus(features, logit_scale=20.0)
    with pytest.raises(ValueError, match="no text features per prompt"):
        soba.MTAEnsembleVote(features)
