import csv
import html
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

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
from soba.encode.pictures import FilePicture
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
        lines = rows(path)
        path.unlink()
        return lines

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
    """Text features that divide the stream into classes, whatever the encoder has learned.

    They have much in common, so that CLIP is in doubt, and there is something to learn.
    """
    path = tmp_path_factory.mktemp("text") / "text.npy"
    centre = features.mean(axis=0)
    apart = features[:4] - centre
    apart /= np.linalg.norm(apart, axis=1, keepdims=True)
    np.save(path, apart + 3.0 * centre / np.linalg.norm(centre))
    return path


# Answers ----------------------------------------------------------------------------------------


def test_answers_are_the_streams_with_zero_shot_beside(icon_stream, answers, features, spread):
    logit_scale = OnnxEncoder.tiny().logit_scale
    adapter = soba.SOBAPlus(np.load(spread), logit_scale=logit_scale)
    text = adapter.text_features
    parts = [adapter.adapt(features[i : i + 8]) for i in range(0, len(features), 8)]
    adapted, plain = softmax(np.concatenate(parts)), softmax(logit_scale * features @ text.T)
    assert np.abs(adapted - plain).max() > 1e-3  # it did learn
    lines = answers(icon_stream, "--text-features", spread)
    assert [row["image"] for row in lines] == sorted(map(str, icon_stream.iterdir()))
    for row, ours, theirs in zip(lines, adapted, plain, strict=True):
        order = np.argsort(-ours, kind="stable")
        keys = [("label", "probability"), *((f"label_{k}", f"probability_{k}") for k in (2, 3))]
        for (label, chance), best in zip(keys, order, strict=False):
            assert row[label] == CLASSES[best]
            assert float(row[chance]) == pytest.approx(ours[best], abs=2e-3)
        assert row["zero_shot"] == CLASSES[theirs.argmax()]
        assert float(row["zero_shot_probability"]) == pytest.approx(theirs.max(), abs=2e-3)
        assert "label_4" not in row


def test_transductive_answers_are_those_of_the_whole_set(icon_stream, answers, features, spread):
    logit_scale = OnnxEncoder.tiny().logit_scale
    adapter = soba.SOBAPlus(np.load(spread), logit_scale=logit_scale)
    shares = softmax(adapter.transduce(features))
    plain = softmax(logit_scale * features @ adapter.text_features.T)
    assert np.abs(shares - plain).max() > 1e-3
    lines = answers(icon_stream, "--text-features", spread, "--transductive")
    assert [row["image"] for row in lines] == sorted(map(str, icon_stream.iterdir()))
    for row, ours, theirs in zip(lines, shares, plain, strict=True):
        assert float(row["probability"]) == pytest.approx(ours.max(), abs=2e-3)
        assert row["zero_shot"] == CLASSES[theirs.argmax()]


def test_transductive_keeps_no_state_and_is_for_soba_plus(icon_stream, tmp_path):
    given = ("classify", icon_stream, "--classes", NAMES, "--transductive")
    line = refused(*given, "--state", tmp_path / "state")
    assert "--transductive learns nothing, so there is no --state to keep" in line
    assert not (tmp_path / "state").exists()
    assert "tda does not answer a set at once; soba+ does" in refused(*given, "--method", "tda")


def test_transductive_names_what_is_broken(icon_stream, tmp_path):
    folder = tmp_path / "some"
    shutil.copytree(icon_stream, folder)
    (folder / "0 torn.png").write_bytes(b"torn")
    path = tmp_path / "out.csv"
    printed = classify(folder, "--transductive", "-o", path)
    assert "48 images in" in printed and "0 torn.png" in printed
    assert [bool(row["error"]) for row in rows(path)] == [True] + [False] * 48


