"""The prompts' own pass through the text tower equals open_clip's."""

import numpy as np
import pytest
import torch
from tiny_clip import (
    CONFIG,
    CONTEXT,
    Preprocess,
    open_clip,
    openclip,
    tiny_clip,
    tokenizer,
)

from soba.tune._prompts import Prompts
from soba.tune.tpt import TPT

NAMES = ["dog", "cat", "sea lion", "a much longer name", "owl"]
TEMPLATE = "a photo of a {}."


def expected(encoder):
    """open_clip's own features, over the whole context length."""
    tokens = encoder.tokens([TEMPLATE.replace("{}", name) for name in NAMES])
    with torch.no_grad():
        return encoder.model.encode_text(tokens, normalize=True).numpy()


def close(actual, expected):
    """To 1e-5 of their size: small gradients are sums of large ones, and share their rounding."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("chunk", [1, 60, 100, None])
@pytest.mark.parametrize("custom", [False, True])
def test_initial_prompts_are_encode_text(custom, chunk):
    encoder = tiny_clip(custom_text=custom)
    prompts = Prompts(encoder, NAMES, TEMPLATE, at_a_time=chunk)
    assert prompts.context_tokens == len("a photo of a")  # bytes
    text = prompts.features(prompts.initial).numpy()
    np.testing.assert_allclose(text, expected(encoder), atol=1e-6)


def pooled(tokens=tokenizer, **text):
    """A small encoder whose text tower has other settings."""
    torch.manual_seed(0)
    config = CONFIG | {"text_cfg": CONFIG["text_cfg"] | text}
    return openclip.OpenClip(open_clip.CLIP(**config), tokens, Preprocess(size=32))


def no_start(texts):
    """As SigLIP's: words, an end token, and the same one up to the context length."""
    rows = np.ones((len(texts), CONTEXT), np.int64)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = list(text.encode())
    return rows


def no_end(texts):
    """As CLIPA's: a start token, words and zeros."""
    return np.where(tokenizer(texts) == 257, 0, tokenizer(texts))


def padded_left(texts):
    return np.stack([np.roll(row, (row == 0).sum()) for row in tokenizer(texts)])


POOLS = [
    {"pool_type": "last"},
    {"pool_type": "last", "no_causal_mask": True},
    {"pool_type": "last", "no_causal_mask": True, "tokens": no_end},
    {"pool_type": "eos", "eos_id": 257},
    {"pool_type": "eos", "eos_id": 257, "no_causal_mask": True},
    {"pool_type": "first", "no_causal_mask": True},
    {"no_causal_mask": True},
]


def told(settings):
    """The same name in every process: functions by their own, and not by where they lie."""
    return ", ".join(
        f"{key}={getattr(value, '__name__', value)}" for key, value in settings.items()
    )


@pytest.mark.parametrize("text", POOLS, ids=told)
def test_towers_of_all_pools(text):
    encoder = pooled(**text)
    prompts = Prompts(encoder, NAMES, TEMPLATE, at_a_time=100)
    assert prompts.context_tokens == len("a photo of a")
    features = prompts.features(prompts.initial).numpy()
    np.testing.assert_allclose(features, expected(encoder), atol=1e-6)
    sentences = [TEMPLATE.replace("{}", name) for name in NAMES]
    np.testing.assert_allclose(features, encoder.encode_texts(sentences), atol=1e-6)
    context = prompts.initial.clone().requires_grad_()
    prompts.features(context)[:, 0].sum().backward()
    assert context.grad.abs().amax(dim=1).min() > 0  # every place of it counts


@pytest.mark.parametrize("text", POOLS, ids=told)
def test_free_places_under_all_pools(text):
    encoder = pooled(**text)
    words = Prompts(encoder, NAMES, "some {}.")
    free = Prompts(encoder, NAMES, "whatever {}.", context_tokens=5)
    space = encoder.model.token_embedding(torch.tensor([ord(" ")]))
    filled = torch.cat([words.initial, space])
    torch.testing.assert_close(free.features(filled), words.features(words.initial))


@pytest.mark.parametrize(
    "text",
    [
        {"tokens": no_start, "pool_type": "last", "no_causal_mask": True},
        {"tokens": no_start, "pool_type": "eos", "eos_id": 1},
        {"tokens": no_start},
        {"tokens": no_end},  # nothing for argmax to find
        {"tokens": padded_left, "pool_type": "last"},
        {"pool_type": "eos", "eos_id": 2},  # not the tokenizer's
    ],
    ids=told,
)
def test_tokenizers_without_a_start_are_refused(text):
    encoder = pooled(**text)
    for context in (None, 3):
        with pytest.raises(ValueError, match="prompts need a tokenizer with a start token"):
            Prompts(encoder, NAMES, TEMPLATE, context_tokens=context)


