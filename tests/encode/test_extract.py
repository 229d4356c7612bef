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
from disks import full_disk
from extractions import Noise, Stopped, leftovers, stop_after
from onnx_models import model_folder
from run_cli import refused, soba_command

from soba._files import save_arrays
from soba.encode.onnx import OnnxEncoder
from soba.encode.prompts import templates_fingerprint
from soba.feature_set import FeatureSet, read_note


@pytest.fixture
def encoder(small_encoder):
    """That of the jobs."""
    return small_encoder


def test_a_file_that_joins_both_fingerprints_is_known_again(job, encoder, tmp_path):
    """As it was written before there were two."""
    path = tmp_path / "features.safetensors"
    features, joined = job().run(path), f"{encoder.fingerprint}-{templates_fingerprint(['a {}.'])}"
    note, meta = read_note(path), {"fingerprint": joined}
    assert note["job"]["encoder"] == joined
    meta |= {name: getattr(features, name) for name in ("logit_scale", "class_names", "prompts")}
    arrays = {
        name: getattr(features, name) for name in ("image_features", "text_features", "labels")
    }
    save_arrays(path, arrays, {"soba": json.dumps(meta), "note": json.dumps(note)})
    before = path.read_bytes()
    again = job().run(path)
    assert path.read_bytes() == before
    assert again.encoder_fingerprint == encoder.fingerprint
    assert again.templates_fingerprint == features.templates_fingerprint


def test_what_the_file_holds(job, encoder, tmp_path):
    path = tmp_path / "features.safetensors"
    steps = []
    features = job(broken=[1, 6]).run(path, step=lambda done, total: steps.append((done, total)))
    assert steps == [(0, 11), (4, 11), (8, 11), (11, 11)]
    assert features.image_features.dtype == np.float16
    assert features.keys == tuple(f"{i}.png" for i in range(11) if i not in (1, 6))
    assert features.labels.tolist() == [i % 2 for i in range(11) if i not in (1, 6)]
    assert (features.class_names, features.prompts) == (("cat", "dog"), ("a {}.",))
    assert features.logit_scale == encoder.logit_scale
    assert features.encoder_fingerprint == encoder.fingerprint
    assert features.templates_fingerprint == templates_fingerprint(["a {}."])
    assert features.view_policy is None
    features.check_values()
    plain = encoder.encode_pixels(encoder.preprocess(Noise(11).image(10))[None])
    np.testing.assert_allclose(features.image_features[-1], plain[0], atol=1e-3)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("views", [None, 3])
def test_in_memory_it_is_what_the_file_holds(job, tmp_path, views):
    stored = job(broken=[1, 6], views=views).run(tmp_path / "features.safetensors")
    given, steps = job(broken=[1, 6], views=views), []
    held = given.in_memory(lambda done, total: steps.append(done))
    assert steps[-1] == 11 and given.broken.keys() == {1, 6}
    np.testing.assert_allclose(held.image_features, stored.image_features, atol=1e-3)
    fingerprints = ("encoder_fingerprint", "templates_fingerprint")
    for name in ("keys", "class_names", "prompts", "view_policy", "logit_scale", *fingerprints):
        assert getattr(held, name) == getattr(stored, name)
    assert held.labels.tolist() == stored.labels.tolist()
    with pytest.raises(ValueError, match="none of the 2 images could be read"):
        job(count=2, broken=[0, 1]).in_memory()
    with pytest.raises(ValueError, match="no images"):
        job(count=0).in_memory()


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
    assert "1 image could not be read" in soba_command(*arguments, path)
    soba_command(*arguments, tmp_path / "undisturbed.safetensors")
    assert path.read_bytes() == (tmp_path / "undisturbed.safetensors").read_bytes()
    assert leftovers(tmp_path) == []


def test_what_a_killed_run_left_goes_with_the_parts(job, tmp_path):
    path = tmp_path / "features.safetensors"
    with pytest.raises(Stopped):
        job().run(path, step=stop_after(4))
    for name in ("", ".partial.json"):  # as a kill while writing leaves them
        (tmp_path / f".{path.name}{name}.0123abcd.tmp").write_text("half")
    job().run(path)
    assert os.listdir(tmp_path) == [path.name]


HELD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
from soba.encode import extract
from soba.cli import main
real = extract.encode
def slow(*arguments, **settings):
    for part in real(*arguments, **settings):
        if part.start:
            print("holding", flush=True)
            sys.stdin.read()
        yield part
extract.encode = slow
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_run_is_refused_and_a_signal_keeps_what_is_done(
    icon_folder, tmp_path, number, code
):
    path = tmp_path / "features.safetensors"
    arguments = list(map(str, ["embed", icon_folder, "--batch", 8, "--threads", 1, "-o"]))
    command = [sys.executable, "-c", HELD, *arguments, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout.readline() == "holding\n"
        before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
        assert f"{path}: another run is working on this file" in refused(*arguments, path)
        assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
        first.send_signal(number)
        _, said = first.communicate()
    assert first.returncode == code, said
    assert "interrupted: what is done is kept, the same command goes on" in said
    assert "Traceback" not in said
    rows = (tmp_path / "features.safetensors.partial").stat().st_size
    assert rows == 8 * (2 * 128 + 8)
    assert leftovers(tmp_path) == [f"{path.name}.partial", f"{path.name}.partial.json"]
    soba_command(*arguments, path)
    soba_command(*arguments, tmp_path / "undisturbed.safetensors")
    assert path.read_bytes() == (tmp_path / "undisturbed.safetensors").read_bytes()


def test_a_link_is_written_through(job, tmp_path):
    (tmp_path / "disk").mkdir()
    link = tmp_path / "features.safetensors"
    link.symlink_to("disk/features.safetensors")
    with pytest.raises(Stopped):
        job().run(link, step=stop_after(4))
    assert leftovers(tmp_path) == []
    assert len(leftovers(tmp_path / "disk")) == 2
    again = job()
    again.run(link)
    assert sorted(again.images.opened) == list(range(4, 11))
    assert link.is_symlink()
    assert os.listdir(tmp_path / "disk") == ["features.safetensors"]


def test_a_full_disk_is_said_and_nothing_is_lost(job, tmp_path):
    path = tmp_path / "features.safetensors"
    size = 11 * (4 * 2 + 8)
    assert size < 1000  # so that the journal fits, and the rows of this many images do not
    with full_disk(1000), pytest.raises(OSError, match=r"File too large: '.*features.*'"):
        job(200).run(path)
    again = job(200)
    again.run(path)
    assert 0 < len(again.images.opened) < 200
    job(200).run(tmp_path / "fresh.safetensors")
    assert path.read_bytes() == (tmp_path / "fresh.safetensors").read_bytes()


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
        "[" * 100_000,
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
    assert job(names=("cat", "cat"), allow_duplicates=True).run(path).n_classes == 2
    path.unlink()
    with pytest.raises(ValueError, match="none of the 3 images could be read; the first: number 0"):
        job(3, broken=range(3)).run(path)
    assert os.listdir(tmp_path) == []


def test_without_labels_and_with_odd_names(job, tmp_path):
    images = Noise(3)
    images.keys = ("a\udce9.png", "ü.png", "c.png")  # a name that is no valid text
    features = job(images=images, labels=None).run(tmp_path / "features.safetensors")
    assert features.keys == images.keys
    assert features.labels is None
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
