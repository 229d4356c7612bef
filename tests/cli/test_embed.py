import os
import shutil

import numpy as np
import pytest
from image_trees import Pictures, aircraft_tree, coop_tree, generated_split
from onnx_models import image_tower, model_folder
from run_cli import refused, soba_command

from soba.datasets.icons import icons
from soba.encode.onnx import OnnxEncoder
from soba.feature_set import FeatureSet


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("models") / "small")


def test_a_folder_becomes_features_to_evaluate(icon_folder, tmp_path):
    path = tmp_path / "features.safetensors"
    printed = soba_command("embed", icon_folder, "-o", path)
    assert f"20 x 128 features, labelled, 5 classes, in {path}" in printed
    features = FeatureSet.load(path)
    assert features.image_features.dtype == np.float16
    assert features.class_names == tuple(sorted(os.listdir(icon_folder)))
    assert features.labels.tolist() == np.repeat(np.arange(5), 4).tolist()
    assert all((icon_folder / key).is_file() for key in features.keys)
    assert features.prompts != ("a photo of a {}.",)  # the tiny CLIP was taught icons
    tiny = OnnxEncoder.tiny()
    assert features.logit_scale == tiny.logit_scale
    assert "zero-shot" in soba_command("eval", path, "--orders", 1, "--methods", "zero-shot,soba")
    before = path.read_bytes()
    assert printed.splitlines()[-1] in soba_command("embed", icon_folder, "-o", path)
    assert path.read_bytes() == before


def test_icons_by_domain(tmp_path, small_model):
    path = tmp_path / "features.safetensors"
    arguments = ("embed", "icons-v2", "--per-class", 1, "-o", path, "--model", small_model)
    soba_command(*arguments)
    features = FeatureSet.load(path)
    drawn = icons("v2", per_class=1)
    assert (features.keys, features.class_names) == (drawn.keys, drawn.class_names)
    encoder = OnnxEncoder.load(small_model)
    plain = encoder.encode_pixels(encoder.preprocess(drawn.image(3))[None])
    np.testing.assert_allclose(features.image_features[3], plain[0], atol=1e-3)
    # Other pictures under the same keys are not taken for these.
    assert "holds other features" in refused(*arguments, "--seed", 1)
    assert "holds other features" in refused(*arguments, "--per-class", 2)


def test_a_data_set_by_name(tmp_path, small_model):
    aircraft_tree(tmp_path / "data", Pictures(tmp_path))
    path = tmp_path / "features.safetensors"
    options = ("-o", path, "--model", small_model, "--batch", 512)
    assert "--data" in refused("embed", "aircraft", *options)
    printed = soba_command("embed", "aircraft", "--data", tmp_path / "data", *options)
    assert "3333 x 4 features, labelled, 100 classes" in printed
    assert FeatureSet.load(path).class_names[0] == "707-320"


def test_a_data_set_that_lacks_images(tmp_path, small_model):
    coop_tree(tmp_path / "data", Pictures(tmp_path), "dtd", generated_split("dtd"))
    path = tmp_path / "features.safetensors"
    options = ("dtd", "--data", tmp_path / "data", "-o", path, "--model", small_model)
    said = refused("embed", *options)
    assert "dtd: the test split is not that of the literature" in said
    assert "lists 94 test images, not 1692; --incomplete goes on" in said
    printed = soba_command("embed", *options, "--incomplete")
    assert "lists 94 test images, not 1692" in printed
    assert "94 x 4 features, labelled, 47 classes" in printed


def test_a_folder_with_images_and_folders(icon_folder, tmp_path, small_model):
    folder = tmp_path / "icons"
    shutil.copytree(icon_folder, folder)
    shutil.copy(next(folder.glob("*/*.png")), folder / "loose.png")
    (tmp_path / "names.txt").write_text("anchor\nbell\n")
    options = ("embed", folder, "--model", small_model)
    said = refused(*options, "-o", tmp_path / "a.safetensors")
    assert "holds both images and folders of images" in said
    assert "labelled=" not in said
    soba_command(*options, "--labelled", "-o", tmp_path / "a.safetensors")
    names = ("--classes-file", tmp_path / "names.txt")
    soba_command(*options, "--unlabelled", *names, "-o", tmp_path / "b.safetensors")
    sets = [FeatureSet.load(tmp_path / f"{name}.safetensors") for name in "ab"]
    assert [len(each) for each in sets] == [20, 21]
    assert [each.labels is None for each in sets] == [False, True]