def test_transductive_a_signal_answers_what_was_encoded(icon_stream, tmp_path, monkeypatch):
    real = FilePicture.open

    def read(self):
        if Path(self.name).name.startswith("21 "):
            os.kill(os.getpid(), signal.SIGINT)
        return real(self)

    monkeypatch.setattr(FilePicture, "open", read)
    path = tmp_path / "out.csv"
    printed = classify(icon_stream, "-o", path, "--transductive", code=130)
    assert "interrupted: what is done is kept" in printed
    assert 0 < len(rows(path)) < 48


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


def test_the_expected_accuracy_is_told_in_the_end(icon_stream, tmp_path, spread):
    said = re.compile(
        r"^CLIP alone is expected to be right on (\d+)%, adapted on (\d+)% "
        r"\(estimated without labels\)$",
        re.MULTILINE,
    )
    state = tmp_path / "state"
    printed = classify(icon_stream, "--text-features", spread, "--state", state)
    told = soba.load(state).adapter.expected_accuracy()
    [shares] = said.findall(printed)
    assert shares == (f"{100 * told.zero_shot:.0f}", f"{100 * told.adapted:.0f}")
    assert printed.index("48 images in") < printed.index("CLIP alone")
    # Nothing to tell: too few images for a first refresh, other methods, nothing learned.
    few = sorted(icon_stream.iterdir())[:2]
    assert "CLIP alone" not in classify(*few, "--text-features", spread)
    for more in (("--method", "soba"), ("--method", "zero-shot"), ("--transductive",)):
        assert "CLIP alone" not in classify(icon_stream, "--text-features", spread, *more)


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
    images = [row["image"] for row in answers(files[7], mixed, files[3], table, "--top", 1)]
    assert (images[0], images[22]) == (files[7], files[3])
    assert len(images) == 1 + 21 + 1 + 4  # file 3 is in the table too, and comes once
    assert all(os.path.isfile(image) for image in images)


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
    assert soba.load(tmp_path / "whole").adapter.n_seen == 48


def test_cut_inside_a_batch_only_roundings_differ(icon_stream, tmp_path, answers, spread):
    first, second = halves(icon_stream, 19)
    whole = answers(*first, *second, "--text-features", spread)
    options = ("--text-features", spread, "--state", tmp_path / "state")
    cut = answers(*first, *options) + answers(*second, *options)
    for ours, theirs in zip(cut, whole, strict=True):
        assert ours["image"] == theirs["image"]
        assert float(ours["probability"]) == pytest.approx(float(theirs["probability"]), abs=1e-2)


def test_the_same_picture_is_learned_once(icon_stream, tmp_path, answers):
    copies = tmp_path / "copies"
    copies.mkdir()
    for file in icon_stream.iterdir():
        shutil.copy(file, copies / file.name)
        shutil.copy(file, copies / f"{file.stem} again.png")
    state = tmp_path / "state"
    lines = answers(copies, "--state", state)
    assert len(lines) == 96
    adapter = soba.load(state).adapter
    assert adapter.n_seen == 48
    # In one batch, twins have one answer.
    assert {**lines[0], "image": ""} == {**lines[1], "image": ""}
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
    clf = soba.load(state)
    assert (clf.adapter.n_classes, clf.adapter.n_seen) == (5, 48)
    assert list(clf.names) == more.split(",")


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


def test_a_state_of_other_ids_is_refused(icon_stream, tmp_path):
    """Images are known by their content, so samples that were numbered could be learned twice."""
    state = tmp_path / "state"
    classify(icon_stream, "--state", state)
    adapter = soba.load(state).adapter
    assert adapter.id_space == "content"
    for ids, why in ((None, "its samples have no ids"), ([1, 2, 3], "are of space given, not")):
        other = soba.SOBAPlus(adapter.text_features, logit_scale=adapter.logit_scale)
        other.adapt(adapter.text_features[:3], ids=ids)
        other.save(state)
        message = refused("classify", icon_stream, "--classes", NAMES, "--state", state)
        assert str(state) in message and why in message


