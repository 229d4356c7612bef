"""`soba classify` goes on from what it learned: in a file or a database, and when it is ended."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from classifying import CLASSES, NAMES, classify, rows
from onnx_models import model_folder
from run_cli import refused

import soba
from soba.cli import classify as module
from soba.encode.onnx import OnnxEncoder
from soba.encode.pictures import FilePicture
from soba.encode.prompts import classifier, templates

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


# Signals, and two runs at once ------------------------------------------------------------------


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


# Databases --------------------------------------------------------------------------------------


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
