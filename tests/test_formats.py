"""Files that former versions wrote open, and those of newer ones are refused by name."""

import logging
import shutil

import numpy as np
import pytest
from former import KNOWN, ROWS, assert_knows, file, rows, unpacked
from rounding import assert_same_logits
from streams import assert_equal_bits

import soba
from soba._files import checked_bytes, load_checked, read_checked_bytes, save_checked
from soba._formats import FORMAT
from soba.adapt.delta import Delta
from soba.adapt.merging import merge_files
from soba.scale.transduce import FormerModel, load_model, model_logits
from soba.serve.learned import Learned

WITH_SAMPLES = ("usual", "aging", "early", "run", "classifier")
WITH_QUEUES = ("soba", "ncm", "tda")


def opened(name):
    loaded = soba.load(file(name))
    return loaded.adapter if isinstance(loaded, soba.Classifier) else loaded


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_samples_and_ids_of_soba_plus_are_taken_over(name, caplog):
    caplog.set_level(logging.INFO, "soba")
    content = file(name).read_bytes()
    adapter, (former, _) = opened(name), load_checked(file(name))
    assert_knows(adapter, KNOWN[name])
    for sample, kept in adapter._samples.items():
        np.testing.assert_array_equal(kept.items().features, former[f"{sample}.features"])
        items = kept.items()
        due = items.ids if name == "run" else np.zeros(len(items.ids))
        np.testing.assert_array_equal(items.places, due)
    [line] = caplog.records
    assert str(file(name)) in line.getMessage() and "format 2" in line.getMessage()
    assert file(name).read_bytes() == content


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_a_state_and_a_file_of_the_class_are_read_alike(name):
    arrays, meta = load_checked(file(name))
    by_state = soba.SOBAPlus.from_state({"arrays": arrays, "meta": meta})
    assert meta["format"] == 2  # the caller's state is left alone
    for other in (soba.SOBAPlus.load(file(name)), opened(name).copy()):
        assert_knows(other, KNOWN[name])
        assert other.params == by_state.params


@pytest.mark.parametrize(("name", "size"), [("usual", None), ("early", None), ("aging", 12)])
def test_a_size_that_was_asked_for_is_kept(name, size):
    former = load_checked(file(name))[1]["params"]
    due = {key: value for key, value in former.items() if key != "capacity"}
    assert opened(name).params == due | {"sample_size": size}


def test_a_sample_grows_to_the_size_that_is_usual_now():
    adapter = opened("usual")
    assert len(adapter.sample.ids) == 512
    many = np.random.default_rng(0).normal(size=(40, adapter.dim))
    adapter.learn(many, ids=range(40))
    assert len(adapter.sample.ids) == 528


@pytest.mark.parametrize("name", ["usual", "aging", "classifier"])
def test_what_is_known_changes_nothing(name):
    adapter = opened(name)
    ids = np.concatenate([np.arange(*run) for run in adapter.state()["arrays"]["seen"]])
    before = adapter.copy()
    adapter.adapt(np.resize(ROWS, (len(ids), adapter.dim)) + 0.1, ids=ids)
    assert_equal_bits(adapter, before)


@pytest.mark.parametrize("name", ["usual", "aging", "classifier"])
def test_answers_come_from_the_sample(name):
    adapter = opened(name)
    refreshed = adapter.copy().refresh()
    assert adapter.statistics_ is not None
    assert_equal_bits(adapter, refreshed)


def test_without_a_refresh_before_clip_answers_until_the_next():
    adapter = opened("early")
    rows = ROWS[:8]
    zero_shot = soba.ZeroShot(adapter.text_features, logit_scale=adapter.logit_scale)
    assert_same_logits(adapter.logits(rows), zero_shot.logits(rows))
    adapter.adapt(ROWS[5:80])
    assert adapter.n_seen == 80 and adapter.statistics_ is not None


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_learning_goes_on_and_is_saved_as_of_today(name, tmp_path, caplog):
    adapter = opened(name)
    caplog.clear()
    caplog.set_level(logging.INFO, "soba")
    rows = np.resize(ROWS, (50, adapter.dim))
    adapter.adapt(rows, ids=None if name == "early" else range(5000, 5050))
    assert adapter.n_seen == KNOWN[name]["n_seen"] + 50
    places = {int(place) for kept in adapter._samples.values() for place in kept.items().places}
    assert places & set(range(KNOWN[name]["n_seen"], adapter.n_seen))
    adapter.save(tmp_path / "state")
    assert load_checked(tmp_path / "state")[1]["format"] == FORMAT
    assert_equal_bits(soba.load(tmp_path / "state"), adapter)
    assert not caplog.records