def test_a_state_without_a_note_is_taken_by_its_text(icon_stream, tmp_path):
    tiny = OnnxEncoder.tiny()
    text = classifier(tiny.encode_texts, CLASSES, templates("icon"))
    logit_scale = tiny.logit_scale
    soba.SOBAPlus(text, logit_scale=logit_scale).save(tmp_path / "state")
    classify(icon_stream, "--state", tmp_path / "state")
    assert soba.load(tmp_path / "state").adapter.n_seen == 48
    soba.SOBAPlus(np.eye(4, 3)[:, ::-1] + 1, logit_scale=logit_scale).save(tmp_path / "narrow")
    assert "learned for the classes of another list" in refused(
        "classify", icon_stream, "--classes", NAMES, "--state", tmp_path / "narrow"
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_is_done(icon_stream, tmp_path, monkeypatch, number, code):
    real = FilePicture.open

    def read(self):
        if Path(self.name).name.startswith("21 "):
            os.kill(os.getpid(), number)
        return real(self)

    monkeypatch.setattr(FilePicture, "open", read)
    before = signal.getsignal(number)
    path, state = tmp_path / "out.csv", tmp_path / "state"
    printed = classify(icon_stream, "-o", path, "--state", state, code=code)
    assert "interrupted: what is done is kept" in printed
    assert signal.getsignal(number) is before
    monkeypatch.undo()
    done = rows(path)
    assert 0 < len(done) < 48
    assert len(done) % 8 == 0
    assert soba.load(state).adapter.n_seen == len(done)
    # Run it again: it ends as if nothing had happened.
    classify(icon_stream, "--state", state)
    classify(icon_stream, "--state", tmp_path / "whole")
    assert state.read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_signal_while_the_state_is_saved_loses_nothing(icon_stream, tmp_path, monkeypatch):
    real = module._Run._save

    def save(self):
        os.kill(os.getpid(), signal.SIGTERM)
        real(self)

    monkeypatch.setattr(module._Run, "_save", save)
    classify(icon_stream, "--state", tmp_path / "state", code=143)
    assert soba.load(tmp_path / "state").adapter.n_seen == 48


WAITING = """
import sys
from soba.cli import classify, main

real = classify.open_encoder

def open_encoder(*arguments):
    print("begun", flush=True)
    sys.stdin.readline()
    return real(*arguments)

classify.open_encoder = open_encoder
main()
"""


@pytest.mark.parametrize("option", ["--state", "-o"])
def test_two_runs_on_one_file_the_second_is_refused(icon_stream, tmp_path, option):
    first, second = halves(icon_stream, 24)
    path = tmp_path / {"--state": "state", "-o": "out.csv"}[option]
    command = [sys.executable, "-c", WAITING, "classify", *first, "--classes", NAMES, option, path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, **pipes) as run:
        assert run.stdout.readline() == "begun\n"
        # By another name, and before it looks for its model.
        (tmp_path / "link.csv").symlink_to(path)
        problem = refused(
            "classify", *second, "--classes", NAMES, option, tmp_path / "link.csv",
            "--model", "no-such-model",
        )  # fmt: skip
        assert f"{tmp_path / 'link.csv'}: another run is working on this file" in problem
        printed, _ = run.communicate("go on\n")
        assert run.returncode == 0, printed
    assert "24 images in" in printed
    classify(*second, option, path)
    if option == "--state":
        assert soba.load(path).adapter.n_seen == 48


def test_the_state_is_saved_on_the_way(icon_stream, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SAVE_EVERY", 0.0)
    seen = []
    real = module._Run._save

    def save(self):
        real(self)
        seen.append(soba.load(self.state).adapter.n_seen)

    monkeypatch.setattr(module._Run, "_save", save)
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
    by_name = {os.path.basename(row["image"]): row for row in rows(path)}
    assert list(by_name) == sorted(os.listdir(folder))
    answered = [name for name, row in by_name.items() if not row["error"]]
    assert answered == [file.name for file in files]
    assert {key for key, cell in by_name["05b.png"].items() if cell} == {"image", "error"}
    assert by_name["05b.png"]["error"] == "not an image of a known format"
    assert soba.load(tmp_path / "state").adapter.n_seen == 10
    assert "1 image could not be read and was left out" in classify(folder / "05a.png", files[0])


def bad_paths(folder, good):
    """Arguments of which each is bad in its own way; the reasons, by the path that is named."""
    folder.mkdir()
    (folder / "gone.png").symlink_to("nowhere.png")
    (folder / "circle.png").symlink_to("circle.png")
    os.mkfifo(folder / "pipe.png")
    (folder / "again").symlink_to(".")
    (folder / "empty").mkdir()
    (folder / "list.csv").write_text(f"path\nmissing.png\n{good}\n")
    (folder / "columns.csv").write_text("file\na.png\n")
    (folder / "torn.png").write_bytes(b"torn")
    arguments = [
        folder,
        folder / "empty",
        folder / "list.csv",
        folder / "columns.csv",
        folder / "absent.png",
        folder / "absent.csv",
        f"{folder}/*.gif",
        folder / ("long" * 100),
        good,
    ]
    reasons = {
        "again": "a folder without images of its own",
        "circle.png": "Too many levels of symbolic links",
        "gone.png": "No such file or directory",
        "pipe.png": "a pipe, socket or device, not a file",
        "torn.png": "not an image of a known format",
        "empty": "holds no images",
        "missing.png": "No such file or directory",
        "columns.csv": "needs a column 'path', has file",
        "absent.png": "No such file or directory",
        "absent.csv": "not found",
        "*.gif": "No such file or directory",
        "long" * 100: "File name too long",
    }
    return arguments, {str(folder / name): why for name, why in reasons.items()}


def test_bad_paths_are_named_counted_and_in_the_file(icon_stream, tmp_path):
    good = sorted(map(str, icon_stream.iterdir()))[0]
    arguments, reasons = bad_paths(tmp_path / "images", good)
    for end in ("csv", "jsonl", "html"):
        path = tmp_path / f"out.{end}"
        printed = classify(*arguments, "-o", path)
        assert "12 images could not be read and were left out" in printed
        assert f"... and 2 more; all are in {path}" in printed
        assert "1 image in" in printed
    assert "BytesIO" not in printed
    table = rows(tmp_path / "out.csv")
    assert {row["image"]: row["error"] for row in table if row["error"]} == reasons
    assert [row["image"] for row in table if row["label"]] == [good]
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["image"], line["error"] or "") for line in lines] == [
        (row["image"], row["error"]) for row in table
    ]
    assert all(line.keys() == lines[0].keys() for line in lines)
    assert all((line["label"] is None) == bool(line["error"]) for line in lines)
    page = (tmp_path / "out.html").read_text()
    assert "<h1>1 image</h1>" in page
    for name, why in reasons.items():
        assert html.escape(name) in page and html.escape(why) in page