def test_views(icon_folder, tmp_path, small_model):
    path = tmp_path / "features.safetensors"
    options = ("-o", path, "--model", small_model, "--batch", 8)
    printed = soba_command("embed", icon_folder, "--views", 3, "--augmix", *options)
    assert "20 x 3 x 4 features" in printed
    many = FeatureSet.load(path)
    assert '"count": 3' in many.view_policy
    many.check_values()
    assert "holds other features" in refused("embed", icon_folder, *options)
    path.unlink()
    soba_command("embed", icon_folder, *options)
    one = FeatureSet.load(path)
    np.testing.assert_allclose(many.image_features[:, 0], one.image_features, atol=1e-3)
    assert np.abs(many.image_features[:, 1] - one.image_features).max() > 1e-3


def test_broken_images_leave_with_their_labels(icon_folder, tmp_path, small_model):
    folder = tmp_path / "icons"
    shutil.copytree(icon_folder, folder)
    first, second = sorted(os.listdir(folder))[:2]
    for file in (folder / first).iterdir():
        file.write_bytes(b"torn")
    torn = sorted((folder / second).iterdir())[1]
    torn.write_bytes(torn.read_bytes()[:300])
    path = tmp_path / "features.safetensors"
    printed = soba_command("embed", folder, "-o", path, "--model", small_model, "--batch", 3)
    assert "5 images could not be read and were left out" in printed
    assert f"{second}/{torn.name}: " in printed
    features = FeatureSet.load(path)
    assert features.labels.tolist() == [1, 1, 1, *np.repeat([2, 3, 4], 4)]
    assert len(features.class_names) == 5
    features.check_values()
    again = soba_command("embed", folder, "-o", path, "--model", small_model)
    assert f"{second}/{torn.name}: " in again


def test_a_picture_that_was_replaced_is_named_and_encoded_anew(icon_folder, tmp_path, small_model):
    folder = tmp_path / "icons"
    shutil.copytree(icon_folder, folder)
    arguments = ("embed", folder, "--model", small_model, "--batch", 3, "-o")
    path = tmp_path / "features.safetensors"
    soba_command(*arguments, path)
    one, other = sorted(folder.glob("*/*.png"))[:2]
    shutil.copy(other, one)
    key = one.relative_to(folder)
    assert f"replaced since the last run, and encoded anew: {key}\n" in soba_command(
        *arguments, path
    )
    features = FeatureSet.load(path)
    one, other = features.image_features[:2].astype(np.float32)
    np.testing.assert_allclose(one, other, atol=1e-3)  # rows of one batch may round apart
    assert "replaced" not in soba_command(*arguments, path)


def test_a_flat_folder_needs_class_names(icon_stream, tmp_path, small_model):
    path = tmp_path / "features.safetensors"
    options = ("-o", path, "--model", small_model)
    assert "name the classes with --classes-file" in refused("embed", icon_stream, *options)
    (tmp_path / "names.txt").write_text("anchor\nbell\n")
    soba_command("embed", icon_stream, "--classes-file", tmp_path / "names.txt", *options)
    features = FeatureSet.load(path)
    assert (features.labels, features.class_names) == (None, ("anchor", "bell"))


def test_bad_input_is_one_line(icon_folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn" / "cat").mkdir(parents=True)
    (tmp_path / "torn" / "cat" / "a.png").write_bytes(b"torn")
    (tmp_path / "half.safetensors").write_bytes(b"\x10\x00\x00\x00")
    tower = image_tower(tmp_path / "tower.onnx")
    fine = tmp_path / "features.safetensors"
    for arguments, problem in (
        ([tmp_path / "absent", "-o", fine], "absent: no such folder, and no data set of that name"),
        (["icons-photos", "-o", fine], "icons-source, icons-v2"),
        ([tmp_path / "empty", "-o", fine], "empty: holds no images"),
        ([tmp_path / "torn", "-o", fine], "none of the 1 images could be read"),
        ([icon_folder, "-o", tmp_path / "features.npz"], "feature sets are saved as .safetensors"),
        ([icon_folder, "-o", tmp_path / "no" / "f.safetensors"], "the folder does not exist"),
        ([icon_folder, "-o", tmp_path / "empty"], "empty: is a folder"),
        ([icon_folder, "-o", tmp_path / "half.safetensors"], "half.safetensors: not a readable"),
        ([icon_folder, "-o", fine, "--model", tmp_path], "no image.onnx in it"),
        ([icon_folder, "-o", fine, "--model", tower], "has no text tower beside it"),
        ([icon_folder, "-o", fine, "--templates", "no place"], "no place"),
        (["dtd", "-o", fine, "--data", tmp_path / "empty"], "empty"),
    ):
        assert problem in refused("embed", *arguments)
    assert (tmp_path / "half.safetensors").read_bytes() == b"\x10\x00\x00\x00"
    assert not fine.exists()
