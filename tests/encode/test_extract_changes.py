"""Feature files of pictures that were replaced, broken, repaired or removed between two runs."""

import dataclasses
import json
import os

import numpy as np
import pytest
from extractions import Noise, Stopped, leftovers, stop_after

from soba.datasets import ImageSet
from soba.feature_set import FeatureSet, read_note


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
