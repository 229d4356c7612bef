"""Ways around a guard, and what it must not say."""

import numpy as np
import pytest
from colours import NAMES
from crafted import crafted, guard_of
from streams import FEATURES, LABELS, classifier

import soba
from soba.serve.guard import Guard, GuardFailed


def watched(url, method="soba", seen=1000):
    """A stream that has learned, with a guard of thirty samples of each class."""
    stream = soba.DurableStream(url, "cats", classifier(method), durability="off")
    stream.learn(FEATURES[:seen], ids=range(seen))
    guard = guard_of(LABELS[4000:6000], 30, np.random.default_rng(0)) + 4000
    stream.set_guard(FEATURES[guard], [NAMES[label] for label in LABELS[guard]])
    assert not stream.frozen
    return stream


def rubbish(stream, per_class=60):
    text = stream.view().scaled_text / 30.0
    return crafted(FEATURES[:1000], text, per_class=per_class, margin=0.5)


def test_rubbish_between_two_refreshes_is_never_called_good(tmp_path):
    """Statistics do not know of it yet, what is kept does: whoever unfreezes asks that."""
    with watched(f"sqlite:///{tmp_path}/db", seen=4000) as stream:
        good, due = stream.view().settings["last_good"], stream.to_classifier().adapter._due
        bad = rubbish(stream)
        stream.learn(np.random.default_rng(0).permutation(bad)[: due - stream.n_seen - 1])
        assert not stream.frozen  # nobody has looked yet
        stream.freeze()
        with pytest.raises(GuardFailed):
            stream.unfreeze()
        assert stream.view().settings["last_good"] == good


@pytest.mark.parametrize("method", ["oga", "adapt", "tda"])
def test_methods_that_move_with_every_sample_are_watched_at_every_sample(tmp_path, method):
    """Whatever answers would pass the guard, at any moment."""
    with watched(f"sqlite:///{tmp_path}/db", method) as stream:
        for row in rubbish(stream, 20):
            stream.adapt(row)
            if stream.frozen:
                break
            state = stream._replica.read(lambda state: state)
            assert not Guard.of(state).score(state)["failed"]
        assert stream.frozen or method != "oga"  # which is fooled by these


def test_a_guard_without_images_of_the_classes_lifts_nothing(tmp_path):
    with watched(f"sqlite:///{tmp_path}/db") as stream:
        stream.adapt(rubbish(stream))
        assert stream.frozen and stream.view().answers_by == "zero-shot"
        stream.change_classes([f"new {name}" for name in NAMES], templates=["a {}."])
        assert stream.frozen and stream.view().answers_by == "zero-shot"
        with pytest.raises(GuardFailed, match="no image of these classes"):
            stream.unfreeze()
        stream.remove_guard()
        stream.unfreeze()
        assert not stream.frozen
