import csv
import json
import os
import shutil
import signal

import numpy as np
import pytest
import tiny_clip  # noqa: F401  (it makes open_clip importable)
from onnx_models import image_tower, model_folder
from PIL import Image
from run_cli import refused, soba_command

import soba
from soba.bench.metrics import softmax
from soba.cli import classify as module
from soba.datasets.icons import icons
from soba.encode.onnx import OnnxEncoder
from soba.encode.prompts import classifier, templates

CLASSES = icons("source", per_class=1).class_names[:4]
NAMES = ",".join(CLASSES)


def classify(*arguments, classes=NAMES, code=0):
    return soba_command("classify", *arguments, "--classes", classes, "--batch", 8, code=code)


def rows(path):
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def answers(tmp_path):
    """Runs the command and returns its rows."""

    def run(*arguments, **options):
        path = tmp_path / "answers.csv"
        classify(*arguments, "-o", path, **options)
        found = rows(path)
        path.unlink()
        return found

    return run


@pytest.fixture(scope="module")
def features(icon_stream):
    """Of the stream, computed without the command."""
    tiny = OnnxEncoder.tiny()
    files = sorted(icon_stream.iterdir())
    parts = []
    for start in range(0, len(files), 8):
        images = [tiny.preprocess(Image.open(file)) for file in files[start : start + 8]]
        parts.append(tiny.encode_pixels(np.stack(images)))
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def spread(features, tmp_path_factory):
    """Text features that divide the stream into classes, whatever the encoder has learned."""
    path = tmp_path_factory.mktemp("text") / "text.npy"
    np.save(path, (features - features.mean(axis=0))[:4])
    return path


# Answers ----------------------------------------------------------------------------------------


def test_answers_are_the_streams_with_zero_shot_beside(icon_stream, answers, features, spread):
    scale = OnnxEncoder.tiny().logit_scale
    adapter = soba.SOBAPlus(np.load(spread), scale=scale)
    text = adapter.text_features
    parts = [adapter.adapt(features[i : i + 8]) for i in range(0, len(features), 8)]
    adapted, plain = softmax(np.concatenate(parts)), softmax(scale * features @ text.T)
    assert np.abs(adapted - plain).max() > 1e-3  # it did learn
    found = answers(icon_stream, "--text-features", spread)
    assert [row["image"] for row in found] == sorted(map(str, icon_stream.iterdir()))
    for row, ours, theirs in zip(found, adapted, plain, strict=True):
        order = np.argsort(-ours, kind="stable")
        keys = [("label", "probability"), *((f"label_{k}", f"probability_{k}") for k in (2, 3))]
        for (label, chance), best in zip(keys, order, strict=False):
            assert row[label] == CLASSES[best]
            assert float(row[chance]) == pytest.approx(ours[best], abs=2e-3)
        assert row["zero_shot"] == CLASSES[theirs.argmax()]
        assert float(row["zero_shot_probability"]) == pytest.approx(theirs.max(), abs=2e-3)
        assert "label_4" not in row


def test_formats_agree(icon_stream, tmp_path):
    paths = {end: tmp_path / f"out.{end}" for end in ("csv", "jsonl", "html")}
    for path in paths.values():
        printed = classify(icon_stream, "--top", 9, "-o", path)
        assert "48 images in" in printed
        assert f"answers in {path}" in printed
    lines = [json.loads(line) for line in paths["jsonl"].read_text().splitlines()]
    page = paths["html"].read_text()
    assert page.count("data:image/jpeg;base64,") == 48
    assert "://" not in page
    assert "<h1>48 images</h1>" in page
    for row, line in zip(rows(paths["csv"]), lines, strict=True):
        assert (row["image"], row["label"]) == (line["image"], line["label"])
        assert row["zero_shot"] == line["zero_shot"]["label"]
        assert len(line["top"]) == 4
        chances = [chance for _, chance in line["top"]]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) == pytest.approx(1.0, abs=3e-4)
        assert line["probability"] == chances[0] == float(row["probability"])
    assert page.count('class="card changed"') == sum(
        row["label"] != row["zero_shot"] for row in rows(paths["csv"])
    )


def test_the_screen_shows_the_first_and_counts_the_rest(icon_stream):
    printed = classify(icon_stream)
    assert "00 " in printed
    assert "... and 28 more." in printed
    assert "encoder: the tiny CLIP, which knows icons only" in printed
    few = classify(*sorted(icon_stream.iterdir())[:2], "--method", "zero-shot")
    assert "2 images in" in few
    assert "more." not in few
    assert "otherwise" not in few