def test_embed_names_and_counts_them_too(icon_folder, tmp_path):
    folder, path = tmp_path / "icons", tmp_path / "features.safetensors"
    shutil.copytree(icon_folder, folder)
    first = sorted(os.listdir(folder))[0]
    (folder / first / "gone.png").symlink_to("nowhere.png")
    os.mkfifo(folder / first / "pipe.png")
    printed = soba_command("embed", folder, "-o", path)
    assert "2 images could not be read and were left out" in printed
    assert f"{first}/pipe.png: a pipe, socket or device, not a file" in printed
    assert "20 x 128 features, labelled, 5 classes" in printed
    lines = [f"{key.relative_to(folder)},x" for key in sorted(folder.glob("*/*[0-9].png"))]
    (folder / "list.csv").write_text("\n".join(["path,label", *lines, "absent.png,x"]))
    path.unlink()
    printed = soba_command("embed", folder / "list.csv", "-o", path)
    assert "1 image could not be read and was left out" in printed
    assert "absent.png: No such file or directory" in printed
    assert f"{len(lines)} x 128 features, labelled, 1 class, in" in printed


def test_a_folder_that_vanishes_is_named(icon_stream, tmp_path, monkeypatch):
    shutil.copytree(icon_stream, tmp_path / "gone")
    kept = sorted(icon_stream.iterdir())[:3]
    real = module.open_encoder

    def open_encoder(*arguments):
        shutil.rmtree(tmp_path / "gone")  # listed by now, not read yet
        return real(*arguments)

    monkeypatch.setattr(module, "open_encoder", open_encoder)
    printed = classify(*kept, tmp_path / "gone", "-o", tmp_path / "out.csv")
    assert "48 images could not be read" in printed
    lines = rows(tmp_path / "out.csv")
    assert [bool(row["error"]) for row in lines] == [False] * 3 + [True] * 48


