"""The encoder contract on soba's encoders, and on one that breaks each of its rules."""

import itertools
import threading

import numpy as np
import pytest
import torch
from onnx_models import image_tower, model_folder
from tiny_clip import CONFIG, open_clip
from tiny_clip import tiny_clip as small_clip

from soba._encoder_checks import ENCODER_CHECKS, EncoderCase
from soba.encode.encoder import Encoder, check_pixels, check_texts, load_encoder
from soba.encode.onnx import OnnxEncoder
from soba.encode.preprocess import Preprocess
from soba.encode.tokens import ByteTokenizer
from soba.testing import check_encoder

SIZE, WIDTH, LENGTH = 6, 12, 40


def test_the_tiny_clip_in_onnx_and_in_torch():
    plain, tunable = load_encoder("tiny"), load_encoder("tiny", device="cpu", gradients=True)
    again = load_encoder("tiny"), load_encoder("tiny", device="cpu", gradients=True)
    check_encoder(plain, same=again[0], others=[tunable])
    check_encoder(tunable, same=again[1], others=[plain, small_clip()])


def test_open_clips_models_of_random_weights(monkeypatch):
    check_encoder(
        small_clip(),
        same=small_clip(),
        others=[small_clip(seed=1), small_clip(precision="autocast")],
    )
    check_encoder(small_clip(precision="autocast"))
    check_encoder(small_clip(custom_text=True))
    text = CONFIG["text_cfg"] | {"vocab_size": 49408, "context_length": 77}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "small", CONFIG | {"text_cfg": text})
    torch.manual_seed(0)
    check_encoder(load_encoder("small/random", device="cpu"))  # with CLIP's own tokenizer


def test_onnx_folders_and_a_lone_image_tower(tmp_path):
    folders = [
        model_folder(tmp_path / "a" / "mine"),
        model_folder(tmp_path / "b" / "mine"),
        model_folder(tmp_path / "c" / "mine", gain=2.0),
        model_folder(tmp_path / "d" / "mine"),
    ]
    config = folders[3] / "open_clip_config.json"
    config.write_text(config.read_text().replace('"mean"', '"resize_mode": "squash", "mean"'))
    first, same, heavier, squashed = (OnnxEncoder.load(folder) for folder in folders)
    check_encoder(first, same=same, others=[heavier, squashed])
    check_encoder(squashed)
    alone = OnnxEncoder.load(image_tower(tmp_path / "alone.onnx"))
    check_encoder(alone, texts=False)
    with pytest.raises(ValueError, match="has no text tower"):
        check_encoder(alone)