@pytest.mark.parametrize("name", WITH_QUEUES)
def test_other_methods_open_as_they_were(name, caplog):
    caplog.set_level(logging.INFO, "soba")
    adapter, (former, meta) = opened(name), load_checked(file(name))
    state = adapter.state()
    assert state["meta"] == meta | {"format": FORMAT}
    assert state["arrays"].keys() == former.keys()
    for key, array in former.items():
        assert state["arrays"][key].tobytes() == array.tobytes(), key
    logits = unpacked(KNOWN[name]["logits"]).reshape(8, -1)
    assert_same_logits(adapter.logits(ROWS[:8]), logits)
    assert not caplog.records


def test_former_files_merge_with_those_of_today(tmp_path):
    former = opened("usual")
    adapter = soba.SOBAPlus(former.text_features, logit_scale=former.logit_scale)
    adapter.learn(np.resize(ROWS, (50, adapter.dim)), ids=range(50))
    adapter.save(tmp_path / "today")
    shutil.copy(file("usual"), tmp_path / "former")
    for order in (("today", "former"), ("former", "today")):
        merged = merge_files(soba.SOBAPlus, [tmp_path / name for name in order])
        assert_equal_bits(merged, former.copy().merge(adapter))
        assert merged.n_seen == 590


def test_a_model_of_a_whole_set_answers_as_it_did():
    model = load_model(file("model"))
    assert isinstance(model, FormerModel)
    former = unpacked(KNOWN["model"]["logits"]).reshape(8, -1)
    assert_same_logits(model_logits(model, ROWS[:8]), former)


def test_former_deltas_of_other_methods_are_absorbed():
    query = "SELECT blob FROM delta WHERE stream = 'centroids' ORDER BY version"
    deltas = [Learned.from_bytes(blob).delta for (blob,) in rows(query)]
    text = load_checked(file("ncm"))[0]["text_features"]
    adapter = soba.NCM(text, logit_scale=30.0, capacity=2)
    adapter.id_space = deltas[0].id_space
    assert_knows(adapter.absorb(*deltas), KNOWN["centroids"])


@pytest.mark.parametrize("name", [*WITH_SAMPLES, *WITH_QUEUES, "model"])
def test_files_of_a_newer_soba_are_refused_by_name(name, tmp_path):
    arrays, meta = load_checked(file(name))
    path = tmp_path / "state"
    save_checked(path, arrays, meta | {"format": FORMAT + 1})
    words = (
        rf"^{path}: the (state|model) was written by a newer soba \(format {FORMAT + 1}\); "
        rf"this one reads up to {FORMAT}: upgrade$"
    )
    with pytest.raises(ValueError, match=words):
        load_model(path) if name == "model" else soba.load(path)
    if name in WITH_QUEUES:
        with pytest.raises(ValueError, match=words):
            merge_files(type(opened(name)), [file(name), path])


@pytest.mark.parametrize("spoiled", [0, 1, "3", None, 2.0, True])
def test_formats_that_never_were_are_refused(spoiled, tmp_path):
    arrays, meta = load_checked(file("ncm"))
    save_checked(tmp_path / "state", arrays, meta | {"format": spoiled})
    with pytest.raises(ValueError, match=rf"state: the state is of format .* 2 to {FORMAT}$"):
        soba.load(tmp_path / "state")


def test_deltas_of_a_newer_soba_are_refused_by_name():
    adapter = opened("ncm")
    blob = adapter.learn_changes(ROWS[:2], ids=[1000, 1001]).to_bytes()
    arrays, meta = read_checked_bytes("delta", blob)
    assert meta["format"] == FORMAT
    newer = checked_bytes("delta", arrays, meta | {"format": FORMAT + 1})
    with pytest.raises(ValueError, match=rf"^delta: .* newer soba \(format {FORMAT + 1}\)"):
        Delta.from_bytes(newer)
