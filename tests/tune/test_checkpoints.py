"""A training that is killed goes on from its last epoch, and ends as if nothing had been."""

import contextlib

import numpy as np
import pytest
from rounding import assert_same_logits

from soba.tune.cocoop import CoCoOp
from soba.tune.coop import CoOp

SETTINGS = {"epochs": 4, "batch_size": 5, "learning_rate": 2e-4}


class Killed(BaseException):
    pass


def killed_after(tuner, batches, *fitted, checkpoint):
    """Fit, and end it as a signal would, in the middle of an epoch; how many batches it took."""
    taken = 0

    def batch_logits(learned, rows):
        nonlocal taken
        if taken == batches:
            raise Killed
        taken += 1
        return type(tuner)._batch_logits(tuner, learned, rows)

    tuner._batch_logits = batch_logits
    with contextlib.suppress(Killed):
        tuner.fit(*fitted, checkpoint=checkpoint)
    return taken


@pytest.mark.parametrize("context", [None, 2])
@pytest.mark.parametrize("cls", [CoOp, CoCoOp])
@pytest.mark.parametrize("batches", [0, 3, 4, 10])  # an epoch has four
def test_a_killed_training_ends_as_one_in_one_go(
    cls, context, batches, encoder, names, support, tmp_path
):
    settings = SETTINGS | {"context": context}
    whole = cls(encoder, names, **settings).fit(*support)
    path = tmp_path / "training.safetensors"
    killed = cls(encoder, names, **settings)
    assert killed_after(killed, batches, *support, checkpoint=path) == batches
    assert path.exists() == (batches >= 4)
    again = cls(encoder, names, **settings)
    left = killed_after(again, 99, *support, checkpoint=path)
    assert left == 16 - 4 * (batches // 4)
    np.testing.assert_allclose(again.losses_, whole.losses_, rtol=1e-5)
    assert_same_logits(again.logits(support[0]), whole.logits(support[0]))


def test_what_is_done_trains_nothing(encoder, names, support, tmp_path):
    path = tmp_path / "training.safetensors"
    done = CoOp(encoder, names, **SETTINGS).fit(*support, checkpoint=path)
    again = CoOp(encoder, names, **SETTINGS)
    assert killed_after(again, 0, *support, checkpoint=path) == 0
    assert again.losses_ == done.losses_
    assert_same_logits(again.logits(support[0]), done.logits(support[0]))
    later = CoOp(encoder, names, **SETTINGS)
    assert killed_after(later, 99, *support, checkpoint=None) == 16  # no file is remembered


def test_the_file_of_another_training_is_refused_and_kept(encoder, names, support, tmp_path):
    path = tmp_path / "training.safetensors"
    CoOp(encoder, names, **SETTINGS).fit(*support, checkpoint=path)
    content = path.read_bytes()
    features, labels = support
    others = [
        (CoOp(encoder, names, **SETTINGS | {"seed": 1}), features, labels),
        (CoOp(encoder, names, **SETTINGS | {"epochs": 5}), features, labels),
        (CoOp(encoder, names, "an icon of a {}.", **SETTINGS), features, labels),
        (CoOp(encoder, [*names[:-1], "gnu"], **SETTINGS), features, labels),
        (CoOp(encoder, names, **SETTINGS), features[::-1].copy(), labels),
        (CoOp(encoder, names, **SETTINGS), features, np.roll(labels, 1)),
        (CoCoOp(encoder, names, **SETTINGS), features, labels),
    ]
    for tuner, *samples in others:
        with pytest.raises(ValueError, match=r"training\.safetensors: is not a checkpoint of this"):
            tuner.fit(*samples, checkpoint=path)
        assert path.read_bytes() == content


def test_a_folder_that_is_not_there_is_named_before_any_training(encoder, names, support, tmp_path):
    tuner = CoOp(encoder, names, **SETTINGS)
    with pytest.raises(FileNotFoundError, match="the folder does not exist"):
        killed_after(tuner, 0, *support, checkpoint=tmp_path / "none" / "training.safetensors")


def test_a_damaged_file_is_named(encoder, names, support, tmp_path):
    path = tmp_path / "training.safetensors"
    CoOp(encoder, names, **SETTINGS).fit(*support, checkpoint=path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"training\.safetensors"):
        CoOp(encoder, names, **SETTINGS).fit(*support, checkpoint=path)