def test_an_image_that_vanishes_after_its_answer_has_no_picture(icon_stream, tmp_path, monkeypatch):
    shutil.copytree(icon_stream, tmp_path / "images")
    real = module._Run._count

    def counted(self, answer):
        shutil.rmtree(tmp_path / "images", ignore_errors=True)
        return real(self, answer)

    monkeypatch.setattr(module._Run, "_count", counted)
    classify(*sorted((tmp_path / "images").iterdir())[:8], "-o", tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    assert "<h1>8 images</h1>" in page and page.count("<figure") == 8


@pytest.mark.parametrize("separator", ["\n", "\r\n", "\0"])
def test_paths_from_standard_input(icon_stream, answers, separator, tmp_path):
    odd = tmp_path / ("two\nlines.png" if separator == "\0" else " blanks .png")
    first, *rest = sorted(icon_stream.iterdir())
    shutil.copy(rest[7], odd)
    content = "".join(f"{path}{separator}" for path in [*rest[:3], odd, tmp_path / "no.png"])
    with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode()))):
        lines = answers(first, "-", rest[5])
    names = [str(path) for path in (first, *rest[:3], odd, tmp_path / "no.png", rest[5])]
    assert [row["image"] for row in lines] == names
    assert [row["image"] for row in lines if row["error"]] == [str(tmp_path / "no.png")]
    with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n"))):
        assert "standard input names no paths" in refused("classify", "-", "--classes", NAMES)


def test_deep_greyscale_is_answered_as_its_eight_bit_twin(icon_stream, tmp_path, answers):
    shallow = np.asarray(Image.open(sorted(icon_stream.iterdir())[0]).convert("L"))
    Image.fromarray(shallow).save(tmp_path / "a.png")
    Image.fromarray(shallow * np.uint16(257)).save(tmp_path / "b.png")
    Image.fromarray(shallow * np.uint16(257)).save(tmp_path / "c.tiff")
    Image.fromarray((shallow / 255).astype(np.float32)).save(tmp_path / "d.tiff")
    twin, *deep = answers(tmp_path, "--method", "zero-shot")
    assert [row | {"image": ""} for row in deep] == [twin | {"image": ""}] * 3
    classify(tmp_path, "-o", tmp_path / "out.html")
    assert page_pictures(tmp_path / "out.html") == 1


def page_pictures(path):
    """How many different pictures a page holds."""
    parts = path.read_text().split("data:image/jpeg;base64,")[1:]
    return len({part.partition('"')[0] for part in parts})


