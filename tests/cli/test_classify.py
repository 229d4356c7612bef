"""`soba classify`: its answers, in every format, of images that are named in any way."""

import io
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from classifying import CLASSES, NAMES, classify, rows
from PIL import Image
from run_cli import refused, soba_command

import soba
from soba.bench.metrics import softmax
from soba.encode.onnx import OnnxEncoder
from soba.encode.pictures import FilePicture

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


# Formats ----------------------------------------------------------------------------------------


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


# Images and classes -----------------------------------------------------------------------------


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


def test_class_names_from_a_file(icon_stream, tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    path = tmp_path / "out.csv"
    one = sorted(icon_stream.iterdir())[0]
    soba_command("classify", one, "--classes-file", tmp_path / "names.txt", "-o", path)
    (from_file,) = rows(path)
    classify(one, "-o", path)
    assert rows(path) == [from_file]
