"""What a classifier is made of, and that it is changed, merged, copied, saved and opened again."""

import copy
import itertools
import os
import pickle
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import huggingface_hub
import numpy as np
import pytest
import tiny_clip
from conftest import ROOT
from icon_classifiers import (  # noqa: F401  (three are fixtures)
    NAMES,
    alike,
    icon_classifier,
    icon_files,
    seen,
    tiny_encoder,
)
from onnx_models import model_folder
from run_cli import soba_command

import soba
from soba.encode import source

# What it takes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gda", "mta", "zero", "tpt", "coop", "sobba"])
def test_only_stream_methods(method):
    with pytest.raises(ValueError, match=method):
        soba.Classifier("no-such-model", NAMES, method=method)


def test_an_adapter_of_your_own(tiny, classifier, files):
    text = classifier.adapter.text_features
    adapter = soba.TDA(text, logit_scale=tiny.logit_scale, alpha=1.0)
    mine = soba.Classifier(tiny, NAMES, method=adapter)
    list(mine.classify(files))
    assert mine.adapter is adapter and adapter.n_seen == 48 and adapter.id_space == "content"
    with pytest.raises(ValueError, match="3 class names for an adapter of 4 classes"):
        soba.Classifier(tiny, NAMES[:3], method=adapter)
    with pytest.raises(ValueError, match="dimensions"):
        soba.Classifier(tiny, NAMES, method=soba.TDA(np.eye(4)))
    numbered = soba.TDA(text)
    numbered.adapt(text)
    with pytest.raises(ValueError, match="no ids"):
        soba.Classifier(tiny, NAMES, method=numbered)
    with pytest.raises(TypeError, match="not one string"):
        soba.Classifier(tiny, "abcd", method=adapter)


def test_an_adapter_of_other_names_is_refused(tiny, classifier):
    text, names = classifier.adapter.text_features, list(NAMES)
    # The encoder rounds otherwise in other batches; each name by itself is the furthest from one.
    alone = np.concatenate([soba.Classifier(tiny, [n]).adapter.text_features for n in names])
    scale = tiny.logit_scale
    for rows in (text, alone):
        assert soba.Classifier(tiny, names, method=soba.TDA(rows, logit_scale=scale)).names == NAMES
    swapped = [names[1], names[0], *names[2:]]
    with pytest.raises(ValueError, match=f"2 of 4 differ .'{names[1]}', '{names[0]}'"):
        soba.Classifier(tiny, swapped, method=soba.TDA(text, logit_scale=scale))
    for order in itertools.permutations(range(4)):
        adapter = soba.SOBAPlus(text[list(order)], logit_scale=scale)
        if list(order) == sorted(order):
            soba.Classifier(tiny, names, method=adapter)
        else:
            with pytest.raises(ValueError, match="not those of these names"):
                soba.Classifier(tiny, names, method=adapter)
    adapter = soba.TDA(text, logit_scale=scale)
    with pytest.raises(ValueError, match="with these prompts"):
        soba.Classifier(tiny, names, method=adapter, templates="single")
    given = soba.TDA(np.eye(4, tiny.width), logit_scale=scale)
    assert soba.Classifier(tiny, names, method=given, templates=()).templates == ()


def test_an_adapter_of_another_scale_is_refused(tiny, classifier):
    text = classifier.adapter.text_features
    for scale in (0.5 * tiny.logit_scale, 1.01 * tiny.logit_scale):
        with pytest.raises(ValueError, match=r"logit scale of .* and tiny one of"):
            soba.Classifier(tiny, NAMES, method=soba.TDA(text, logit_scale=scale))
    rounded = float(np.float32(tiny.logit_scale))
    soba.Classifier(tiny, NAMES, method=soba.TDA(text, logit_scale=rounded))


def test_templates(tiny):
    assert soba.Classifier(tiny, NAMES).templates == soba.encode.prompts.templates("icon")
    assert soba.Classifier(tiny, NAMES, templates=["a {}.", "the {}."]).templates == (
        "a {}.",
        "the {}.",
    )
    assert soba.Classifier(tiny_clip.tiny_clip(), NAMES).templates == ("a photo of a {}.",)


def test_the_front_door_shows_what_there_is():
    assert {"Classifier", "Answer", "load", "load_encoder"} <= set(dir(soba)) & set(soba.__all__)
    assert not hasattr(soba, "no_such_name")
    assert os.path.basename(soba.classifier.__file__) == "classifier.py"