def test_results_do_not_overwrite_each_other_nor_what_is_read(icon_stream, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = sorted(icon_stream.iterdir())[0]
    (tmp_path / "list.csv").write_text(f"path\n{one}\n")
    (tmp_path / "names.csv").write_text("\n".join(CLASSES))
    (tmp_path / "link.csv").symlink_to("list.csv")
    (tmp_path / "dangling.csv").symlink_to("out.csv")
    (tmp_path / "folder").symlink_to(".")
    (tmp_path / "real").mkdir()
    for state in ("out.csv", "real/../out.csv", "folder/out.csv", "dangling.csv"):
        problem = refused("classify", one, "--classes", NAMES, "-o", "out.csv", "--state", state)
        assert "out.csv: answers and state cannot be one file" in problem
    for output in ("list.csv", "folder/list.csv", "link.csv"):
        problem = refused("classify", "list.csv", "--classes", NAMES, "-o", output)
        assert f"{output}: is read by this run" in problem
    problem = refused("classify", one, "--classes-file", "names.csv", "-o", "names.csv")
    assert "names.csv: is read by this run" in problem
    assert Path("list.csv").read_text() == f"path\n{one}\n"
    assert not Path("out.csv").exists()


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


def test_a_bad_row_of_a_table_costs_no_other(icon_stream, tmp_path, answers):
    """Labels do not matter here, an image that is listed twice is one, an empty row is named."""
    one, two = sorted(icon_stream.iterdir())[:2]
    table = tmp_path / "list.csv"
    lines = [f"{one},cat", f"{one},", f"{two},", ",dog", f"{tmp_path / 'no.png'},dog"]
    table.write_text("path,label\n" + "\n".join(lines) + "\n")
    written = answers(table)
    assert [row["image"] for row in written] == [
        str(one),
        str(two),
        f"{table}, row 4",
        str(tmp_path / "no.png"),
    ]
    assert [bool(row["error"]) for row in written] == [False, False, True, True]
    assert written[2]["error"] == "no path"


def test_a_killed_page_leaves_nothing_for_long(icon_stream, tmp_path):
    """The page is written into the one temporary file that the next run removes."""
    one, page = sorted(icon_stream.iterdir())[0], tmp_path / "out.html"
    end = "import os, sys; from soba.cli import main; os.fsync = lambda _: os.kill(os.getpid(), 9)"
    arguments = ["soba", "classify", str(one), "--classes", NAMES, "-o", str(page)]
    killed = subprocess.run([sys.executable, "-c", f"{end}; sys.argv = {arguments!r}; main()"])
    assert killed.returncode == -signal.SIGKILL
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".tmp")]) == 1
    classify(one, "-o", page)
    assert os.listdir(tmp_path) == ["out.html"]


