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


def test_samples_are_those_that_are_kept_each_once():
    queued = adapter("soba")
    found, items = inspect(queued), queued.queue.items()
    entropies = dict(zip(found.samples.ids.tolist(), found.samples.entropies, strict=True))
    assert entropies == dict(zip(items.ids.tolist(), items.entropies.tolist(), strict=True))
    assert found.samples.queued.all() and not found.samples.drawn.any()
    made = adapter(sample_size=100)
    found = inspect(made)
    assert found.samples.ids.tolist() == sorted(made.sample.ids) and len(found.samples) == 100
    assert found.samples.drawn.all() and not found.samples.queued.any()
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


def test_evidence_is_the_queue():
    made = adapter("soba")
    found, items = inspect(made), made.queue.items()
    assert (found.queues, found.capacity, found.n_seen) == (("queue",), 16, 400)
    for label, each in enumerate(found.classes):
        own = items.labels == label
        assert each.queued == (own.sum(),) and each.mass is None
        assert each.mean_entropy == pytest.approx(items.entropies[own].mean())
        surest = items.ids[own][np.argsort(items.entropies[own])][:8]
        assert found.samples.ids[list(each.best)].tolist() == surest.tolist()


def test_evidence_is_the_mass_and_what_the_class_explains_best():
    made = adapter(sample_size=100)
    found = inspect(made)
    assert (found.queues, found.capacity, found.n_seen) == ((), None, 400)
    assert found.expected[1] == made.expected_accuracy().adapted
    samples = found.samples
    for label, each in enumerate(found.classes):
        assert (each.queued, each.mean_entropy) == ((), None)
        assert each.mass == pytest.approx(made.statistics_["mass"][label])
        own = np.flatnonzero(samples.adapted == label)
        likeliest = own[np.argsort(-samples.confidence[own], kind="stable")][:8]
        assert 0 < len(each.best) == len(likeliest)
        np.testing.assert_allclose(
            samples.confidence[list(each.best)], samples.confidence[likeliest], rtol=1e-5
        )
        assert set(each.best) <= set(own.tolist())


def test_examples_are_those_of_the_sample_whatever_the_order_the_cuts_or_the_shards():
    expected = adapter(sample_size=100).refresh().examples(3)
    assert all(1 <= len(each) <= 3 for each in expected)
    backwards, shards = soba.SOBAPlus(TEXT, logit_scale=20.0, sample_size=100), []
    for rows in np.array_split(np.arange(400)[::-1], 7):
        backwards.adapt(IMAGES[rows], ids=rows)
    for part in range(2):
        shards.append(soba.SOBAPlus(TEXT, logit_scale=20.0, sample_size=100))
        shards[part].learn(IMAGES[part::2], ids=np.arange(part, 400, 2))
    for other in (backwards.refresh(), shards[0].merge(shards[1])):
        # Places differ, so the class prior may: the same images, about as likely.
        assert {id_ for each in other.examples(100) for id_ in each} == set(other.sample.ids)
        assert [set(each) for each in other.examples(3)] == [set(each) for each in expected]


@pytest.mark.parametrize("method", soba.list_methods(family="stream"))
def test_the_state_of_every_stream_method_can_be_looked_into(method):
    found = inspect(adapter(method))
    assert found.method == method and len(found.classes) == 5
    assert found.names[4] == "class 4"
    assert len(found.samples) == 0 or (found.samples.queued | found.samples.drawn).all()
    assert len(found.samples) == 0 or all(each.best for each in found.classes)


def test_generations_of_a_horizon_are_both_looked_into():
    made = adapter(horizon=150)
    generations = [made.state()["arrays"][f"{name}.ids"] for name in ("older_sample", "sample")]
    assert [sorted(ids) for ids in generations] == [[*range(300, 375)], [*range(375, 400)]]
    found = inspect(made)
    assert found.samples.ids.tolist() == [*range(300, 400)] and found.samples.drawn.all()


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
