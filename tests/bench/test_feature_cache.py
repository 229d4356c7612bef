"""Feature files: made once, named after all that went into them, honest about what they lack."""

import dataclasses
import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path

import colours
import numpy as np
import pytest
from colours import NAMES, RGB, SIDE, ColourEncoder
from PIL import Image

from soba.bench.feature_cache import FeatureFolder, seconds_of
from soba.bench.loading import Loader
from soba.datasets import ImageSet


@pytest.fixture
def encoder():
    return ColourEncoder()


@pytest.fixture
def photos(tmp_path):
    """Sixteen patches on disk."""
    root = tmp_path / "photos"
    root.mkdir()
    keys = tuple(f"{i:02d}.png" for i in range(16))
    for i, key in enumerate(keys):
        picture = np.broadcast_to(RGB[i % 8], (SIDE, SIDE, 3))
        Image.fromarray((255 * picture).astype(np.uint8)).save(root / key)
    return ImageSet("photos", NAMES, keys, np.arange(16) % 8, ("a {} patch.",), root)


@pytest.fixture
def folder(tmp_path, encoder):
    def make(**settings):
        return FeatureFolder(tmp_path / "features", encoder, **settings)

    return make


def test_made_once(folder, photos, encoder):
    features, seconds = folder().get(photos)
    again, same = folder().get(photos)
    assert encoder.images_encoded == 16
    assert (again.keys, same) == (photos.keys, seconds)
    assert seconds_of(folder().path(photos)) == seconds > 0
    assert np.array_equal(features.image_features, again.image_features)


MAKER = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from colours import ColourEncoder, Colours
from soba.bench.feature_cache import FeatureFolder

class Slow(ColourEncoder):
    def encode_pixels(self, pixels):
        print("encoding", flush=True)
        sys.stdin.readline()
        return super().encode_pixels(pixels)

FeatureFolder(Path(sys.argv[2]), Slow(), batch=500).get(Colours().images("plain", "test"))
"""


def test_what_another_process_is_making_is_waited_for(tmp_path, encoder, monkeypatch):
    helpers = Path(colours.__file__).parent
    images, folder = colours.Colours().images("plain", "test"), FeatureFolder(tmp_path, encoder)
    arrived, real, features = threading.Event(), fcntl.flock, []

    def flock(file, how):
        arrived.set()
        real(file, how)

    with subprocess.Popen(
        [sys.executable, "-c", MAKER, helpers, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as maker:
        assert maker.stdout.readline() == "encoding\n"
        monkeypatch.setattr(fcntl, "flock", flock)
        waiting = threading.Thread(target=lambda: features.append(folder.get(images)[0]))
        waiting.start()
        arrived.wait()  # the other one holds the lock until it is told to go on
        maker.communicate("go on\n")
    waiting.join()
    assert maker.returncode == 0
    assert encoder.images_encoded == 0
    assert features[0].keys == images.keys
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_what_another_process_could_not_read_is_known(folder, photos):
    """A file that appears between two looks at it is looked at again."""

    class Source:
        def images(self, dataset, split):
            return photos

    torn = photos.root / photos.keys[3]
    torn.write_bytes(b"no picture")
    loader, other = (Loader(Source(), folder()) for _ in range(2))
    assert not loader.is_made("photos", "test", 1)
    other.features("photos", "test", 1)
    loader.features("photos", "test", 1)
    assert loader.left_out("photos", "test", 1) == (photos.keys[3],)


def test_names_carry_all_that_decides_the_features_and_no_more(folder, photos, tmp_path):
    path = folder().path(photos)

    def other(**changed):
        return folder().path(dataclasses.replace(photos, **changed))

    assert folder(batch=3).path(photos) == path  # decides the last bits only
    assert folder(views=4).path(photos) != path
    assert folder(templates=("the {}.",)).path(photos) != path
    assert other(keys=photos.keys[::-1]) != path
    assert other(labels=photos.labels[::-1]) != path
    assert other(class_names=NAMES[::-1]) != path
    assert other(root=tmp_path) != path
    assert other(root=tmp_path / "features" / ".." / "photos") == path


def test_a_file_that_was_begun_in_other_batches_is_started_over(folder, photos, encoder):
    class Stopped(Exception):
        pass

    def stop(done):
        if encoder.images_encoded >= 8:
            raise Stopped

    with pytest.raises(Stopped):
        folder(batch=4).get(photos, stop)
    with pytest.raises(Stopped):
        folder(batch=4).get(photos, stop)
    encoder.images_encoded = 0
    features, _ = folder(batch=5).get(photos)
    assert (len(features), encoder.images_encoded) == (16, 16)
    assert len(list(folder().folder.glob("*.partial*"))) == 0


def test_images_that_cannot_be_read_are_named_on_every_run(folder, photos, encoder):
    (photos.root / "03.png").write_bytes(b"no picture")
    (photos.root / "07.png").unlink()
    first, later = folder(), folder()
    features, _ = first.get(photos)
    again, _ = later.get(photos)
    assert len(features) == len(again) == 14
    assert encoder.images_encoded == 14
    assert first.broken.keys() == {("photos", "03.png"), ("photos", "07.png")}
    assert later.broken == first.broken
    assert later.left_out(photos).keys() == {"03.png", "07.png"}
    assert not later.readable_now(photos)


def test_an_image_that_was_mended_makes_the_file_anew(folder, photos):
    torn = photos.root / "03.png"
    whole = torn.read_bytes()
    torn.write_bytes(whole[:40])
    (photos.root / "05.png").write_bytes(b"no picture")
    folder().get(photos)
    assert folder().left_out(photos).keys() == {"03.png", "05.png"}
    torn.write_bytes(whole)
    assert folder().readable_now(photos)
    later = folder()
    later.discard(photos)
    assert not later.left_out(photos)
    features, _ = later.get(photos)
    assert len(features) == 15 and features.labels.tolist().count(3) == 2
    assert later.broken.keys() == {("photos", "05.png")}


def test_what_the_encoder_cannot_see_is_no_reason_to_begin_anew(folder, photos, encoder):
    black = np.zeros((SIDE, SIDE, 3), np.uint8)
    Image.fromarray(black).save(photos.root / "03.png")
    plain = encoder.encode_pixels

    def blind(pixels):
        rows = plain(pixels)
        rows[pixels.reshape(len(pixels), -1).max(axis=1) < -1.3] = 0
        return rows

    encoder.encode_pixels = blind
    folder().get(photos)
    assert folder().left_out(photos) == {"03.png": "the encoder gave it no direction"}
    assert not folder().readable_now(photos)


@pytest.mark.parametrize("damaged", ["", "{}", "[1]", '{"encode_seconds": "long"}', "\xff"])
def test_a_damaged_note_of_the_seconds_is_none(folder, photos, damaged):
    folder().get(photos)
    path = folder().path(photos)
    note = path.with_name(f"{path.name}.seconds.json")
    assert json.loads(note.read_text()).keys() == {"encode_seconds"}
    note.write_bytes(damaged.encode("latin-1"))
    assert seconds_of(path) is None
    assert folder().get(photos)[1] == 0.0