def test_standard_input_that_is_closed(icon_stream, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in refused("classify", "-", "--classes", NAMES)


def test_bad_input_is_one_line(icon_stream, tmp_path):
    one = sorted(icon_stream.iterdir())[0]
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "twice.txt").write_text("cat\ndog\ncat\n")
    (tmp_path / "none.txt").write_text("\n")
    (tmp_path / "wrong.onnx").write_bytes(b"no model")
    image_tower(tmp_path / "flat.onnx", shape=("n", 1, 8, 8))
    np.save(tmp_path / "text.npy", np.ones((2, 3), np.float32))
    with (tmp_path / "huge.npy").open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 128)}
        np.lib.format.write_array_header_1_0(file, header)
    np.save(tmp_path / "whole.npy", np.ones((2, 128), np.int64))
    np.save(tmp_path / "nan.npy", np.full((2, 128), np.nan))
    some = ("--classes", "cat,dog")
    for arguments, problem in (
        ([one], "say which classes there are: --classes cat,dog or --classes-file FILE"),
        ([one, *some, "--classes-file", tmp_path / "twice.txt"], "say which classes"),
        ([one, "--classes", " , "], "--classes names no class"),
        ([one, "--classes", "cat,dog,cat"], "--classes names a class twice: cat"),
        ([one, "--classes", "polar_bear,polar bear"], "would be said like"),
        ([one, "--classes", "Cat,dog,cat"], "'Cat' and 'cat': the same to this encoder"),
        ([one, "--classes-file", tmp_path / "twice.txt"], "twice.txt"),
        ([one, "--classes-file", tmp_path / "none.txt"], "none.txt"),
        ([one, "--classes-file", tmp_path / "absent.txt"], "absent.txt"),
        ([tmp_path / "empty", *some], f"{tmp_path / 'empty'}: holds no images"),
        ([tmp_path / "absent.png", *some], "no image found: "),
        ([f"{tmp_path}/*.jpg", *some], "/*.jpg: not there"),
        ([one, *some, "-o", tmp_path / "no" / "out.csv"], "out.csv: the folder does not exist"),
        ([one, *some, "--state", tmp_path / "no" / "s"], "s: the folder does not exist"),
        ([one, *some, "-o", tmp_path / "folder.csv"], "folder.csv: is a folder"),
        ([one, *some, "--state", tmp_path / "empty"], "empty: is a folder"),
        (
            [one, *some, "-o", tmp_path / "out.xlsx"],
            "answers are written as .csv, .jsonl, .parquet",
        ),
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
        ([one, *some, "--text-features", tmp_path / "twice.txt"], "not a readable .npy file"),
        ([one, *some, "--text-features", tmp_path / "huge.npy"], "huge.npy: not a readable .npy"),
        ([one, *some, "--text-features", tmp_path / "absent.npy"], "absent.npy"),
        ([one, *some, "--text-features", tmp_path / "nan.npy"], "nan.npy: text features: row 0"),
        (
            [one, *some, "--text-features", tmp_path / "nan.npy", "--templates", "a {}."],
            "--templates make text features, and --text-features are some already",
        ),
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
    assert rows(folder / "out.csv")[1]["image"] == str(folder / odd)
    line = (folder / "out.jsonl").read_text().splitlines()[1]
    assert json.loads(line)["image"] == str(folder / odd)
    page = (folder / "out.html").read_text()
    assert "<b>cat" not in page
    assert "[red].png" in page


@pytest.mark.parametrize("method", ["gda", "mta", "tpt", "no-such-method"])
def test_a_method_that_cannot_run_here_is_refused_before_the_model_is_loaded(method, tmp_path):
    (tmp_path / "a.png").write_bytes(b"not read")
    message = refused("classify", tmp_path, "--classes", "a,b", "--method", method, "--model", "x")
    assert method in message and "soba+" in message


def test_a_stream_in_a_database(tmp_path, icon_stream):
    stream = "--store", f"sqlite:///{tmp_path}/icons.db", "--stream", "icons"
    printed = classify(icon_stream, *stream, "-o", tmp_path / "one.csv")
    assert "stream icons: 48 images learned, version 6" in printed
    again = classify(icon_stream, *stream, "-o", tmp_path / "two.csv")
    assert "stream icons: 48 images learned, version 6" in again
    single = soba.Classifier("tiny", CLASSES)
    due = [answer.label for answer in single.classify(icon_stream, batch=8)]
    assert [row["label"] for row in rows(tmp_path / "one.csv")] == due
    others = ",".join(CLASSES[:3])
    line = refused("classify", icon_stream, *stream, "--classes", others)
    assert "learned for" in line and "change_classes" in line
    changed = classify(icon_stream, *stream, "--change-classes", classes=others)
    assert "stream icons: 48 images learned, version 7" in changed


def test_a_stream_needs_a_database_and_a_name(tmp_path, icon_stream):
    command = "classify", icon_stream, "--classes", NAMES
    assert "--store URL --stream NAME" in refused(*command, "--stream", "icons")
    assert "--store URL --stream NAME" in refused(*command, "--store", "sqlite:///x.db")
    stream = "--store", f"sqlite:///{tmp_path}/x.db", "--stream", "icons"
    assert "leave --state" in refused(*command, *stream, "--state", tmp_path / "state")
    assert "sqlite:///FILE" in refused(*command, "--store", "icons.db", "--stream", "icons")
    missing = "--store", f"sqlite:///{tmp_path}/no/x.db", "--stream", "icons"
    assert "unable to open database file" in refused(*command, *missing)