def test_folders_patterns_tables_and_lists_are_one_stream(
    icon_folder, icon_stream, tmp_path, answers
):
    files = sorted(map(str, icon_stream.iterdir()))
    by_folder = answers(icon_stream, "--method", "zero-shot")
    assert answers(f"{icon_stream}/*.png", "--method", "zero-shot") == by_folder
    assert answers(*files, "--method", "zero-shot") == by_folder
    table = icon_stream.parent / "table.csv"
    table.write_text("path\n" + "".join(f"stream/{os.path.basename(f)}\n" for f in files[:5]))
    assert answers(table, "--method", "zero-shot") == by_folder[:5]
    # Folders of any shape: labels are of no interest here.
    mixed = tmp_path / "mixed"
    shutil.copytree(icon_folder, mixed)
    shutil.copy(files[0], mixed)
    found = [row["image"] for row in answers(files[7], mixed, files[3], table, "--top", 1)]
    assert (found[0], found[22]) == (files[7], files[3])
    assert len(found) == 1 + 21 + 1 + 4  # file 3 is in the table too, and comes once
    assert all(os.path.isfile(image) for image in found)


def test_class_names_from_a_file(icon_stream, tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    path = tmp_path / "out.csv"
    one = sorted(icon_stream.iterdir())[0]
    soba_command("classify", one, "--classes-file", tmp_path / "names.txt", "-o", path)
    (from_file,) = rows(path)
    classify(one, "-o", path)
    assert rows(path) == [from_file]


# State ------------------------------------------------------------------------------------------


def halves(folder, size):
    files = sorted(map(str, folder.iterdir()))
    return files[:size], files[size:]


@pytest.mark.parametrize("method", ["soba+", "tda"])
def test_two_runs_with_a_state_are_one(icon_stream, tmp_path, answers, spread, method):
    first, second = halves(icon_stream, 24)
    options = ("--text-features", spread, "--method", method, "--state")
    whole = answers(*first, *second, *options, tmp_path / "whole")
    assert any(row["probability"] != row["zero_shot_probability"] for row in whole[24:])
    begun = answers(*first, *options, tmp_path / "parts")
    assert begun == whole[:24]
    assert answers(*second, *options, tmp_path / "parts") == whole[24:]
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()
    assert soba.load(tmp_path / "whole").count == 48


def test_cut_inside_a_batch_only_roundings_differ(icon_stream, tmp_path, answers, spread):
    first, second = halves(icon_stream, 19)
    whole = answers(*first, *second, "--text-features", spread)
    options = ("--text-features", spread, "--state", tmp_path / "state")
    found = answers(*first, *options) + answers(*second, *options)
    for ours, theirs in zip(found, whole, strict=True):
        assert ours["image"] == theirs["image"]
        assert float(ours["probability"]) == pytest.approx(float(theirs["probability"]), abs=1e-2)


def test_the_same_picture_is_learned_once(icon_stream, tmp_path, answers):
    copies = tmp_path / "copies"
    copies.mkdir()
    for file in icon_stream.iterdir():
        shutil.copy(file, copies / file.name)
        shutil.copy(file, copies / f"{file.stem} again.png")
    state = tmp_path / "state"
    found = answers(copies, "--state", state)
    assert len(found) == 96
    adapter = soba.load(state)
    assert adapter.count == 48
    # In one batch, twins have one answer.
    assert {**found[0], "image": ""} == {**found[1], "image": ""}
    learned = state.read_bytes()
    answers(icon_stream, "--state", state)
    assert state.read_bytes() == learned


def test_change_classes_keeps_the_samples(icon_stream, tmp_path):
    state = tmp_path / "state"
    classify(icon_stream, "--state", state)
    learned = state.read_bytes()
    one = sorted(icon_stream.iterdir())[0]
    more = f"{NAMES},weathercock"
    line = refused("classify", one, "--classes", more, "--state", state)
    assert f"{state}: learned for the classes {', '.join(CLASSES)}, where this run has" in line
    assert "--change-classes" in line
    assert "with other prompts" in refused(
        "classify", one, "--classes", NAMES, "--templates", "the {}!", "--state", state
    )
    swapped = ",".join(reversed(CLASSES))
    assert "learned for the classes" in refused(
        "classify", one, "--classes", swapped, "--state", state
    )
    assert state.read_bytes() == learned
    classify(one, "--state", state, "--change-classes", classes=more)
    adapter = soba.load(state)
    assert (adapter.classes, adapter.count) == (5, 48)
    assert soba.adapt.base.read_note(state)["class_names"] == more.split(",")


def test_a_state_of_something_else(icon_stream, tmp_path, tmp_path_factory):
    one, state = sorted(icon_stream.iterdir())[0], tmp_path / "state"
    classify(one, "--state", state)
    learned = state.read_bytes()
    arguments = ("classify", one, "--classes", NAMES, "--state", state, "-o", tmp_path / "out.csv")
    (tmp_path / "out.csv").write_text("precious")
    assert "learned by soba+; say --method soba+" in refused(*arguments, "--method", "tda")
    folder = model_folder(tmp_path_factory.mktemp("models") / "mine")
    assert "features of different encoders do not mix" in refused(*arguments, "--model", folder)
    for cut in (0, 40, len(learned) // 2, len(learned) - 1):
        state.write_bytes(learned[:cut])
        assert str(state) in refused(*arguments)
        assert state.read_bytes() == learned[:cut]
    assert (tmp_path / "out.csv").read_text() == "precious"


def test_a_state_without_a_note_is_taken_by_its_text(icon_stream, tmp_path):
    tiny = OnnxEncoder.tiny()
    text, scale = classifier(tiny.encode_texts, CLASSES, templates("icon")), tiny.logit_scale
    soba.SOBAPlus(text, scale=scale).save(tmp_path / "state")
    classify(icon_stream, "--state", tmp_path / "state")
    assert soba.load(tmp_path / "state").count == 48
    soba.SOBAPlus(np.eye(4, 3)[:, ::-1] + 1, scale=scale).save(tmp_path / "narrow")
    assert "learned for the classes of another list" in refused(
        "classify", icon_stream, "--classes", NAMES, "--state", tmp_path / "narrow"
    )


def test_an_interrupt_keeps_what_is_done(icon_stream, tmp_path, monkeypatch):
    real = module.ContentSet.image

    def image(self, index):
        if index == 21:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, index)

    monkeypatch.setattr(module.ContentSet, "image", image)
    before = signal.getsignal(signal.SIGINT)
    path, state = tmp_path / "out.csv", tmp_path / "state"
    printed = classify(icon_stream, "-o", path, "--state", state, code=130)
    assert "interrupted: what is done is kept" in printed
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    done = rows(path)
    assert 0 < len(done) < 48
    assert len(done) % 8 == 0
    assert soba.load(state).count == len(done)
    # Run it again: it ends as if nothing had happened.
    classify(icon_stream, "--state", state)
    classify(icon_stream, "--state", tmp_path / "whole")
    assert state.read_bytes() == (tmp_path / "whole").read_bytes()


def test_the_state_is_saved_on_the_way(icon_stream, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SAVE_EVERY", 0.0)
    seen = []
    real = module._Run.save

    def save(self):
        real(self)
        seen.append(soba.load(self.state).count)

    monkeypatch.setattr(module._Run, "save", save)
    classify(icon_stream, "--state", tmp_path / "state")
    assert seen == [8, 16, 24, 32, 40, 48, 48]


# Bad input --------------------------------------------------------------------------------------


def test_broken_images_are_reported_and_skipped(icon_stream, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    files = sorted(icon_stream.iterdir())[:10]
    for file in files:
        shutil.copy(file, folder)
    whole = files[0].read_bytes()
    for name, content in {
        "05a.png": b"",
        "05b.png": b"not an image",
        "05c.png": whole[: len(whole) // 2],
        "05d.jpg": b"\xff\xd8\xff\xe0torn",
        "05e.gif": b"GIF89a",
    }.items():
        (folder / name).write_bytes(content)
    Image.new("RGB", (500, 2)).save(folder / "05f.png")
    path = tmp_path / "out.csv"
    printed = classify(folder, "-o", path, "--state", tmp_path / "state")
    assert "6 images could not be read and were left out" in printed
    for name in ("05a.png", "05b.png", "05c.png", "05d.jpg", "05e.gif", "05f.png"):
        assert f"{folder / name}: " in printed
    assert [os.path.basename(row["image"]) for row in rows(path)] == [f.name for f in files]
    assert soba.load(tmp_path / "state").count == 10


def test_when_nothing_can_be_read_nothing_is_touched(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"torn")
    for end in ("csv", "jsonl", "html"):
        path = tmp_path / f"out.{end}"
        path.write_text("precious")
        arguments = ("classify", folder, "--classes", NAMES, "-o", path)
        assert "none of the images could be read" in refused(*arguments, "--state", tmp_path / "s")
        assert path.read_text() == "precious"
    assert "a.png" in soba_command("classify", folder, "--classes", NAMES, code=2)
    assert sorted(os.listdir(tmp_path)) == ["images", "out.csv", "out.html", "out.jsonl"]


def test_bad_input_is_one_line(icon_stream, tmp_path):
    one = sorted(icon_stream.iterdir())[0]
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "twice.txt").write_text("cat\ndog\ncat\n")
    (tmp_path / "none.txt").write_text("\n")
    (tmp_path / "wrong.onnx").write_bytes(b"no model")
    image_tower(tmp_path / "flat.onnx", shape=("n", 1, 8, 8))
    np.save(tmp_path / "text.npy", np.ones((2, 3), np.float32))
    np.save(tmp_path / "whole.npy", np.ones((2, 128), np.int64))
    np.save(tmp_path / "nan.npy", np.full((2, 128), np.nan))
    some = ("--classes", "cat,dog")
    for arguments, problem in (
        ([one], "say which classes there are: --classes cat,dog or --classes-file FILE"),
        ([one, *some, "--classes-file", tmp_path / "twice.txt"], "say which classes"),
        ([one, "--classes", " , "], "--classes names no class"),
        ([one, "--classes", "cat,dog,cat"], "--classes names a class twice: cat"),
        ([one, "--classes", "polar_bear,polar bear"], "would be said like"),
        ([one, "--classes-file", tmp_path / "twice.txt"], "twice.txt"),
        ([one, "--classes-file", tmp_path / "none.txt"], "none.txt"),
        ([one, "--classes-file", tmp_path / "absent.txt"], "absent.txt"),
        ([tmp_path / "empty", *some], f"{tmp_path / 'empty'}: holds no images"),
        ([tmp_path / "absent.png", *some], "images not found"),
        ([f"{tmp_path}/*.jpg", *some], "no image matches"),
        ([one, *some, "-o", tmp_path / "no" / "out.csv"], "out.csv: the folder does not exist"),
        ([one, *some, "--state", tmp_path / "no" / "s"], "s: the folder does not exist"),
        ([one, *some, "-o", tmp_path / "folder.csv"], "folder.csv: is a folder"),
        ([one, *some, "--state", tmp_path / "empty"], "empty: is a folder"),
        ([one, *some, "-o", tmp_path / "out.xlsx"], "answers are written as .csv, .jsonl, .html"),
        ([one, *some, "--method", "sobba"], "Did you mean 'soba'"),
        ([one, *some, "--method", "gda"], "gda needs features, few-shot labels"),
        ([one, *some, "--templates", "no place"], "no place"),
        ([one, *some, "--model", tmp_path / "wrong.onnx"], "wrong.onnx: not a usable ONNX model"),
        ([one, *some, "--model", tmp_path / "flat.onnx"], "flat.onnx: takes input of shape"),
        ([one, *some, "--model", tmp_path], "no image.onnx in it"),
        ([one, *some, "--model", "ViT-B-61"], "did you mean ViT-B-16"),
        ([one, *some, "--model", "ViT-B-16"], "needs weights"),
        ([one, *some, "--pretrained", "openai"], "carries its own weights"),
        ([one, *some, "--text-features", tmp_path / "text.npy"], "expected 2 classes x 128"),
        ([one, *some, "--text-features", tmp_path / "whole.npy"], "not an array of floating"),
        ([one, *some, "--text-features", tmp_path / "twice.txt"], "not a .npy file"),
        ([one, *some, "--text-features", tmp_path / "absent.npy"], "absent.npy"),
        ([one, *some, "--text-features", tmp_path / "nan.npy"], "NaN"),
    ):
        assert problem in refused("classify", *arguments)


def test_odd_names(icon_stream, tmp_path):
    folder = tmp_path / "[bold]"
    folder.mkdir()
    one = sorted(icon_stream.iterdir())[0]
    odd = os.fsdecode(b"caf\xe9 [red].png")
    shutil.copy(one, folder / odd)
    (folder / "[i]torn.png").write_bytes(b"torn")
    classes = "<b>cat</b>,[dim]dog,ü"
    printed = classify(folder, classes=classes)
    assert "[bold]" in printed
    assert "[i]torn.png" in printed
    for end in ("csv", "jsonl", "html"):
        path = folder / f"out.{end}"
        printed = classify(folder, "-o", path, "--top", 3, classes=classes)
        assert f"answers in {path}" in printed
    assert rows(folder / "out.csv")[0]["image"] == str(folder / odd)
    assert json.loads((folder / "out.jsonl").read_text())["image"] == str(folder / odd)
    page = (folder / "out.html").read_text()
    assert "<b>cat" not in page
    assert "[red].png" in page


@pytest.mark.parametrize("method", ["gda", "mta", "tpt", "no-such-method"])
def test_a_method_that_cannot_run_here_is_refused_before_the_model_is_loaded(method, tmp_path):
    (tmp_path / "a.png").write_bytes(b"not read")
    message = refused("classify", tmp_path, "--classes", "a,b", "--method", method, "--model", "x")
    assert method in message and "soba+" in message
