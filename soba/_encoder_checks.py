"""The contract every encoder passes, as checks that other people's encoders can run too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

    from soba.encode.encoder import Encoder

# What features of the same input may differ by, in calls of other sizes; half precisions more.
_ROUNDING = {"fp32": 1e-4}
_ROUNDING_OF_HALVES = 3e-2
_APART = 1e-6  # features that differ by less are the same features

_SENTENCES = ("a photo of a cat.", "a photo of a dog.", "two tables", "a bell", "snow at night")
_STRANGE = (
    "",
    " ",
    "a\nb\tc",
    "un été à la plage",
    "一只猫的照片",
    "صورة قطة",
    "\N{CAT FACE}" * 3,
    "e\N{COMBINING ACUTE ACCENT}",
    "cat " * 2000,
    "x" * 5000,
)
_ALIKE_OR_NOT = (
    ("a cat", "a dog"),
    ("a cat", "A Cat"),
    ("a cat", " a   cat "),
    ("cat " * 2000 + "a", "cat " * 2000 + "b"),
)


def check_encoder(
    encoder: Encoder,
    *,
    same: Encoder | None = None,
    others: Sequence[Encoder] = (),
    texts: bool = True,
    rounding: float | None = None,
) -> None:
    """Run all checks on an encoder; raises AssertionError with what does not hold.

    Parameters
    ----------
    same
        The same model, opened once more: it must have the same fingerprint.
    others
        Of other weights or preprocessing: their fingerprints must be others.
    texts
        False for an image tower alone.
    rounding
        By how much features may differ in batches of another size. By default what the encoder's
        precision allows; models that quantise a batch as a whole need more.

    Examples
    --------
    >>> import soba
    >>> check_encoder(soba.load_encoder("tiny"), same=soba.load_encoder("tiny"))
    """
    if rounding is None:
        rounding = _ROUNDING.get(getattr(encoder, "precision", ""), _ROUNDING_OF_HALVES)
    case = EncoderCase(encoder, same, tuple(others), texts, rounding)
    for check in ENCODER_CHECKS:
        check(case)


@dataclass
class EncoderCase:
    """An encoder to check, and what it is checked on."""

    encoder: Encoder
    same: Encoder | None = None
    others: tuple[Encoder, ...] = ()
    texts: bool = True
    rounding: float = _ROUNDING["fp32"]

    @cached_property
    def pixels(self) -> np.ndarray:
        """(n, 3, size, size) of small pictures, preprocessed."""
        return np.stack([self.encoder.preprocess(picture) for picture in _pictures()])

    @property
    def towers(self) -> list[tuple[str, Callable[[Any], np.ndarray], Any]]:
        """What to encode with, and what: a row each."""
        images = ("encode_pixels", self.encoder.encode_pixels, self.pixels)
        words = ("encode_texts", self.encoder.encode_texts, list(_SENTENCES))
        return [images, words] if self.texts else [images]


def check_attributes(case: EncoderCase) -> None:
    """Name, width, scale and bias, device and precision are there and make sense."""
    encoder = case.encoder
    for attribute in ("name", "fingerprint", "device", "precision"):
        value = getattr(encoder, attribute)
        assert isinstance(value, str) and value, f"{attribute} is {value!r}, not a word"
    width, scale, bias = encoder.width, encoder.logit_scale, encoder.logit_bias
    assert isinstance(width, int) and width > 0, f"width is {width!r}"
    assert isinstance(scale, float) and 1 <= scale <= 1000, (
        f"logit_scale is {scale!r}: it is to be exp of the learned temperature, 100 for CLIP"
    )
    assert isinstance(bias, float) and np.isfinite(bias), f"logit_bias is {bias!r}"
    assert isinstance(encoder.sigmoid, bool), f"sigmoid is {encoder.sigmoid!r}, not True or False"


def check_preprocess(case: EncoderCase) -> None:
    """Images of any kind and shape -> (3, size, size) float32, the same each time."""
    preprocess = case.encoder.preprocess
    square = (3, preprocess.size, preprocess.size)
    for picture in _pictures():
        for mode in ("RGB", "L", "P", "RGBA", "1", "I;16"):
            image = picture.convert("L").convert(mode) if mode == "I;16" else picture.convert(mode)
            before = image.tobytes()
            pixels, again = preprocess(image), preprocess(image)
            kind = getattr(pixels, "dtype", type(pixels).__name__)
            assert kind == np.float32, f"preprocess gives {kind} of {mode}, not float32"
            assert pixels.shape == square, f"preprocess gives {pixels.shape}, not {square}"
            assert np.isfinite(pixels).all(), f"preprocess gives NaN or infinity of {mode}"
            assert image.tobytes() == before, "preprocess changes the picture it is given"
            assert np.array_equal(pixels, again), "preprocess gives other pixels the second time"


def check_unit_rows(case: EncoderCase) -> None:
    """A float32 row of length 1 and of `width` for each image and each text."""
    for name, encode, given in case.towers:
        _assert_unit(encode(given), len(given), case.encoder.width, name)


def check_nothing_gives_nothing(case: EncoderCase) -> None:
    """No images and no texts -> (0, width) float32."""
    for name, encode, given in case.towers:
        _assert_unit(encode(given[:0]), 0, case.encoder.width, f"{name} of nothing")


def check_same_calls_same_bits(case: EncoderCase) -> None:
    """The same call repeated gives the same bits."""
    for name, encode, given in case.towers:
        assert np.array_equal(encode(given), encode(given)), f"{name} gives other bits each time"


def check_batches_change_rounding_only(case: EncoderCase) -> None:
    """However images and texts are cut into calls, they have the same features."""
    for name, encode, given in case.towers:
        whole = encode(given)
        for size in (1, 2):
            starts = range(0, len(given), size)
            cut = np.concatenate([encode(given[start : start + size]) for start in starts])
            _close(cut, whole, case.rounding, f"{name} of {size} at a time")


def check_rows_keep_their_order(case: EncoderCase) -> None:
    """Row k belongs to input k, and different inputs have different rows."""
    for name, encode, given in case.towers:
        rows = encode(given)
        _close(encode(given[::-1])[::-1], rows, case.rounding, f"{name} in another order")
        for k in range(1, len(rows)):
            difference = np.abs(rows[:k] - rows[k]).max(axis=1).min()
            assert difference > _APART, f"{name} gives different inputs the same features"


def check_batches_at_once(case: EncoderCase) -> None:
    """As many threads as it says may encode at the same time, and each gets its own features."""
    encoder, at_once = case.encoder, case.encoder.batches_at_once
    assert isinstance(at_once, int) and at_once >= 1, f"batches_at_once is {at_once!r}"
    batches = [np.roll(case.pixels, turns, axis=0) for turns in range(2 * at_once)]
    with ThreadPoolExecutor(at_once) as threads:
        together = list(threads.map(encoder.encode_pixels, batches))
    what = f"encode_pixels in {at_once} threads"
    for rows, batch in zip(together, batches, strict=True):
        _close(rows, encoder.encode_pixels(batch), case.rounding, what)


def check_input_is_untouched(case: EncoderCase) -> None:
    """The caller's pixels and texts stay as they were."""
    pixels, sentences = case.pixels.copy(), list(_SENTENCES)
    case.encoder.encode_pixels(pixels)
    assert np.array_equal(pixels, case.pixels), "encode_pixels changes the pixels it is given"
    if case.texts:
        case.encoder.encode_texts(sentences)
        assert sentences == list(_SENTENCES), "encode_texts changes the list it is given"