def test_what_is_no_method_or_classifier_is_refused(tmp_path):
    with pytest.raises(TypeError, match="method must be a name or an adapter"):
        soba.Classifier("tiny", ["bell", "cat"], method=soba.SOBAPlus)
    clf = soba.Classifier("tiny", ["bell", "cat"], method="zero-shot")
    for other in (3, clf.adapter):
        with pytest.raises(TypeError, match="merges with a classifier"):
            clf.merge(other)
    with pytest.raises(ValueError, match="different prompts"):
        clf.merge(soba.Classifier("tiny", ["bell", "cat"], method="zero-shot", templates="single"))
    assert issubclass(soba.SOBAPlus, soba.Adapter)


# Classes, merging, copies -----------------------------------------------------------------------


def test_other_classes_keep_the_samples(classifier, files, tmp_path):
    list(classifier.classify(files))
    classifier.save(tmp_path / "before")
    more = [*NAMES, "weathercock"]
    other = classifier.with_classes(more)
    assert (other.names, other.adapter.n_classes, seen(other)) == (tuple(more), 5, 48)
    assert other.templates == classifier.templates
    assert classifier.with_classes(NAMES, templates="the {}!").templates == ("the {}!",)
    fresh = soba.Classifier(classifier.encoder, more)
    list(fresh.classify(files))
    alike(*(list(c.classify(files[:8], learn=False)) for c in (other, fresh)))
    classifier.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
    list(other.classify(files[0]))
    other.save(tmp_path / "other")
    options = ("--classes", ",".join(more), "--state", tmp_path / "after", "--change-classes")
    soba_command("classify", files[0], *options)
    assert (tmp_path / "other").read_bytes() == (tmp_path / "after").read_bytes()


@pytest.mark.parametrize("method", ["soba+", "tda", "zero-shot"])
def test_parts_merge_into_the_whole(tiny, files, method):
    whole, *parts = (soba.Classifier(tiny, NAMES, method=method) for _ in range(4))
    list(whole.classify(files))
    for part, some in zip(parts, (files[:30], files[20:40], files[35:]), strict=True):
        list(part.classify(some))  # some of them two have seen
    merged = parts[1].merge(parts[0], parts[2])
    assert merged is parts[1]
    if method != "zero-shot":
        assert seen(merged) == 48
    alike(*(list(c.classify(files, learn=False)) for c in (merged, whole)))


def test_different_classifiers_do_not_merge(classifier, tiny, tmp_path):
    mine = soba.load_encoder(str(model_folder(tmp_path / "mine")))
    for other, what in (
        (soba.Classifier(tiny, NAMES[::-1]), "classes"),
        (soba.Classifier(tiny, NAMES, method="tda"), "methods"),
        (soba.Classifier(mine, NAMES), "encoders"),
    ):
        with pytest.raises(ValueError, match=f"different {what}"):
            classifier.merge(classifier.copy(), other)


def test_a_copy_learns_by_itself(classifier, files):
    list(classifier.classify(files[:8]))
    twin = classifier.copy()
    list(twin.classify(files[8:]))
    assert (seen(classifier), seen(twin)) == (8, 48)
    assert twin.encoder is classifier.encoder
    empty = soba.Classifier(classifier.encoder, iter(NAMES)).copy()
    list(empty.classify(files[:2]))
    assert empty.adapter.id_space == "content"


# Files and pickles ------------------------------------------------------------------------------


@pytest.fixture
def saved(classifier, files, tmp_path):
    list(classifier.classify(files[:24]))
    classifier.save(tmp_path / "icons.soba")
    return tmp_path / "icons.soba"


@pytest.fixture
def reopened(monkeypatch):
    """The names of the encoders that were opened anew."""
    names = []
    real = source.reopen

    def reopen(opened_as):
        names.append(opened_as["name"])
        return real(opened_as)

    monkeypatch.setattr(source, "reopen", reopen)
    return names


def returned(way, classifier, path):
    if way == "file":
        return soba.load(path)
    return pickle.loads(pickle.dumps(classifier))


