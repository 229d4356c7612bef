"""`soba classify` names what it cannot read and goes on, or refuses in one line."""

import html
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_clip  # noqa: F401  (it makes open_clip importable)
from classifying import CLASSES, NAMES, classify, rows
from onnx_models import image_tower
from PIL import Image
from run_cli import refused, soba_command

import soba
from soba.cli import classify as module

# Named and left out -----------------------------------------------------------------------------


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


# Refused ----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("method", ["gda", "mta", "tpt", "no-such-method"])
def test_a_method_that_cannot_run_here_is_refused_before_the_model_is_loaded(method, tmp_path):
    (tmp_path / "a.png").write_bytes(b"not read")
    message = refused("classify", tmp_path, "--classes", "a,b", "--method", method, "--model", "x")
    assert method in message and "soba+" in message
