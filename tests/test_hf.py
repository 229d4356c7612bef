"""The drop-in against transformers' own pipeline: the same call, and the same answers."""

import base64

import numpy as np
import pytest
from PIL import Image
from tiny_hf import image_processors, save_model
from tiny_hf import transformers as hf

import soba
from soba.datasets.icons import icons
from soba.hf import TASK, ZeroShotImageClassification, pipeline

KINDS = ("clip", "siglip", "siglip2")
LABELS = ["cat", "Dog", "hot_dog", "two  tables", "snow at night"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {kind: save_model(root / kind, kind) for kind in KINDS}


def pictures(kind):
    """Of any shape, but for the models that see other shapes than squares in another way."""
    sizes = [(40, 40), (64, 64)] if kind == "siglip2" else [(40, 40), (50, 64), (39, 32), (32, 71)]
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(256, size=(*s, 3), dtype=np.uint8)) for s in sizes]


def original(folder, kind):
    processor = image_processors[kind].from_pretrained(folder)
    return hf.pipeline(TASK, model=str(folder), image_processor=processor, device="cpu")


def assert_same(ours, theirs):
    """The same labels in the same order, with the same scores."""
    assert [list(entry) for entry in ours] == [list(entry) for entry in theirs]
    assert [entry["label"] for entry in ours] == [entry["label"] for entry in theirs]
    scores = [[entry["score"] for entry in answer] for answer in (ours, theirs)]
    assert all(type(score) is float for score in scores[0])
    np.testing.assert_allclose(*scores, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_learned_nothing_answers_as_transformers(kind, folders):
    theirs, images = original(folders[kind], kind), pictures(kind)
    ours = pipeline(TASK, model=folders[kind], device=-1, learn=False)
    for options in ({}, {"hypothesis_template": "{}"}, {"hypothesis_template": "{0}: a {0}!"}):
        expected = theirs(images, candidate_labels=LABELS, **options)
        answers = ours(images, candidate_labels=LABELS, **options)
        assert len(answers) == len(expected) == len(images)
        for answer, right in zip(answers, expected, strict=True):
            assert_same(answer, right)
    for labels in (["cat"], ["cat", "cat", "dog"]):  # SigLIP is often asked about one label
        assert_same(ours(images[0], labels), theirs(images[0], labels))
    assert ours(images[:1], LABELS) == [ours(images[0], LABELS)]
    assert ours([], LABELS) == []


def test_a_file_is_turned_as_its_camera_was(folders, tmp_path):
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it by a quarter
    pictures("clip")[3].save(path, exif=exif)
    theirs, ours = original(folders["clip"], "clip"), pipeline(model=folders["clip"], learn=False)
    assert_same(ours(str(path), LABELS), theirs(str(path), LABELS))
    assert_same(ours(path, LABELS), theirs(str(path), LABELS))
    content = base64.b64encode(path.read_bytes()).decode()
    assert_same(ours(content, LABELS), theirs(content, LABELS))
    with pytest.raises(ValueError, match="Incorrect image source"):
        ours("no such picture", LABELS)
    with pytest.raises(TypeError, match="an image is a path, an address or a PIL image, not 3"):
        ours(3, LABELS)


class Counting:
    """Counts the sentences that an encoder reads."""

    def __init__(self, monkeypatch, encoder):
        self.sentences, encode = 0, encoder.encode_texts

        def counted(texts):
            self.sentences += len(texts)
            return encode(texts)

        monkeypatch.setattr(encoder, "encode_texts", counted)


def test_labels_are_encoded_once_and_the_oldest_are_forgotten(monkeypatch):
    tiny = soba.load_encoder("tiny")
    count, classify = (
        Counting(monkeypatch, tiny),
        ZeroShotImageClassification(tiny, max_label_sets=2),
    )
    image = Image.new("RGB", (64, 64), "white")
    for labels, read in (
        (["bell", "cat"], 2),
        (["bell", "cat"], 2),
        (("bell", "cat"), 2),
        (["cat", "bell"], 4),  # another order is another set
        (["bell", "cat"], 4),
        (["bug", "bus", "cat"], 7),  # the set ["cat", "bell"] is forgotten
        (["bell", "cat"], 7),
        (["cat", "bell"], 9),
    ):
        classify([image] * 3, candidate_labels=labels)
        assert count.sentences == read, labels
    classify(image, candidate_labels=["bell", "cat"], hypothesis_template="{}")
    assert count.sentences == 11


@pytest.fixture(scope="module")
def stream():
    """Shuffled icons of a designer that the tiny CLIP does not know, and what they may be."""
    names = ["bell", "bug", "camera", "cloud", "cube", "heart", "key", "leaf", "lock", "moon"]
    drawn = icons("sketch", per_class=10, classes=names)
    order = np.random.default_rng(0).permutation(len(drawn.labels))
    return [drawn.image(int(index)) for index in order], list(drawn.class_names)


@pytest.fixture(scope="module")
def tiny():
    return soba.load_encoder("tiny")


def table(answers, names):
    """(n, C) scores in the order of the names."""
    return np.array(
        [[{e["label"]: e["score"] for e in a}[name] for name in names] for a in answers]
    )


def test_it_learns_as_a_classifier_does(stream, tiny):
    images, names = stream
    classify = pipeline(TASK, tiny, batch_size=32)
    answers = table(classify(images, candidate_labels=names), names)
    clf = soba.Classifier(tiny, names, templates="This is a photo of {}.")
    expected = [
        [{"score": share, "label": label} for label, share in answer.top]
        for answer in clf.classify(images, top=len(names))
    ]
    np.testing.assert_allclose(answers, table(expected, names), atol=1e-4)
    plain = table(pipeline(TASK, tiny, learn=False)(images, names), names)
    assert (answers.argmax(axis=1) != plain.argmax(axis=1)).any()
    seen = classify.classifier(names).adapter.n_seen
    assert seen == len({image.tobytes() for image in images})
    again = table(classify(images[:9], names), names)
    assert classify.classifier(names).adapter.n_seen == seen  # each was learned from once
    only_scored = table(classify(images[:9], names, learn=False), names)
    np.testing.assert_allclose(only_scored, again, atol=1e-5)


def test_lists_single_images_and_generators_give_the_same(stream, tiny):
    images, names = stream
    together = pipeline(TASK, tiny)(images, names)
    alone = pipeline(TASK, tiny)
    one_by_one = [alone(image, names) for image in images]
    drawn = []
    lazy = pipeline(TASK, tiny)(
        iter(drawn.append(k) or image for k, image in enumerate(images)), names
    )
    first = next(lazy)
    assert drawn == [0]  # no image is waited for that is not needed
    generated = [first, *lazy]
    for answers in (one_by_one, generated):
        np.testing.assert_allclose(table(answers, names), table(together, names), atol=1e-4)


class Sigmoid(soba.encode.encoder.Encoder):
    """The tiny CLIP, as if it had been trained to score each pair by itself."""

    sigmoid, logit_bias = True, -12.0

    def __init__(self, inside):
        vars(self).update({key: getattr(inside, key) for key in KEPT}, inside=inside)

    def encode_pixels(self, pixels):
        return self.inside.encode_pixels(pixels)

    def encode_texts(self, texts):
        return self.inside.encode_texts(texts)


KEPT = ("name", "preprocess", "width", "logit_scale", "fingerprint")


def test_what_siglip_learns_moves_labels_against_each_other(stream, tiny):
    """Shares of the odds are those of a softmax; all odds together are what they were."""
    images, names = stream
    scores = {
        learn: table(pipeline(TASK, Sigmoid(tiny), learn=learn)(images, names), names)
        for learn in (True, False)
    }
    odds = {learn: each / (1 - each) for learn, each in scores.items()}
    np.testing.assert_allclose(odds[True].sum(axis=1), odds[False].sum(axis=1), rtol=1e-4)
    shares = odds[True] / odds[True].sum(axis=1, keepdims=True)
    expected = table(pipeline(TASK, tiny)(images, names), names)
    np.testing.assert_allclose(shares, expected, atol=1e-4)
    assert np.abs(scores[True] - scores[False]).max() > 0.05


def test_what_was_learned_can_be_kept(stream, tiny, tmp_path):
    images, names = stream
    classify = pipeline(TASK, tiny)
    classify(images[:70], names)
    classify.classifier(names).save(tmp_path / "icons.soba")
    loaded = soba.load(tmp_path / "icons.soba")
    expected = classify(images[0], names, learn=False)[0]
    (answer,) = loaded.classify(images[0], learn=False)
    assert answer.label == expected["label"]
    assert answer.probability == pytest.approx(expected["score"], abs=1e-5)


def test_the_best_labels_only(stream, tiny):
    images, names = stream
    classify = pipeline(TASK, tiny, learn=False)
    assert classify(images[0], names, top_k=3) == classify(images[0], names)[:3]
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        classify(images[0], names, top_k=0)


def test_what_makes_no_sense_is_said(tiny, folders):
    image = Image.new("RGB", (64, 64))
    for problem, make in {
        "'text-classification' is not soba's": lambda: pipeline("text-classification", tiny),
        "no model: say one": lambda: pipeline(TASK),
        "those of the encoder": lambda: pipeline(TASK, tiny, device="cpu"),
        "dtype must be one of": lambda: pipeline(TASK, folders["clip"], dtype="int8"),
        "max_label_sets must be at least 1": lambda: pipeline(TASK, tiny, max_label_sets=0),
        "batch_size must be at least 1": lambda: pipeline(TASK, tiny, batch_size=0),
        "tpt needs": lambda: pipeline(TASK, tiny, method="tpt"),
        "no candidate_labels": lambda: pipeline(TASK, tiny)(image, []),
        "a list of labels, not one": lambda: pipeline(TASK, tiny)(image, "cat, dog"),
    }.items():
        with pytest.raises((ValueError, TypeError), match=problem):
            make()


def test_devices_and_types_in_the_words_of_transformers(folders):
    import torch

    for device, dtype, precision in (
        ("cpu", torch.bfloat16, "bf16"),
        (torch.device("cpu"), "float32", "fp32"),
        (-1, None, "fp32"),
    ):
        encoder = pipeline(TASK, f"hf:{folders['clip']}", device=device, dtype=dtype).encoder
        assert (encoder.device, encoder.precision) == ("cpu", precision)
