"""Feature files: resumable at any byte, bounded in memory, without the broken images."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from onnx_models import model_folder
from PIL import Image
from run_cli import soba_command

from soba.encode.extract import Extraction
from soba.encode.onnx import OnnxEncoder
from soba.encode.store import FeatureSet
from soba.encode.views import Views


class Noise:
    """Images of noise; some cannot be read."""

    def __init__(self, count, broken=(), recipe="noise"):
        self.keys = tuple(f"{i}.png" for i in range(count))
        self.broken = set(broken)
        self.recipe = recipe
        self.opened = []

    def image(self, index):
        self.opened.append(index)
        if index in self.broken:
            raise OSError(f"number {index} is torn")
        pixels = np.random.default_rng(index).integers(1, 255, (12, 10, 3), np.uint8)
        return Image.fromarray(pixels)


class Stopped(Exception):
    pass


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return OnnxEncoder.load(model_folder(tmp_path_factory.mktemp("models") / "mine"))


@pytest.fixture
def job(encoder):
    def make(count=11, broken=(), views=None, **options):
        images = options.pop("images", None) or Noise(count, broken)
        settings = {"labels": np.arange(count) % 2, "batch": 4} | options
        names, prompts = settings.pop("names", ("cat", "dog")), settings.pop("prompts", ("a {}.",))
        if views is not None:
            settings["views"] = Views(views, preprocess=encoder.preprocess)
        return Extraction(settings.pop("encoder", encoder), images, names, prompts, **settings)

    return make


def stop_after(count):
    def step(done, total):
        if done >= count:
            raise Stopped

    return step


def leftovers(folder):
    return sorted(name for name in os.listdir(folder) if "partial" in name or name.startswith("."))


def test_what_the_file_holds(job, encoder, tmp_path):
    path = tmp_path / "features.safetensors"
    steps = []
    made = job(broken=[1, 6]).run(path, step=lambda done, total: steps.append((done, total)))
    assert steps == [(0, 11), (4, 11), (8, 11), (11, 11)]
    assert made.image_features.dtype == np.float16
    assert made.keys == tuple(f"{i}.png" for i in range(11) if i not in (1, 6))
    assert made.labels.tolist() == [i % 2 for i in range(11) if i not in (1, 6)]
    assert (made.class_names, made.prompts) == (("cat", "dog"), ("a {}.",))
    assert made.logit_scale == encoder.logit_scale
    assert made.fingerprint.startswith(encoder.fingerprint)
    assert made.view_policy is None
    made.check_values()
    plain = encoder.encode_pixels(encoder.preprocess(Noise(11).image(10))[None])
    np.testing.assert_allclose(made.image_features[-1], plain[0], atol=1e-3)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("views", [None, 3])
@pytest.mark.parametrize("broken", [(), (1, 6, 10)])
def test_cut_at_any_byte_it_ends_in_the_same_bytes(job, tmp_path, views, broken):
    whole = tmp_path / "whole.safetensors"
    job(broken=broken, views=views, batch=6).run(whole)
    path = tmp_path / "cut.safetensors"
    partial = tmp_path / "cut.safetensors.partial"
    with pytest.raises(Stopped):
        job(broken=broken, views=views, batch=6).run(path, step=stop_after(11))
    assert not path.exists()
    saved = {file: file.read_bytes() for file in tmp_path.glob("cut*")}
    size = len(saved[partial])
    for length in (0, 1, size // 3, size // 2 + 1, size - 1, size):
        for file, content in saved.items():
            file.write_bytes(content)
        os.truncate(partial, length)
        again = job(broken=broken, views=views, batch=6)
        again.run(path)
        assert path.read_bytes() == whole.read_bytes()
        assert sorted(again.broken) == list(broken)
        if length == size:
            assert again.images.opened == []
        path.unlink()
    assert leftovers(tmp_path) == []


KILLED = """
import os, signal, sys
from soba.cli import main
count, real = int(sys.argv.pop(1)), os.fsync
def fsync(handle):
    global count
    count -= 1
    if count < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(handle)