def test_real_tokenizer_and_tower():
    torch.manual_seed(0)
    encoder = openclip.OpenClip.load("RN50", "random", device="cpu")
    prompts = Prompts(encoder, NAMES, TEMPLATE)
    assert prompts.context_tokens == 4
    assert prompts._embedded.shape[1] < 15  # not 77
    text = prompts.features(prompts.initial).numpy()
    np.testing.assert_allclose(text, expected(encoder), atol=2e-6)


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
        close(gradient(chunk), whole)
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
    for actual, expected in zip(shared, whole, strict=True):
        close(actual, expected)


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


@pytest.mark.parametrize("chunk", [60, None])
def test_gradients_of_several_contexts_are_those_of_each(encoder, chunk):
    random = torch.Generator().manual_seed(0)
    prompts = Prompts(encoder, NAMES, TEMPLATE, at_a_time=chunk)
    contexts = prompts.initial + 0.02 * torch.randn(3, 12, prompts.width, generator=random)
    weights = torch.randn(3, len(NAMES), 16, generator=random)
    contexts.requires_grad_()
    (prompts.features(contexts) * weights).sum().backward()
    for together, context, weight in zip(contexts.grad, contexts.detach(), weights, strict=True):
        one = context.clone().requires_grad_()
        (prompts.features(one) * weight).sum().backward()
        close(together, one.grad)


@pytest.mark.parametrize("chunk", [60, None])  # 60: computed again in the backward pass
def test_a_context_for_each_class(encoder, chunk):
    """Features and gradients are those of the class under its context alone."""
    random = torch.Generator().manual_seed(0)
    prompts = Prompts(encoder, NAMES, TEMPLATE, at_a_time=chunk)
    contexts = prompts.initial + 0.02 * torch.randn(5, 12, prompts.width, generator=random)
    weights = torch.randn(5, 16, generator=random)
    contexts.requires_grad_()
    text = prompts.features_of_each(contexts)
    (text * weights).sum().backward()
    for k, context in enumerate(contexts.detach()):
        one = context.clone().requires_grad_()
        alone = prompts.features(one)[k]
        torch.testing.assert_close(text[k], alone)
        (alone * weights[k]).sum().backward()
        torch.testing.assert_close(contexts.grad[k], one.grad, rtol=1e-4, atol=1e-5)


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
    joined.tokenizer = lambda texts: [[256, len(t), 257] if t else [256, 257, 0] for t in texts]
    with pytest.raises(ValueError, match="joins 'a photo of a'"):
        Prompts(joined, NAMES, TEMPLATE)
    strange = tiny_clip()
    strange.text_tower = None
    deaf = pooled(pool_type="first")  # causal: no word reaches the start
    for encoder in (strange, deaf):
        with pytest.raises(ValueError, match="text tower of its kind"):
            Prompts(encoder, NAMES, TEMPLATE)


def test_autocast_is_close(encoder):
    half = tiny_clip(precision="autocast")
    prompts = Prompts(half, NAMES, TEMPLATE)
    text = prompts.features(prompts.initial)
    assert text.dtype == torch.float32
    assert (text.numpy() * expected(encoder)).sum(axis=1).min() > 0.99


def bf16_clip():
    """The weights of `tiny_clip`, converted as `open_clip.create_model` does."""
    torch.manual_seed(0)
    model = open_clip.CLIP(**CONFIG, cast_dtype=torch.bfloat16)
    open_clip.model.convert_weights_to_lp(model, dtype=torch.bfloat16)
    return openclip.OpenClip(model, tokenizer, Preprocess(size=32), precision="bf16")


def test_weights_in_bf16_run(encoder, views):
    half = bf16_clip()
    assert half.model.transformer.resblocks[0].mlp.c_fc.weight.dtype == torch.bfloat16
    exact, rounded = (TPT(one, NAMES).adapt(views) for one in (encoder, half))
    np.testing.assert_allclose(rounded, exact, atol=0.05 * np.abs(exact).max())


@pytest.mark.parametrize("chunk", [60, None])  # 60: computed again in the backward pass
@pytest.mark.parametrize("precision", ["autocast", "bf16"])
def test_gradients_in_half_precision_are_close(encoder, precision, chunk):
    half = tiny_clip(precision=precision) if precision == "autocast" else bf16_clip()
    weights = torch.randn(len(NAMES), 16, generator=torch.Generator().manual_seed(0))

    def gradient(of, at_a_time):
        prompts = Prompts(of, NAMES, TEMPLATE, at_a_time=at_a_time)
        context = prompts.initial.clone().requires_grad_()
        text = prompts.features(context)
        assert text.dtype == context.dtype == torch.float32
        (text * weights).sum().backward()
        return context.grad

    rounded, exact = gradient(half, chunk), gradient(encoder, None)
    assert not rounded.equal(exact)
    assert torch.cosine_similarity(rounded.ravel(), exact.ravel(), dim=0) > 0.99
    assert float(rounded.norm()) == pytest.approx(float(exact.norm()), rel=0.1)
