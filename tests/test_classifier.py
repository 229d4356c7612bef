"""What a classifier answers: the same as the command, of streams and of a whole set at once."""

import gc
import itertools
import pickle
import weakref
from unittest import mock

import numpy as np
import pytest
import torch
from icon_classifiers import (  # noqa: F401  (three are fixtures)
    NAMES,
    alike,
    icon_classifier,
    icon_files,
    seen,
    tiny_encoder,
)
from PIL import Image
from run_cli import soba_command

import soba
from soba.answers import write_answers
from soba.cli import classify as command
from soba.testing import assert_same_state

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


def test_bad_numbers_are_refused_at_once(classifier, files):
    for name in ("batch", "top"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1"):
            classifier.classify(files, **{name: 0})
    [answer] = classifier.classify(files[0], top=99)
    assert len(answer.top) == 4


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