def check_any_text(case: EncoderCase) -> None:
    """Texts of any length and language have features."""
    if not case.texts:
        return
    for text in _STRANGE:
        what = f"encode_texts of {text[:20]!r} ({len(text)} letters)"
        try:
            rows = case.encoder.encode_texts([text])
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
        _assert_unit(rows, 1, case.encoder.width, what)


def check_tokens(case: EncoderCase) -> None:
    """Texts have the same features where they have the same tokens, and only there."""
    if not case.texts or case.encoder.tokens(["a cat"]) is None:
        return
    for pair in _ALIKE_OR_NOT:
        tokens = np.asarray(case.encoder.tokens(pair))
        assert tokens.ndim == 2 and len(tokens) == 2, f"tokens of two texts are {tokens.shape}"
        assert tokens.dtype.kind in "iu", f"tokens are {tokens.dtype}, not whole numbers"
        features = case.encoder.encode_texts(pair)
        difference = np.abs(features[0] - features[1]).max()
        which = " and ".join(repr(text[-20:]) for text in pair)
        if np.array_equal(tokens[0], tokens[1]):
            assert difference <= case.rounding, f"{which}: the same tokens, other features"
        else:
            assert difference > _APART, f"{which}: other tokens, the same features"


def check_fingerprint(case: EncoderCase) -> None:
    """The same for the same model, another for other weights or preprocessing."""
    fingerprint = case.encoder.fingerprint
    assert case.encoder.fingerprint == fingerprint, "fingerprint changes from one look to the next"
    if case.same is not None:
        assert case.same.fingerprint == fingerprint, (
            f"the same model has the fingerprints {fingerprint} and {case.same.fingerprint}"
        )
    for other in case.others:
        assert other.fingerprint != fingerprint, f"{other.name} has the same fingerprint"