os.fsync = fsync
main()
"""


def test_killed_again_and_again_it_ends_in_the_same_bytes(icon_folder, tmp_path):
    folder = tmp_path / "icons"
    shutil.copytree(icon_folder, folder)
    next(folder.glob("*/*.png")).write_bytes(b"torn")
    path = tmp_path / "killed.safetensors"
    arguments = ["embed", folder, "--batch", 4, "--threads", 1, "-o"]
    # While it writes the third batch, while it writes the finished file, and after that.
    for syncs, finished in ((6, False), (2, False), (1, True)):
        command = [sys.executable, "-c", KILLED, str(syncs), *map(str, arguments), str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert path.exists() == finished
        assert leftovers(tmp_path)
    assert "1 images could not be read" in soba_command(*arguments, path)
    soba_command(*arguments, tmp_path / "undisturbed.safetensors")
    assert path.read_bytes() == (tmp_path / "undisturbed.safetensors").read_bytes()
    # A killed process cannot remove its temporary file; the parts of the job are gone.
    assert not list(tmp_path.glob("*.partial*"))


def test_a_finished_file_is_left_alone(job, tmp_path):
    path = tmp_path / "features.safetensors"
    job(broken=[3]).run(path)
    before = path.read_bytes()
    (tmp_path / "features.safetensors.partial").write_bytes(b"left by a kill at the very end")
    again = job(broken=[3], batch=8)  # another batch size is no reason to start over
    assert len(again.run(path)) == 10
    assert again.broken == {3: "number 3 is torn"}
    assert again.images.opened == []
    assert path.read_bytes() == before
    assert leftovers(tmp_path) == []


def test_another_job_is_refused_and_nothing_is_lost(job, tmp_path, tmp_path_factory):
    path = tmp_path / "features.safetensors"
    other = OnnxEncoder.load(model_folder(tmp_path_factory.mktemp("models") / "b", gain=2.0))
    others = [
        {"count": 10},  # fewer images
        {"count": 14},  # more images: those that are missing were not broken
        {"images": Noise(11, recipe="other noise")},
        {"labels": np.zeros(11, np.int64)},
        {"prompts": ("the {}.",)},
        {"views": 2},
        {"encoder": other},
    ]
    with pytest.raises(Stopped):
        job().run(path, step=stop_after(4))
    begun = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    for change in [*others, {"batch": 2}]:
        with pytest.raises(ValueError, match=r"features\.safetensors\.partial: begun with another"):
            job(**change).run(path)
        assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == begun
    job().run(path)
    finished = path.read_bytes()
    for change in [*others, {"names": ("cat", "cow")}]:
        with pytest.raises(ValueError, match=r"features\.safetensors: exists, and holds other"):
            job(**change).run(path)
        assert path.read_bytes() == finished


def test_damaged_leftovers(job, tmp_path):
    path = tmp_path / "features.safetensors"
    partial, journal = (
        tmp_path / f"features.safetensors{end}" for end in (".partial", ".partial.json")
    )
    job().run(path)
    whole = path.read_bytes()
    for cut in (0, 100, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"features\.safetensors: not a readable"):
            job().run(path)
        assert path.read_bytes() == whole[:cut]
    path.unlink()
    with pytest.raises(Stopped):
        job().run(path, step=stop_after(4))
    content = journal.read_text()
    for damaged in (
        "",
        content[:-9],
        "[]",
        "{}",
        json.dumps(json.loads(content) | {"broken": {"x": "y"}}),
    ):
        journal.write_text(damaged)
        rows = partial.read_bytes()
        with pytest.raises(ValueError, match=r"partial\.json: damaged; remove it to start over"):
            job().run(path)
        assert partial.read_bytes() == rows
    journal.write_text(content)
    partial.write_bytes(bytes(10_000))
    with pytest.raises(ValueError, match=r"\.partial: longer than it can be"):
        job().run(path)
    journal.unlink()  # as the message said: it starts over
    job().run(path)
    assert path.read_bytes() == whole
    with pytest.raises(Stopped):
        job().run(tmp_path / "b.safetensors", step=stop_after(4))
    (tmp_path / "b.safetensors.partial").unlink()
    job().run(tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == whole


def test_an_image_repaired_between_two_runs_is_read(job, tmp_path, monkeypatch):
    path = tmp_path / "features.safetensors"
    real = os.fsync
    calls = []

    def fail(handle):  # after the journal names image 5, before its batch is on disk
        calls.append(handle)
        if (tmp_path / "features.safetensors.partial").exists() and "5" in json.loads(
            (tmp_path / "features.safetensors.partial.json").read_text()
        )["broken"]:
            raise Stopped
        real(handle)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Stopped):
        job(broken=[5]).run(path)
    monkeypatch.undo()
    os.truncate(tmp_path / "features.safetensors.partial", 4 * 4 * 2)
    again = job()
    assert len(again.run(path)) == 11
    assert again.broken == {}


def test_bad_jobs(job, tmp_path):
    path = tmp_path / "features.safetensors"
    with pytest.raises(ValueError, match=r"features\.npz: feature sets are saved as"):
        job().run(tmp_path / "features.npz")
    with pytest.raises(FileNotFoundError, match="the folder does not exist"):
        job().run(tmp_path / "no" / "features.safetensors")
    with pytest.raises(ValueError, match="there are no images"):
        job(0).run(path)
    with pytest.raises(ValueError, match="would be said like"):
        job(names=("cat", "cat")).run(path)
    assert job(names=("cat", "cat"), allow_duplicates=True).run(path).classes == 2
    path.unlink()
    with pytest.raises(ValueError, match="none of the 3 images could be read; the first: number 0"):
        job(3, broken=range(3)).run(path)
    assert os.listdir(tmp_path) == []


def test_without_labels_and_with_odd_names(job, tmp_path):
    images = Noise(3)
    images.keys = ("a\udce9.png", "ü.png", "c.png")  # a name that is no valid text
    made = job(images=images, labels=None).run(tmp_path / "features.safetensors")
    assert made.keys == images.keys
    assert made.labels is None
    assert FeatureSet.load(tmp_path / "features.safetensors").keys == images.keys


def test_memory_does_not_grow_with_the_set(job, tmp_path, tmp_path_factory):
    width = 2048
    wide = OnnxEncoder.load(model_folder(tmp_path_factory.mktemp("wide") / "wide", width=width))

    def peak(count):
        images = Noise(count, broken=range(0, count, 10))
        tracemalloc.start()
        job(count, images=images, encoder=wide, batch=32).run(tmp_path / f"{count}.safetensors")
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    growth = peak(1600) - peak(400)
    assert growth < 0.1 * 1200 * width * 2