@pytest.mark.parametrize("way", ["file", "pickle"])
def test_what_was_saved_comes_back_and_opens_its_encoder_at_the_first_image(
    classifier, saved, files, reopened, tmp_path, way
):
    again = returned(way, classifier, saved)
    assert isinstance(again, soba.Classifier)
    assert (again.names, again.templates) == (classifier.names, classifier.templates)
    assert "tiny" in repr(again)
    answers = again.classify(files[24:])
    again.copy().save(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == saved.read_bytes()
    assert reopened == []
    assert list(answers) == list(classifier.classify(files[24:]))
    assert reopened == ["tiny"]


def test_threads_share_one_classifier(saved, files, reopened):
    classifier = soba.load(saved)
    with ThreadPoolExecutor(4) as pool:
        parts = [files[start::4] for start in range(4)]
        answers = list(pool.map(lambda part: list(classifier.classify(part, batch=4)), parts))
    assert [answer.image for part in answers for answer in part] == [f for p in parts for f in p]
    assert seen(classifier) == 48
    assert reopened == ["tiny"]


def test_a_new_process_imports_no_torch_and_goes_on(saved, icon_stream):
    code = f"""
import sys, soba
classifier = soba.load({str(saved)!r})
assert 'PIL' not in sys.modules
answers = list(classifier.classify({str(icon_stream)!r}))
assert len(answers) == 48 and classifier.adapter.n_seen == 48
assert 'torch' not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_class_of_adapters_loads_its_own_part(saved, classifier):
    adapter = soba.SOBAPlus.load(saved)
    assert type(adapter) is soba.SOBAPlus and adapter.n_seen == 24
    assert isinstance(soba.load(saved, expect={"horizon": adapter.horizon}), soba.Classifier)
    with pytest.raises(ValueError, match="saved with horizon"):
        soba.load(saved, expect={"horizon": 3})


def test_another_encoder_is_refused(saved, tiny, tmp_path, files, reopened):
    folder = model_folder(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"icons\.soba: learned with encoder tiny-.* do not mix"):
        soba.load(saved, encoder=soba.load_encoder(str(folder)))
    by_name = soba.load(saved, encoder=folder)
    assert reopened == []
    with pytest.raises(ValueError, match="features of different encoders do not mix"):
        next(by_name.classify(files))
    assert soba.load(saved, encoder=tiny).encoder is tiny


def test_weights_that_are_not_here_are_not_downloaded(tmp_path, files, monkeypatch):
    encoder = tiny_clip.tiny_clip()
    encoder.opened_as = {"name": "ViT-B-32/laion2b_e16", "precision": "fp32"}
    soba.Classifier(encoder, NAMES).save(tmp_path / "state")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    offline = huggingface_hub.constants.HF_HUB_OFFLINE
    asked = []

    def lookup(*arguments, **options):
        asked.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    again = soba.load(tmp_path / "state")
    with pytest.raises(FileNotFoundError, match=r"load_encoder\('ViT-B-32/laion2b_e16'\) fetches"):
        next(again.classify(files))
    assert asked == []
    assert huggingface_hub.constants.HF_HUB_OFFLINE is offline
    with pytest.raises(FileNotFoundError, match="not there any more"):
        next(soba.load(tmp_path / "state", encoder=tmp_path / "gone").classify(files))


def test_an_encoder_built_by_hand_has_no_name_to_be_found_by(tmp_path, files):
    encoder = tiny_clip.tiny_clip()
    classifier = soba.Classifier(encoder, NAMES)
    answers = list(classifier.classify(files[:5]))
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(pickle.PicklingError, match=r"open it with soba\.load_encoder"):
            way(classifier)
    classifier.save(tmp_path / "state")
    with pytest.raises(ValueError, match="encoder="):
        next(soba.load(tmp_path / "state").classify(files))
    again = soba.load(tmp_path / "state", encoder=encoder)
    alike(list(again.classify(files[:5], learn=False)), answers)


def test_weights_in_a_file_and_precision_come_back(tmp_path, files, monkeypatch):
    open_clip, torch = tiny_clip.open_clip, tiny_clip.torch
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny-clip", tiny_clip.CONFIG)
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda name: tiny_clip.tokenizer)
    torch.manual_seed(0)
    torch.save(open_clip.create_model("tiny-clip").state_dict(), tmp_path / "weights.pt")
    monkeypatch.chdir(tmp_path)
    encoder = soba.load_encoder("tiny-clip/weights.pt", device="cpu", precision="bf16")
    classifier = soba.Classifier(encoder, NAMES)
    monkeypatch.chdir(ROOT)
    classifier.save(tmp_path / "state")
    again = soba.load(tmp_path / "state")
    assert list(again.classify(files[:5])) == list(classifier.classify(files[:5]))
    assert again.encoder is not encoder and again.encoder.fingerprint == encoder.fingerprint


def test_an_encoder_is_found_from_another_folder(tmp_path, files, monkeypatch):
    model_folder(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    classifier = soba.Classifier("mine", NAMES)
    monkeypatch.chdir(ROOT)
    assert len(list(pickle.loads(pickle.dumps(classifier)).classify(files))) == 48


def test_a_note_that_was_tampered_with_is_refused(saved, classifier, tmp_path):
    note = classifier._note()
    for change, why in (
        ({"class_names": NAMES[:3]}, "3 class names for an adapter of 4 classes"),
        ({"class_names": "abcd"}, "class_names is missing"),
        ({"templates": None}, "templates is missing"),
        ({"opened_as": ["tiny"]}, "no name of an encoder"),
    ):
        classifier.adapter.save(tmp_path / "odd", note=note | change)
        with pytest.raises(ValueError, match=f"odd: {why}"):
            soba.load(tmp_path / "odd")
