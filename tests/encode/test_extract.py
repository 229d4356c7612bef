"""Feature files: resumable at any byte, bounded in memory, without the broken images."""

import dataclasses
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
from onnx_models import model_folder
from PIL import Image
from run_cli import refused, soba_command

from soba._files import save_arrays
from soba.datasets import ImageSet
from soba.encode.extract import Extraction
from soba.encode.onnx import OnnxEncoder
from soba.encode.prompts import templates_fingerprint
from soba.encode.views import Views
from soba.feature_set import FeatureSet, read_note


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


@dataclasses.dataclass(frozen=True, eq=False)
class Photos(ImageSet):
    """Images on disk, with a list of those that were opened."""

    def __post_init__(self):
        object.__setattr__(self, "opened", [])

    def image(self, index):
        self.opened.append(index)
        return super().image(index)


@pytest.fixture
def photos(tmp_path):
    root = tmp_path / "photos"
    root.mkdir()
    keys = tuple(Noise(11).keys)
    for index, key in enumerate(keys):
        Noise(11).image(index).save(root / key)
    return lambda: Photos("photos", ("cat", "dog"), keys, root=root)


def replace(path, number):
    """Another picture under the same name."""
    Noise(99).image(number).save(path.with_name("new.png"))
    path.with_name("new.png").replace(path)


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


def test_a_picture_replaced_after_the_run_is_encoded_anew(job, photos, tmp_path):
    path = tmp_path / "features.safetensors"
    job(images=photos()).run(path)
    stale = path.read_bytes()
    replace(photos().path(5), 50)
    again = job(images=photos())
    again.run(path)
    assert (again.changed, sorted(again.images.opened)) == ([5], [4, 5, 6, 7])
    assert path.read_bytes() != stale
    job(images=photos()).run(tmp_path / "fresh.safetensors")
    assert path.read_bytes() == (tmp_path / "fresh.safetensors").read_bytes()
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("views", [None, 3])
def test_a_picture_replaced_between_two_runs_is_encoded_anew(job, photos, tmp_path, views):
    path = tmp_path / "features.safetensors"
    with pytest.raises(Stopped):
        job(images=photos(), views=views, batch=6).run(path, step=stop_after(6))
    for index in (1, 10):  # one that is done, and one that is not
        replace(photos().path(index), 50 + index)
    again = job(images=photos(), views=views, batch=6)
    steps = []
    again.run(path, step=lambda done, total: steps.append(done))
    assert again.changed == [1]
    first = range(6) if views is None else range(2)
    assert set(range(11)) - set(again.images.opened) == set(range(6)) - set(first)
    assert steps[0] == 6 - len(first)
    assert (sorted(steps), steps[-1]) == (steps, 11)
    job(images=photos(), views=views, batch=6).run(tmp_path / "fresh.safetensors")
    assert path.read_bytes() == (tmp_path / "fresh.safetensors").read_bytes()


def test_pictures_are_known_by_their_content(job, photos, tmp_path):
    path = tmp_path / "features.safetensors"
    job(images=photos()).run(path)
    before = path.read_bytes()
    for index in range(11):  # as if the folder had been copied
        file = photos().path(index)
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content)
        os.utime(file, (index, index))
    again = job(images=photos())
    again.run(path)
    assert (again.changed, again.images.opened) == ([], [])
    assert path.read_bytes() == before


def test_pictures_that_break_and_are_repaired(job, photos, tmp_path):
    path = tmp_path / "features.safetensors"
    lost, torn, whole = photos().path(1), photos().path(6), photos().path(10)
    content = {file: file.read_bytes() for file in (lost, torn, whole)}
    lost.unlink()
    torn.write_bytes(b"torn")
    first = job(images=photos())
    first.run(path)
    assert sorted(first.broken) == [1, 6]
    same = job(images=photos())
    same.run(path)
    assert (same.changed, same.images.opened, same.broken) == ([], [], first.broken)
    lost.write_bytes(content[lost])
    whole.write_bytes(b"torn too")
    again = job(images=photos())
    features = again.run(path)
    assert (again.changed, sorted(again.broken)) == ([1, 10], [6, 10])
    assert features.keys == tuple(key for i, key in enumerate(photos().keys) if i not in (6, 10))
    features.check_values()
    job(images=photos()).run(tmp_path / "fresh.safetensors")
    assert path.read_bytes() == (tmp_path / "fresh.safetensors").read_bytes()


def test_pictures_that_are_gone_keep_their_rows(job, photos, tmp_path):
    """A disk that is not mounted must not cost what was made of its pictures."""
    path = tmp_path / "features.safetensors"
    job(images=photos()).run(path)
    before = path.read_bytes()
    for index in range(11):
        photos().path(index).unlink()
    again = job(images=photos())
    assert len(again.run(path)) == 11
    assert (again.gone, again.changed, again.broken) == (list(range(11)), [], {})
    assert path.read_bytes() == before
    begun = job(images=photos())
    with pytest.raises(ValueError, match="none of the 11 images"):
        begun.run(tmp_path / "fresh.safetensors")


def test_killed_while_it_encodes_anew(job, photos, tmp_path):
    path = tmp_path / "features.safetensors"
    job(images=photos()).run(path)
    for index in (0, 5, 9):
        replace(photos().path(index), 50 + index)
    with pytest.raises(Stopped):
        job(images=photos()).run(path, step=stop_after(4))
    assert FeatureSet.load(path).keys == photos().keys  # the old file is still there
    again = job(images=photos())
    again.run(path)
    assert sorted(again.images.opened) == list(range(4, 11))  # it went on where it was
    job(images=photos()).run(tmp_path / "fresh.safetensors")
    assert path.read_bytes() == (tmp_path / "fresh.safetensors").read_bytes()
    assert leftovers(tmp_path) == []


def test_rows_that_were_being_made_again_are_never_trusted(job, photos, tmp_path):
    path, partial = tmp_path / "features.safetensors", tmp_path / "features.safetensors.partial"
    with pytest.raises(Stopped):
        job(images=photos()).run(path, step=stop_after(8))
    before = photos().path(1).read_bytes()
    replace(photos().path(1), 50)
    with pytest.raises(Stopped):
        job(images=photos()).run(path, step=stop_after(4))  # it is about to make rows 0 to 3
    with partial.open("rb+") as file:
        file.write(b"half a block")
    photos().path(1).write_bytes(before)
    job(images=photos()).run(path)
    job(images=photos()).run(tmp_path / "fresh.safetensors")
    resumed, fresh = FeatureSet.load(path), FeatureSet.load(tmp_path / "fresh.safetensors")
    assert np.array_equal(resumed.image_features, fresh.image_features)


def test_files_without_stamps_are_taken_as_they_are(job, photos, tmp_path):
    path = tmp_path / "features.safetensors"
    features = job(images=photos()).run(path)
    note = read_note(path)
    assert len(note.pop("stamps")) == 11 * 16
    for odd in ({}, {"stamps": "00"}, {"stamps": "no number"}, {"stamps": 3}):
        features.save(path, note=note | odd)
        replace(photos().path(5), 50)
        again = job(images=photos())
        again.run(path)
        assert (again.changed, again.images.opened) == ([], [])


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
