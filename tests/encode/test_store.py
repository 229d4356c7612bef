import pickle
import zipfile

import numpy as np
import pytest
import torch

import soba
from soba import FeatureSet
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
        "fingerprint": "tiny-1",
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
    assert one.fingerprint == other.fingerprint


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
        ({"logit_scale": 0.0}, "logit_scale must be positive"),
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
    example(fingerprint="ViT-B-16").save(tmp_path / "one.safetensors")
    example(fingerprint="RN50").save(tmp_path / "two.safetensors")
    one, two = (FeatureSet.load(tmp_path / f"{n}.safetensors") for n in ("one", "two"))
    for join in (one.with_support, one.with_val):
        with pytest.raises(ValueError, match=r"two\.safetensors.*RN50.*one\.safetensors.*ViT-B-16"):
            join(two)
    assert np.array_equal(one.with_support(one).support_labels, one.labels)
    with pytest.raises(ValueError, match="has no labels"):
        one.with_val(example(labels=None))
    with pytest.raises(ValueError, match="other class names"):
        one.with_val(example(fingerprint=None, class_names=("a", "b", "c", "e")))


def test_a_zip_that_is_no_archive_of_arrays(tmp_path):
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as archive:
        archive.writestr("image_features.npy", b"nonsense")
        archive.writestr("text_features.npy", b"nonsense")
    with pytest.raises(ValueError, match=r"z\.npz"):
        FeatureSet.load(tmp_path / "z.npz")


def test_sets_of_other_classes_and_prompts_mix_if_the_encoder_is_the_same():
    encoder = "tiny-0123456789abcdef"
    one = example(fingerprint=f"{encoder}-00000001")
    for good in (f"{encoder}-00000002", encoder, None):
        one.check_encoder(example(fingerprint=good, class_names=("a", "b", "c", "e")))
    with pytest.raises(ValueError, match="different encoders do not mix"):
        one.check_encoder(example(fingerprint="tiny-fedcba9876543210-00000001"))
    narrow = FeatureSet(np.eye(2), np.eye(2), labels=np.arange(2))
    with pytest.raises(ValueError, match=r"2 dimensions.*do not mix"):
        one.check_encoder(narrow)
