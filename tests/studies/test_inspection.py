"""What a state knows is what its adapter says of the samples that it keeps."""

import numpy as np
import pytest

import soba
from soba.studies.inspection import find_images, inspect
from soba.testing import example_stream

IMAGES, LABELS, TEXT = example_stream(n=400, classes=5, width=16)


def adapter(method="soba+", **settings):
    made = soba.create_adapter(method, TEXT, logit_scale=20.0, **settings)
    made.adapt(IMAGES, ids=np.arange(400))
    return made


def test_samples_are_those_of_queue_and_sample_each_once():
    made = adapter(sample_size=100)
    found = inspect(made)
    items, arrays = made.queue.items(), made.state()["arrays"]
    assert set(found.samples.ids) == set(items.ids) | set(arrays["sample.ids"])
    assert len(found.samples) == len(set(found.samples.ids))
    assert set(found.samples.ids[found.samples.queued]) == set(items.ids)
    assert set(found.samples.ids[found.samples.drawn]) == set(arrays["sample.ids"])
    entropies = dict(zip(found.samples.ids.tolist(), found.samples.entropies, strict=True))
    for id_, entropy in zip(items.ids.tolist(), items.entropies, strict=True):
        assert entropies[id_] == entropy
    rows = IMAGES[found.samples.ids]
    assert (found.samples.adapted == made.predict(rows)).all()
    assert (found.samples.zero_shot == (rows @ TEXT.T).argmax(axis=1)).all()


def test_changes_are_counted_by_class_and_class():
    found = inspect(adapter(sample_size=400))
    changed, total = found.changed_of(found.samples.drawn)
    assert (total, len(found.samples)) == (400, 400)
    assert 0 < changed == sum(change.count for change in found.changes)
    made = adapter(sample_size=400)
    plain, now = (IMAGES @ TEXT.T).argmax(axis=1), made.predict(IMAGES)
    for change in found.changes:
        assert change.count == ((plain == change.before) & (now == change.after)).sum()
    counts = [change.count for change in found.changes]
    assert counts == sorted(counts, reverse=True)
    for label, each in enumerate(found.classes):
        assert (each.zero_shot, each.adapted) == ((plain == label).sum(), (now == label).sum())


def test_evidence_is_the_queues_and_the_masses():
    made = adapter()
    found, items = inspect(made), made.queue.items()
    assert (found.queues, found.capacity, found.n_seen) == (("queue",), 16, 400)
    for label, each in enumerate(found.classes):
        own = items.labels == label
        assert each.queued == (own.sum(),)
        assert each.mean_entropy == pytest.approx(items.entropies[own].mean())
        assert each.mass == pytest.approx(made.statistics_["mass"][label])
    assert found.expected[1] == made.expected_accuracy().adapted


@pytest.mark.parametrize("method", soba.list_methods(family="stream"))
def test_the_state_of_every_stream_method_can_be_looked_into(method):
    found = inspect(adapter(method))
    assert found.method == method and len(found.classes) == 5
    assert found.names[4] == "class 4"
    assert len(found.samples) == 0 or found.samples.queued.any()


def test_the_drawn_samples_speak_for_the_stream_where_they_are_enough():
    many, few = (inspect(adapter(sample_size=size)).samples for size in (60, 12))
    assert (many.fair(5) == many.drawn).all() and many.drawn.sum() == 60
    assert few.fair(5).all() and not few.drawn.all()
    # The queue holds what CLIP is surest of: it would say that CLIP is hardly ever corrected.
    assert many.changed[many.queued].mean() < many.changed[many.drawn].mean()


def test_generations_of_a_horizon_are_both_looked_into():
    found = inspect(adapter(horizon=200))
    assert found.queues == ("queue", "older")
    assert len(found.classes[0].queued) == 2
    assert found.samples.ids.min() >= 200  # what is older was forgotten


def test_files_are_found_by_their_content(tmp_path, icon_folder):
    clf = soba.Classifier("tiny", ["bell", "cat"])
    answers = {answer.image: answer.id for answer in clf.classify(icon_folder)}
    files = sorted(answers)[:3]
    for place, file in enumerate(files):
        with open(file, "rb") as content:
            (tmp_path / f"renamed {place}.png").write_bytes(content.read())
    (tmp_path / "broken.png").write_bytes(b"no image")
    found = inspect(clf)
    assert found.id_space == "content" and set(found.samples.ids) <= set(answers.values())
    places = find_images(found.samples.ids.tolist(), tmp_path)
    kept = {answers[file]: f"renamed {k}.png" for k, file in enumerate(files)}
    kept = {id_: name for id_, name in kept.items() if id_ in set(found.samples.ids.tolist())}
    assert {id_: path.name for id_, path in places.items()} == kept and kept