def check_bad_input_is_refused(case: EncoderCase) -> None:
    """Pixels of another shape or kind, one text in place of a list, texts that are none."""
    pixels, encoder = case.pixels, case.encoder
    for wrong in (
        pixels[0],
        pixels[:, :2],
        pixels[:, :, :-1],
        np.concatenate([pixels, pixels], axis=3),
        np.full(pixels.shape, 200, np.uint8),
    ):
        _refused(encoder.encode_pixels, wrong, f"pixels of shape {wrong.shape}, {wrong.dtype}")
    if case.texts:
        _refused(encoder.encode_texts, "a cat", "one text in place of a list")
        _refused(encoder.encode_texts, ["a cat", 3], "a number among the texts")


def check_gradients(case: EncoderCase) -> None:
    """A text tower gives the encoder's own features, and gradients pass through it."""
    tower = case.encoder.text_tower
    if tower is None:
        return
    import torch

    tokens = case.encoder.tokens(list(_SENTENCES))
    assert tokens is not None, "a text tower is of no use without tokens"
    tokens = torch.as_tensor(tokens, device=case.encoder.device)
    with torch.enable_grad(), tower.autocast():
        ends = tower.ends(tokens)
        embedded = tower.embed(tokens, ends).detach().requires_grad_()
        features = torch.nn.functional.normalize(tower.run(embedded, ends).float(), dim=-1)
    expected = case.encoder.encode_texts(_SENTENCES)
    _close(features.detach().cpu().numpy(), expected, case.rounding, "features of the text tower")
    assert features.requires_grad, "no gradients pass through the text tower"
    features[:, 0].sum().backward()
    slopes = embedded.grad
    assert slopes is not None and bool(slopes.isfinite().all()) and bool(slopes.any()), (
        "the gradients that pass through the text tower are not finite, or all zero"
    )


ENCODER_CHECKS = (
    check_attributes,
    check_preprocess,
    check_unit_rows,
    check_nothing_gives_nothing,
    check_same_calls_same_bits,
    check_batches_change_rounding_only,
    check_rows_keep_their_order,
    check_batches_at_once,
    check_input_is_untouched,
    check_any_text,
    check_tokens,
    check_fingerprint,
    check_bad_input_is_refused,
    check_gradients,
)


def _pictures() -> list[Image.Image]:
    """Of different colours, contents and shapes."""
    from PIL import Image

    pictures = []
    for k, (width, height) in enumerate([(64, 64), (90, 40), (31, 77), (5, 3), (200, 150)]):
        rng = np.random.default_rng(k)
        blocks = rng.integers(0, 256, (4, 4, 3), np.uint8) // 2 + rng.integers(0, 128, 3, np.uint8)
        pictures.append(Image.fromarray(blocks.astype(np.uint8)).resize((width, height)))
    return pictures


def _assert_unit(rows: Any, count: int, width: int, what: str) -> None:
    assert isinstance(rows, np.ndarray), f"{what}: {type(rows).__name__}, not a numpy array"
    assert rows.dtype == np.float32, f"{what}: {rows.dtype}, not float32"
    assert rows.shape == (count, width), f"{what}: shape {rows.shape}, not {(count, width)}"
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert np.allclose(lengths, 1, atol=1e-3), f"{what}: rows of length {lengths}, not 1"


def _close(rows: np.ndarray, expected: np.ndarray, rounding: float, what: str) -> None:
    assert rows.shape == expected.shape, f"{what}: shape {rows.shape}, not {expected.shape}"
    difference = float(np.abs(rows - expected).max(initial=0))
    assert difference <= rounding, f"{what}: features differ by {difference:.2g}"


def _refused(encode: Callable[[Any], Any], wrong: Any, what: str) -> None:
    try:
        encode(wrong)
    except (ValueError, TypeError):
        return
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}, not a ValueError or TypeError") from error
    raise AssertionError(f"{what}: not refused with a ValueError or TypeError")
