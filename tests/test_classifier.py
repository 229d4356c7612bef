import copy
import gc
import itertools
import os
import pickle
import socket
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import huggingface_hub
import numpy as np
import pytest
import tiny_clip
import torch
from conftest import ROOT
from onnx_models import model_folder
from PIL import Image
from run_cli import soba_command

import soba
from soba.answers import write_answers
from soba.cli import classify as command
from soba.datasets.icons import icons
from soba.encode import source
from soba.testing import assert_same_state

NAMES = icons("source", per_class=1).class_names[:4]


@pytest.fixture(scope="module")
def tiny():
    return soba.load_encoder("tiny")


@pytest.fixture
def classifier(tiny):
    return soba.Classifier(tiny, NAMES)


@pytest.fixture(scope="module")
def files(icon_stream):
    return sorted(map(str, icon_stream.iterdir()))


def seen(classifier):
    return classifier.adapter.n_seen


def alike(ours, theirs):
    """The same answers, up to the rounding of float products."""
    assert [answer.label for answer in ours] == [answer.label for answer in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert [name for name, _ in one.top] == [name for name, _ in other.top]
        chances = [[chance for _, chance in answer.top] for answer in (one, other)]
        assert chances[0] == pytest.approx(chances[1], abs=1e-4)
        assert one.zero_shot == other.zero_shot


# The shortest way --------------------------------------------------------------------------------


def test_answers_and_state_are_those_of_the_command(icon_stream, tmp_path, tiny):
    (tmp_path / "torn.png").write_bytes(b"torn")
    images = [icon_stream, tmp_path / "torn.png"]
    arguments = ("--classes", ",".join(NAMES), "--batch", 8, "--top", 4)
    given = []
    real = command.answer_writer

    def spying(*arguments):
        writer = real(*arguments)
        add = writer.add
        writer.add = lambda answer: (given.append(answer), add(answer))
        return writer

    with mock.patch.object(command, "answer_writer", spying):
        paths = ("-o", tmp_path / "theirs.jsonl", "--state", tmp_path / "theirs")
        soba_command("classify", *images, *arguments, *paths)
    classifier = soba.Classifier(tiny, NAMES)
    answers = list(classifier.classify(images, batch=8, top=4))
    assert answers == given  # bit for bit
    assert len({answer.label for answer in answers[:-1]}) > 1
    classifier.save(tmp_path / "ours")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    write_answers(tmp_path / "ours.jsonl", answers)
    assert (tmp_path / "ours.jsonl").read_bytes() == (tmp_path / "theirs.jsonl").read_bytes()
    # The command goes on from a file of ours.
    soba_command("classify", *images, *arguments, "--state", tmp_path / "ours")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_an_answer_has_zero_shot_beside_it(classifier, files):
    [answer] = classifier.classify(files[0], top=2, learn=False)
    assert answer.image == files[0]
    assert (answer.label, answer.probability) == answer.top[0]
    assert [name in NAMES for name, _ in answer.top] == [True, True]
    plain = soba.Classifier(classifier.encoder, NAMES, method="zero-shot")
    [theirs] = plain.classify(files[0])
    assert (theirs.label, theirs.probability) == (answer.zero_shot, answer.zero_shot_probability)
    assert answer.error == ""


# Streams ----------------------------------------------------------------------------------------


def test_what_is_not_iterated_is_not_learned(classifier, files):
    answers = classifier.classify(files, batch=8)
    assert seen(classifier) == 0
    next(answers)
    assert seen(classifier) == 8
    for _ in range(8):
        next(answers)
    assert seen(classifier) == 16
    answers.close()
    assert seen(classifier) == 16


def test_an_endless_stream_is_read_as_it_is_answered(classifier, files):
    given = []

    def endless():
        for file in itertools.cycle(files):
            given.append(file)
            with Image.open(file) as image:
                image.load()
            yield image

    answers = list(itertools.islice(classifier.classify(endless(), batch=4), 60))
    assert [answer.image for answer in answers] == [*files, *files[:12]]
    assert len(given) <= 60 + 3 * 4
    assert seen(classifier) == 48  # the second time round nothing is new


def test_a_stream_that_breaks_off_is_answered_up_to_there(classifier, files):
    def breaking():
        yield from files[:10]
        raise ConnectionError("the camera is gone")

    answers = []
    with pytest.raises(ConnectionError, match="the camera is gone"):
        for answer in classifier.classify(breaking(), batch=4):
            answers.append(answer.image)
    assert answers == files[:10]


def test_threads_share_one_classifier(saved, files, reopened):
    classifier = soba.load(saved)
    with ThreadPoolExecutor(4) as pool:
        parts = [files[start::4] for start in range(4)]
        answers = list(pool.map(lambda part: list(classifier.classify(part, batch=4)), parts))
    assert [answer.image for part in answers for answer in part] == [f for p in parts for f in p]
    assert seen(classifier) == 48
    assert reopened == ["tiny"]


def test_a_stream_cut_into_calls_is_one_stream(tiny, files):
    whole, parts = soba.Classifier(tiny, NAMES), soba.Classifier(tiny, NAMES)
    cut = [
        answer
        for part in (files[:5], files[5:6], files[6:])
        for answer in parts.classify(part, batch=8)
    ]
    alike(cut, list(whole.classify(files)))


def test_without_learning_nothing_changes(classifier, files):
    list(classifier.classify(files[:32]))
    before = pickle.dumps(classifier.adapter)
    twice = [list(classifier.classify(files[32:], learn=False)) for _ in range(2)]
    assert twice[0] == twice[1]
    assert pickle.dumps(classifier.adapter) == before
    alike(list(reversed(twice[0])), list(classifier.classify(files[:31:-1], learn=False)))


def test_paths_pictures_arrays_and_tensors_of_one_image_agree(classifier, files):
    list(classifier.classify(files))
    image = Image.open(files[3]).convert("RGB")
    array = np.asarray(image)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    with open(files[3], "rb") as file:
        content = file.read()
    given = [
        files[3],
        image,
        content,
        array,
        array / 255,
        array.transpose(2, 0, 1),
        tensor,
        tensor.float() / 255,
        tensor.permute(1, 2, 0),
        np.stack([array, array]),
    ]
    answers = list(classifier.classify(given, learn=False))
    assert [answer.image for answer in answers] == [
        files[3],
        *(f"image {place}" for place in range(1, 11)),
    ]
    alike(answers, answers[:1] * 11)


def test_the_same_pixels_are_learned_once(classifier, files):
    image = Image.open(files[0]).convert("RGB")
    array = np.asarray(image)
    answers = list(classifier.classify([image, array, image.copy(), array / 255.0]))
    assert seen(classifier) == 1
    assert len({answer.top for answer in answers}) == 1
    with open(files[0], "rb") as file:
        list(classifier.classify([files[0], file.read()]))  # bytes of a file: another content
    assert seen(classifier) == 2
    list(classifier.classify(np.stack([array, array, 255 - array])))
    assert seen(classifier) == 3


def test_a_buffer_may_be_filled_again(tiny, files):
    arrays = [np.asarray(Image.open(file).convert("RGB")) for file in files[:9]]

    def frames():
        buffer = np.empty_like(arrays[0])
        for array in arrays:
            buffer[:] = array
            yield buffer

    alike(
        list(soba.Classifier(tiny, NAMES).classify(frames(), batch=3)),
        list(soba.Classifier(tiny, NAMES).classify(arrays, batch=3)),
    )


def test_a_broken_image_is_an_answer_and_not_the_end(classifier, files, tmp_path):
    torn = tmp_path / "torn.png"
    torn.write_bytes(b"torn")
    lazy = Image.open(files[0])
    lazy.fp.close()
    given = [torn, files[0], None, tmp_path / "absent.png", np.zeros((2, 5, 7)), files[1], lazy]
    given += [np.full((8, 8, 3), 7.0), np.zeros((8, 8, 3), np.int64), torch.zeros(3, 8, 8) - 1, b""]
    answers = list(classifier.classify(given, batch=3))
    assert len(answers) == len(given)
    fine = [answer.image for answer in answers if not answer.error]
    assert fine == [files[0], files[1]]
    assert seen(classifier) == 2
    assert answers[0] == soba.Answer(str(torn), error="not an image of a known format")
    assert answers[2].error.startswith("an image is a path, a PIL image or an array, not None")
    assert answers[3].error == "No such file or directory"
    assert "(2, 5, 7)" in answers[4].error
    assert "between 0, black, and 1, white" in answers[7].error
    assert "int64" in answers[8].error


# All at once ------------------------------------------------------------------------------------


@pytest.fixture
def unsure(tiny):
    """A classifier by random text: one that has doubts, so that the others' images matter."""
    text = np.random.default_rng(0).normal(size=(4, tiny.width))
    adapter = soba.SOBAPlus(text, logit_scale=tiny.logit_scale)
    return soba.Classifier(tiny, NAMES, method=adapter, templates=())


def test_transductive_answers_are_those_of_the_whole_set(unsure, tiny, files):
    before = unsure.adapter.state()
    answers = list(unsure.classify(files, transductive=True, batch=5))
    assert_same_state(unsure.adapter.state(), before)
    assert [answer.image for answer in answers] == files
    rows = np.concatenate(
        [tiny.encode_pixels(tiny.preprocess(Image.open(file))[None]) for file in files]
    )
    logits = unsure.adapter.transduce(rows)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    plain = list(unsure.classify(files, learn=False))
    for answer, share, zero_shot in zip(answers, shares, plain, strict=True):
        assert answer.probability == pytest.approx(share.max(), abs=1e-3)
        assert dict(answer.top)[NAMES[share.argmax()]] == pytest.approx(share.max(), abs=1e-3)
        assert answer.zero_shot == zero_shot.zero_shot
        assert answer.zero_shot_probability == pytest.approx(
            zero_shot.zero_shot_probability, abs=1e-4
        )
    assert any(
        answer.probability != pytest.approx(answer.zero_shot_probability, abs=1e-3)
        for answer in answers
    )


def test_transductive_order_batches_and_copies_do_not_matter(unsure, files):
    whole = list(unsure.classify(files, transductive=True))
    turned = list(unsure.classify(files[::-1], transductive=True, batch=7))
    alike(turned[::-1], whole)
    twice = list(unsure.classify(files * 2, transductive=True))
    alike(twice[: len(files)], whole)
    alike(twice[len(files) :], whole)


def test_transductive_broken_images_are_answers_in_their_place(unsure, files, tmp_path):
    torn = tmp_path / "torn.png"
    torn.write_bytes(b"torn")
    given = [torn, *files[:5], None, torn, *files[5:9], torn]
    answers = list(unsure.classify(given, transductive=True, batch=2))
    assert [bool(answer.error) for answer in answers] == [
        not (isinstance(one, str) and one in files) for one in given
    ]
    alike(
        [answer for answer in answers if not answer.error],
        list(unsure.classify(files[:9], transductive=True)),
    )
    assert answers[0] == soba.Answer(str(torn), error="not an image of a known format")
    broken = list(unsure.classify([torn, None], transductive=True))
    assert len(broken) == 2 and all(answer.error for answer in broken)
    assert list(unsure.classify([], transductive=True)) == []


def test_transductive_holds_no_pictures(unsure):
    alive = []

    def drawn():
        for shade in range(40):
            picture = Image.new("RGB", (32, 32), (shade, 90, 200 - shade))
            alive.append(weakref.ref(picture))
            yield picture

    answers = unsure.classify(drawn(), transductive=True, batch=4)
    assert next(answers).image == "image 0"
    gc.collect()
    assert sum(picture() is not None for picture in alive) < 20


def test_transductive_is_for_methods_that_can(tiny, files):
    for method in ("soba", "zero-shot"):
        with pytest.raises(
            ValueError, match=rf"{method} does not answer a set at once; soba\+ does"
        ):
            soba.Classifier(tiny, NAMES, method=method).classify(files, transductive=True)


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
    assert isinstance(soba.load(saved, expect={"capacity": adapter.capacity}), soba.Classifier)
    with pytest.raises(ValueError, match="saved with capacity"):
        soba.load(saved, expect={"capacity": 3})


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


def test_bad_numbers_are_refused_at_once(classifier, files):
    for name in ("batch", "top"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1"):
            classifier.classify(files, **{name: 0})
    [answer] = classifier.classify(files[0], top=99)
    assert len(answer.top) == 4


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
