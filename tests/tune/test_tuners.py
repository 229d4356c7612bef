"""What all prompt-tuning methods have in common."""

import json
import pickle

import numpy as np
import pytest
import torch
from methods import TUNERS
from tiny_clip import openclip, tiny_clip

import soba
from soba.adapt.few_shot import FewShotAdapter
from soba.registry import adapter_class
from soba.testing import assert_same_state

PARAMS = {
    "tpt": {},
    "difftpt": {"generated": 8, "steps": 2},
    "histpt": {"capacity": 3, "hardest": 2},
    "coop": {"epochs": 3, "batch_size": 8},
    "cocoop": {"epochs": 1},
}


@pytest.fixture(params=TUNERS)
def make(request, encoder, names, support):
    def build(fit=True, **options):
        cls = adapter_class(request.param)
        tuner = cls(encoder, names, **(PARAMS[request.param] | options))
        return tuner.fit(*support) if fit and isinstance(tuner, FewShotAdapter) else tuner

    return build


def weights(encoder):
    """Of the model as it is now: the encoder's own fingerprint is computed once and kept."""
    fresh = openclip.OpenClip(encoder.model, encoder.tokenizer, encoder.preprocess)
    return fresh.fingerprint


def test_weights_never_change(make, encoder, views):
    before = weights(encoder)
    tuner = make()
    tuner.adapt(views)
    tuner.logits(views)
    assert weights(encoder) == before
    assert all(p.grad is None and not p.requires_grad for p in encoder.model.parameters())


def test_verbs_and_kinds(make, views):
    tuner = make()
    for verb in (tuner.logits, tuner.probabilities, tuner.adapt):
        assert verb(views).shape == (6, 5) and verb(views).dtype == np.float32
        assert verb(views[:0]).shape == (0, 5)
        assert isinstance(verb(torch.asarray(views)), torch.Tensor)
    np.testing.assert_allclose(tuner.probabilities(views).sum(axis=1), 1, atol=1e-5)
    classes, chances = tuner.top_k(views, 2)
    assert classes.shape == chances.shape == (6, 2)
    assert (tuner.predict(views) == classes[:, 0]).all()
    assert tuner.n_classes == 5 and tuner.dim == 16
    assert tuner.text_features.shape == (5, 16)


def test_text_is_tuned(make, views):
    tuner = make()
    zero_shot = tuner.logit_scale * views[:, 0] @ tuner.text_features.T
    assert np.abs(tuner.adapt(views) - zero_shot).max() > 1e-4


def test_the_same_calls_give_the_same_bits(make, views):
    one, other = make(), make()
    np.testing.assert_array_equal(one.adapt(views[:4]), other.adapt(views[:4]))
    np.testing.assert_array_equal(one.adapt(views[4:]), other.adapt(views[4:]))
    assert_same_state(one.state(), other.state())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", [np.asarray, torch.asarray])
def test_the_callers_mode_does_not_matter(make, views, mode, kind):
    """Nor whether it changes half-way, in either direction."""
    first, second = kind(views[:3]), kind(views[3:])
    usual = make()
    expected = np.asarray(usual.adapt(first)), np.asarray(usual.adapt(second))
    with mode():
        inside = make()
        begun = inside.adapt(first * 1)  # made inside
        copied = inside.copy()
    outside = make()
    outside.adapt(first)
    rest = inside.adapt(second), copied.adapt(second)
    with mode():
        rest += (outside.adapt(second),)
    np.testing.assert_array_equal(np.asarray(begun), expected[0])
    for logits in rest:
        np.testing.assert_array_equal(np.asarray(logits), expected[1])
    for tuner in (inside, copied, outside):
        assert_same_state(tuner.state(), usual.state())


def test_cuts_do_not_matter(make, views):
    whole, cut = make(), make()
    expected = whole.adapt(views)
    pieces = np.concatenate([cut.adapt(views[:1]), cut.adapt(views[1:4]), cut.adapt(views[4:])])
    np.testing.assert_allclose(pieces, expected, atol=1e-5 * np.abs(expected).max())


def test_predict_is_pure_and_known_ids_change_nothing(make, views):
    tuner = make()
    tuner.adapt(views[:3], ids=[5, 6, 7])
    before = tuner.state()
    tuner.logits(views)
    tuner.top_k(views)
    tuner.adapt(views[1:3], ids=[6, 7])
    assert_same_state(tuner.state(), before)


def test_save_load_clone_reset(make, views, encoder, tmp_path):
    tuner = make()
    fresh = make(fit=False).state()
    tuner.adapt(views[:3])
    path = tmp_path / "tuner.safetensors"
    tuner.save(path)
    copies = [
        type(tuner).load(path, encoder=encoder, expect=tuner.params),
        soba.load(path, encoder=encoder),
        tuner.copy(),
        pickle.loads(pickle.dumps(tuner)),
    ]
    expected = tuner.adapt(views[3:])
    for copy in copies:
        np.testing.assert_array_equal(copy.adapt(views[3:]), expected)
        assert_same_state(copy.state(), tuner.state())
    assert_same_state(tuner.reset().state(), fresh)
    with pytest.raises(ValueError, match=r"tuner\.safetensors: .* needs its encoder"):
        soba.load(path)
    with pytest.raises(ValueError, match=r"tuner\.safetensors: saved with another encoder"):
        soba.load(path, encoder=tiny_clip(seed=1))
    parameter, value = next(iter(tuner.params.items()))
    with pytest.raises(ValueError, match=f"saved with {parameter}="):
        soba.load(path, encoder=encoder, expect={parameter: 77 if value != 77 else 78})
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"tuner\.safetensors"):
        soba.load(path, encoder=encoder)


def test_other_classes(make, views, encoder):
    tuner = make().with_classes(["newt", "dog"])
    assert tuner.adapt(views).shape == (6, 2)
    with pytest.raises(TypeError, match="use with_classes"):
        tuner.with_text(np.eye(2))


def test_parameters_read_back(make):
    tuner = make()
    assert json.loads(json.dumps(tuner.params)) == tuner.params
    assert type(tuner).__name__ in repr(tuner)
    assert "gradients" in tuner.card.needs and "encoder" in tuner.card.needs_in_words


def test_bad_input(make, views, encoder, names):
    tuner = make()
    before = tuner.state()
    for bad in (views[..., :5], np.full_like(views, np.nan), np.zeros_like(views), "views"):
        with pytest.raises((ValueError, TypeError)):
            tuner.adapt(bad)
    with pytest.raises(ValueError, match="ids repeat"):
        tuner.adapt(views[:2], ids=[1, 1])
    assert_same_state(tuner.state(), before)
    cls, params = type(tuner), tuner.params
    with pytest.raises(TypeError, match=r"gradients through a text tower.*not ndarray"):
        cls(np.eye(5), names, **params)
    with pytest.raises(TypeError, match="list of strings"):
        cls(encoder, "dog", **params)
    with pytest.raises(ValueError, match="class_names is empty"):
        cls(encoder, [], **params)
    with pytest.raises(ValueError, match=r"one \{\} for the class name"):
        cls(encoder, names, "a photo", **params)
