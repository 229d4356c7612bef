"""Hints on prompts: planted faults are found, and on real features most hints are right."""

import numpy as np
import pytest

import soba
from soba.studies.check import answer_all
from soba.studies.prompts import prompt_hints, rank_templates


def world(classes=6, width=24, per_class=30, seed=0):
    """Text and images of separable classes in two cones, as CLIP has them; and the labels."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, width))
    text = centres + 4.0 * rng.normal(size=width)
    labels = np.repeat(np.arange(classes), per_class)
    images = centres[labels] + 0.3 * rng.normal(size=(len(labels), width))
    return text, images + 4.0 * rng.normal(size=width), labels


def test_a_sound_world_gives_no_hint():
    text, images, labels = world()
    hints = prompt_hints(text, images, labels, labels)
    assert (hints.contradicted, hints.alike, hints.unused) == ((), (), ())
    assert hints.images == len(labels)


def test_a_name_nearer_to_the_images_of_another_class_is_found():
    text, images, labels = world()
    text[2] = 0.2 * text[2] + 0.8 * text[4]  # class 2 was given a name that says class 4
    [hint] = prompt_hints(text, images, labels, labels).contradicted
    assert (hint.label, hint.rival, hint.nearer_rival) == (2, 4, True)
    assert (hint.images, hint.called_so) == (30, 1.0)


def test_a_name_that_clip_does_not_call_its_images_by_is_found():
    text, images, labels = world()
    said = labels.copy()
    said[(labels == 3) & (np.arange(len(labels)) % 3 > 0)] = 1
    [hint] = prompt_hints(text, images, said, labels).contradicted
    assert (hint.label, hint.rival, hint.nearer_rival) == (3, 1, False)
    assert hint.called_so == pytest.approx(1 / 3)


def test_of_too_few_images_nothing_is_said():
    text, images, labels = world()
    text[2] = text[4]
    few = np.flatnonzero((labels != 2) | (np.arange(len(labels)) % 30 < 4))
    assert prompt_hints(text, images[few], labels[few], labels[few]).contradicted == ()
    one = np.flatnonzero(labels == 2)
    assert prompt_hints(text, images[one], labels[one], labels[one]).contradicted == ()


def test_names_that_are_alike_and_classes_that_never_come():
    text, images, labels = world()
    text[5] = text[0] + 0.1
    some = labels != 3
    hints = prompt_hints(text, images[some], labels[some], labels[some])
    assert [(pair.first, pair.second) for pair in hints.alike] == [(0, 5)]
    assert 0.9 < hints.alike[0].cosine <= 1.0
    assert hints.unused == (3,)
    assert prompt_hints(text[:2], images[:60], labels[:60], labels[:60]).alike == ()


def test_templates_are_ranked_by_their_agreement():
    text, images, _ = world()
    swapped = text[[1, 0, 2, 3, 4, 5]]
    answers = (images @ (text / np.linalg.norm(text, axis=1, keepdims=True)).T).argmax(axis=1)
    ranked = rank_templates(["swapped", "right"], [swapped, text], images, answers)
    assert [each.template for each in ranked] == ["right", "swapped"]
    assert ranked[0].agreement == 1.0
    hit = np.isin(answers, (0, 1)).mean()
    assert ranked[1].agreement == pytest.approx(1.0 - hit)


def test_on_whurs19_most_hints_are_right(whurs19):
    """Right is a hint where CLIP alone gets fewer than half of the class's images right."""
    features = soba.FeatureSet.load(whurs19)
    answers = answer_all(features)
    rows = np.asarray(features.image_features, np.float32)
    hints = prompt_hints(features.text_features, rows, answers.zero_shot, answers.adapted)
    recall = [(answers.zero_shot[features.labels == k] == k).mean() for k in range(19)]
    hinted = {hint.label for hint in hints.contradicted}
    right = sum(recall[label] < 0.5 for label in hinted)
    assert (len(hinted), right) == {"clip_rn50": (3, 3), "clip_vitb32": (3, 2)}[whurs19.stem]
    assert not {k for k in range(19) if recall[k] < 0.5} - hinted  # none is missed

    each = np.asarray(features.prompt_features, np.float32)
    each /= np.linalg.norm(each, axis=2, keepdims=True)
    accuracy = {
        template: ((rows @ text.T).argmax(axis=1) == features.labels).mean()
        for template, text in zip(features.prompts, each, strict=True)
    }
    ranked = rank_templates(features.prompts, each, rows, answers.adapted)
    by_accuracy = sorted(accuracy, key=accuracy.get)
    ranks = [by_accuracy.index(each.template) for each in reversed(ranked)]
    assert np.corrcoef(np.arange(len(ranks)), ranks)[0, 1] > 0.85
