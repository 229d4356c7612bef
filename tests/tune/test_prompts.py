"""The prompts' own pass through the text tower equals open_clip's."""

import numpy as np
import pytest
import torch
from tiny_clip import CONTEXT, openclip, tiny_clip

from soba.tune._prompts import Prompts

NAMES = ["dog", "cat", "sea lion", "a much longer name", "owl"]
TEMPLATE = "a photo of a {}."


def expected(encoder):
    """open_clip's own features, over the whole context length."""
    tokens = encoder.tokens([TEMPLATE.replace("{}", name) for name in NAMES])
    with torch.no_grad():
        return encoder.model.encode_text(tokens, normalize=True).numpy()


@pytest.mark.parametrize("chunk", [1, 60, 100, None])
@pytest.mark.parametrize("custom", [False, True])
def test_initial_prompts_are_encode_text(custom, chunk):
    encoder = tiny_clip(custom_text=custom)
    prompts = Prompts(encoder, NAMES, TEMPLATE, at_a_time=chunk)
    assert prompts.context_tokens == len("a photo of a")  # bytes
    found = prompts.features(prompts.initial).numpy()
    np.testing.assert_allclose(found, expected(encoder), atol=1e-6)


def test_real_tokenizer_and_tower():
    torch.manual_seed(0)
    encoder = openclip.OpenClip.load("RN50", "random", device="cpu")
    prompts = Prompts(encoder, NAMES, TEMPLATE)
    assert prompts.context_tokens == 4
    assert prompts._embedded.shape[1] < 15  # not 77
    found = prompts.features(prompts.initial).numpy()
    np.testing.assert_allclose(found, expected(encoder), atol=2e-6)


def test_chunks_and_checkpoints_do_not_change_the_gradient(encoder):
    weights = torch.randn(len(NAMES), 16, generator=torch.Generator().manual_seed(0))

    def gradient(chunk):
        prompts = Prompts(encoder, NAMES, TEMPLATE, at_a_time=chunk)
        context = prompts.initial.clone().requires_grad_()
        (prompts.features(context) * weights).sum().backward()
        return context.grad

    whole = gradient(None)
    assert whole.abs().max() > 0
    for chunk in (1, 60):
        torch.testing.assert_close(gradient(chunk), whole, rtol=1e-4, atol=1e-6)
    assert all(p.grad is None for p in encoder.model.parameters())


def test_the_context_runs_once_for_all_classes(encoder, monkeypatch):
    """Same features and gradients as running every prompt whole; towers of other blocks do that."""
    prompts = Prompts(encoder, NAMES, TEMPLATE)
    weights = torch.randn(len(NAMES), 16, generator=torch.Generator().manual_seed(0))

    def passed():
        context = prompts.initial.clone().requires_grad_()
        text = prompts.features(context)
        (text * weights).sum().backward()
        return text.detach(), context.grad

    assert encoder.text_tower.shares_openings
    shared = passed()
    monkeypatch.setattr(type(encoder.text_tower), "shares_openings", False)
    monkeypatch.setattr(type(encoder.text_tower), "read", None)
    whole = passed()
    for found, expected in zip(shared, whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_prompts_of_a_length_run_together(encoder):
    prompts = Prompts(encoder, ["owl", "an exceptionally long name", "cat"], "a {}.")
    runs = [(len(rows), length) for rows, length in prompts._parts(contexts=2)]
    assert runs == [(2, 31), (4, 8)]  # of two contexts each; start, context, name, dot and end


def test_several_contexts_at_once(encoder):
    prompts = Prompts(encoder, NAMES, TEMPLATE, at_a_time=60)
    contexts = prompts.initial + torch.randn(2, 1, prompts.width)
    both = prompts.features(contexts)
    assert both.shape == (2, 5, 16)
    for one, context in zip(both, contexts, strict=True):
        torch.testing.assert_close(one, prompts.features(context))


def test_free_places_in_front_of_the_class(encoder):
    """Filled with the embeddings of words, free places are these words."""
    words = Prompts(encoder, NAMES, "some {}.")
    free = Prompts(encoder, NAMES, "whatever {}.", context_tokens=5)
    space = encoder.model.token_embedding(torch.tensor([ord(" ")]))
    filled = torch.cat([words.initial, space])
    torch.testing.assert_close(free.features(filled), words.features(words.initial))


def test_what_cannot_be_tuned_is_said(encoder):
    with pytest.raises(ValueError, match="words before"):
        Prompts(encoder, NAMES, "{}.")
    with pytest.raises(ValueError, match=f"'a much longer name' do not fit into the {CONTEXT}"):
        Prompts(encoder, NAMES, TEMPLATE, context_tokens=20)
    joined = tiny_clip()
    joined.tokenizer = lambda texts: [[256, len(text), 257] for text in texts]
    with pytest.raises(ValueError, match="joins 'a photo of a'"):
        Prompts(joined, NAMES, TEMPLATE)
    strange = tiny_clip()
    strange.text_tower = None
    with pytest.raises(ValueError, match="text tower of its kind"):
        Prompts(strange, NAMES, TEMPLATE)


def test_autocast_is_close(encoder):
    half = tiny_clip(precision="autocast")
    prompts = Prompts(half, NAMES, TEMPLATE)
    found = prompts.features(prompts.initial)
    assert found.dtype == torch.float32
    assert (found.numpy() * expected(encoder)).sum(axis=1).min() > 0.99