class Plain(Encoder):
    """A few random weights that keep to the contract."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.name, self.width, self.logit_scale = "plain", WIDTH, 20.0
        self.fingerprint, self.preprocess = f"plain-{seed}", Preprocess(size=SIZE)
        self._pixels = rng.normal(size=(3 * SIZE * SIZE, WIDTH))
        self._words = rng.normal(size=(LENGTH, ByteTokenizer.vocabulary, WIDTH))

    def encode_pixels(self, pixels):
        check_pixels(pixels, SIZE)
        return self._unit(pixels.reshape(len(pixels), 3 * SIZE * SIZE) @ self._pixels)

    def encode_texts(self, texts):
        tokens = Plain.tokens(self, check_texts(texts))
        return self._unit(self._words[np.arange(LENGTH), tokens].sum(axis=1))

    def tokens(self, texts):
        return ByteTokenizer(LENGTH)(list(texts))

    def _unit(self, rows):
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def broken(where, problem, /, **replaced):
    """A Plain encoder with some parts replaced, the check that is to see it, and what it says."""
    kind = type(f"Without_{'_'.join(replaced)}", (Plain,), replaced)
    return pytest.param(where, problem, kind, id=f"{where}: {problem}, {', '.join(replaced)}")


def said(**values):
    """An attribute or several with wrong values."""

    def __init__(self):
        Plain.__init__(self)
        vars(self).update(values)

    return __init__


class OddPreprocess(Preprocess):
    def __call__(self, image):
        return self.spoil(super().__call__(image), image)


def preprocessed(spoil):
    return said(preprocess=type("Odd", (OddPreprocess,), {"spoil": staticmethod(spoil)})(SIZE))


def blackened(pixels, image):
    image.paste(0, (0, 0, *image.size))
    return pixels


def noisy(pixels, _):
    return pixels + np.random.default_rng().normal(size=pixels.shape).astype(np.float32)


def both(change):
    """Pixels and texts encoded, then changed."""
    return {
        "encode_pixels": lambda self, pixels: change(Plain.encode_pixels(self, pixels)),
        "encode_texts": lambda self, texts: change(Plain.encode_texts(self, texts)),
    }


def each(change):
    """As `both`, in one encoder for pixels and in another one for texts."""
    return [{name: function} for name, function in both(change).items()]


def centred(rows):
    """What an encoder does that normalises over its batch."""
    rows = rows - 0.5 * rows.mean(axis=0) if len(rows) else rows
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


_calls = itertools.count()


def wandering(rows):
    """Other last bits at each call."""
    return (rows * np.float32(1 + 1e-6 * (next(_calls) % 7))).astype(np.float32)


def turned(rows):
    """The rows as a pool of workers would give them, whose order has nothing to do with ours."""
    return rows[np.argsort(rows[:, 0])]


def zeroing(self, pixels):
    result = Plain.encode_pixels(self, pixels)
    pixels *= 0
    return result


def emptying(self, texts):
    result = Plain.encode_texts(self, texts)
    if isinstance(texts, list):
        texts.clear()
    return result


def ascii_only(self, texts):
    if not all(text.isascii() for text in check_texts(texts)):
        raise ValueError("only English is spoken here")
    return Plain.encode_texts(self, texts)


def short_only(self, texts):
    if any(len(text) > LENGTH for text in check_texts(texts)):
        raise IndexError("index out of range")
    return Plain.encode_texts(self, texts)


def silent_on_nothing(self, texts):
    rows = Plain.encode_texts(self, texts)
    return rows * np.array([[len(text.strip()) > 0] for text in texts], np.float32)


def cased(self, texts):
    """Says that case matters, where it does not to `encode_texts`."""
    rows = np.zeros((len(texts), LENGTH), np.int64)
    for row, text in zip(rows, texts, strict=True):
        letters = list(text.encode()[:LENGTH])
        row[: len(letters)] = letters
    return rows


def first_letters(self, texts):
    """Says that only the first letter matters."""
    return np.array([[ord(text.strip().lower()[0])] for text in texts])


def unchecked(self, pixels):
    rows = np.resize(np.asarray(pixels, np.float32), (len(pixels), 3 * SIZE * SIZE))
    return self._unit(rows @ self._pixels)


def asserting(self, pixels):
    assert pixels.shape[1:] == (3, SIZE, SIZE)
    return Plain.encode_pixels(self, pixels)


def unlooked(self, pixels):
    return Plain.encode_pixels(self, np.asarray(pixels, np.float32))


def lettered(self, texts):
    return Plain.encode_texts(self, list(texts))


def spelled(self, texts):
    return Plain.encode_texts(self, texts if isinstance(texts, str) else [str(t) for t in texts])


class Restless(Plain):
    fingerprint = property(lambda self: f"plain-{next(_calls)}", lambda self, value: None)


class Scratch(Plain):
    """Says that two threads may call it, and has one room for what both of them work on."""

    batches_at_once = 2
    _both = threading.Barrier(2, timeout=600)

    def encode_pixels(self, pixels):
        self._room = pixels
        if threading.current_thread() is not threading.main_thread():
            self._both.wait()
        return Plain.encode_pixels(self, self._room)


BROKEN = [
    *(
        broken("attributes", f"{name} is", __init__=said(**{name: value}))
        for name, value in {
            "name": "",
            "fingerprint": None,
            "device": 0,
            "precision": None,
            "width": float(WIDTH),
            "logit_scale": 0.05,
            "logit_bias": None,
            "sigmoid": None,
        }.items()
    ),
    broken("batches_at_once", "batches_at_once is 0", __init__=said(batches_at_once=0)),
    pytest.param("batches_at_once", "in 2 threads: features differ", Scratch, id="at once: one"),
    *(
        broken("preprocess", problem, __init__=preprocessed(spoil))
        for problem, spoil in {
            "gives float64": lambda pixels, _: pixels.astype(np.float64),
            "not .3, 6, 6": lambda pixels, _: pixels[:, 1:],
            "gives NaN": lambda pixels, _: pixels * np.float32("nan"),
            "other pixels the second time": noisy,
            "changes the picture": blackened,
        }.items()
    ),
    *(
        broken("unit_rows", problem, **one)
        for problem, change in {
            "rows of length": lambda rows: 2 * rows,
            "float64, not float32": lambda rows: rows.astype(np.float64),
            "5, 11.*5, 12": lambda rows: rows[:, 1:],
            "4, 12.*5, 12": lambda rows: rows[1:],
            "list, not a numpy array": lambda rows: rows.tolist(),
        }.items()
        for one in each(change)
    ),
    *(
        broken("nothing_gives_nothing", "0, 0.*0, 12", **one)
        for one in each(lambda rows: rows if len(rows) else np.zeros((0, 0), np.float32))
    ),
    *(broken("same_calls_same_bits", "other bits", **one) for one in each(wandering)),
    *(broken("batches_change_rounding_only", "1 at a time", **one) for one in each(centred)),
    *(broken("rows_keep_their_order", "in another order", **one) for one in each(turned)),
    *(
        broken("rows_keep_their_order", "the same features", **one)
        for one in each(lambda rows: np.full_like(rows, WIDTH**-0.5))
    ),
    broken("input_is_untouched", "changes the pixels", encode_pixels=zeroing),
    broken("input_is_untouched", "changes the list", encode_texts=emptying),
    broken("any_text", "only English", encode_texts=ascii_only),
    broken("any_text", "IndexError", encode_texts=short_only),
    broken("any_text", "of '' .0 letters.: rows of length", encode_texts=silent_on_nothing),
    broken("tokens", "other tokens, the same features", tokens=cased),
    broken("tokens", "the same tokens, other features", tokens=first_letters),
    broken(
        "tokens", "float64, not whole numbers", tokens=lambda self, t: Plain.tokens(self, t) / 2
    ),
    broken("tokens", "of two texts are", tokens=lambda self, t: Plain.tokens(self, t)[0]),
    broken("bad_input_is_refused", "pixels of shape", encode_pixels=unchecked),
    broken("bad_input_is_refused", "uint8: not refused", encode_pixels=unlooked),
    broken("bad_input_is_refused", "AssertionError.*, not a ValueError", encode_pixels=asserting),
    broken("bad_input_is_refused", "in place of a list", encode_texts=lettered),
    broken("bad_input_is_refused", "a number among", encode_texts=spelled),
    pytest.param("fingerprint", "from one look to the next", Restless, id="fingerprint: restless"),
]


def checked(name, encoder, **more):
    (check,) = [check for check in ENCODER_CHECKS if check.__name__ == f"check_{name}"]
    check(EncoderCase(encoder, **more))


def test_an_encoder_of_anyones_own():
    check_encoder(Plain(), same=Plain(), others=[Plain(seed=1)])


@pytest.mark.parametrize(("check", "problem", "kind"), BROKEN)
def test_what_is_broken_is_seen(check, problem, kind):
    with pytest.raises(AssertionError, match=problem):
        checked(check, kind())


def test_fingerprints_that_do_not_tell_models_apart():
    with pytest.raises(AssertionError, match="has the same fingerprint"):
        check_encoder(Plain(), others=[Plain()])
    with pytest.raises(AssertionError, match="has the fingerprints plain-0 and plain-1"):
        check_encoder(Plain(), same=Plain(seed=1))


class Tower:
    """A text tower that does something to the features of a real one."""

    def __init__(self, real, change):
        self._real, self._change = real, change

    def __getattr__(self, name):
        return getattr(self._real, name)

    def run(self, embedded, ends):
        return self._change(self._real.run(embedded, ends))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda features: features.detach(), "no gradients pass"),
        (lambda features: features.flip(0), "features differ"),
        (lambda features: features.detach() + 0 * features, "all zero"),
    ],
)
def test_towers_that_pass_no_gradients_or_other_features(change, problem):
    encoder = small_clip()
    encoder.text_tower = Tower(encoder.text_tower, change)
    encoder.encode_texts = lambda texts: small_clip().encode_texts(texts)  # of the real tower
    with pytest.raises(AssertionError, match=problem):
        checked("gradients", encoder)


def test_a_tower_without_tokens_is_of_no_use():
    silent = small_clip()
    silent.tokens = lambda texts: None
    with pytest.raises(AssertionError, match="without tokens"):
        checked("gradients", silent)


def test_every_check_has_an_encoder_that_breaks_it():
    seen = {f"check_{entry.values[0]}" for entry in BROKEN} | {"check_gradients"}
    assert seen == {check.__name__ for check in ENCODER_CHECKS}
