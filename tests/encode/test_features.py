import io
import threading

import numpy as np
import pytest
from onnx_models import SIZE, model_folder
from PIL import Image

from soba.encode.features import batch_images, encode
from soba.encode.onnx import OnnxEncoder
from soba.encode.views import Views


class Colours:
    """Images of one colour each; some cannot be read."""

    def __init__(self, count, broken=()):
        self.keys = tuple(f"{i}.png" for i in range(count))
        self.broken = dict(broken)
        self.opened = []

    def image(self, index):
        self.opened.append(index)
        if index in self.broken:
            raise self.broken[index]
        rng = np.random.default_rng(index)
        return Image.fromarray(rng.integers(1, 255, (12, 10, 3), np.uint8))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return OnnxEncoder.load(model_folder(tmp_path_factory.mktemp("models") / "mine"))


def directly(encoder, images, indices):
    return encoder.encode_pixels(np.stack([encoder.preprocess(images.image(i)) for i in indices]))


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_come_in_order_and_cover_everything(encoder, workers):
    images = Colours(11)
    parts = list(encode(encoder, images, batch=4, workers=workers))
    assert [(part.start, part.stop) for part in parts] == [(0, 4), (4, 8), (8, 11)]
    assert np.concatenate([part.indices for part in parts]).tolist() == list(range(11))
    features = np.concatenate([part.features for part in parts])
    assert (features.dtype, features.shape) == (np.float32, (11, 4))
    np.testing.assert_array_equal(features[4:8], directly(encoder, images, range(4, 8)))
    assert not any(part.broken for part in parts)


def test_a_continued_run_computes_the_same_bits(encoder):
    images = Colours(11)
    whole = list(encode(encoder, images, batch=4))
    rest = list(encode(encoder, images, batch=4, start=8))
    assert (rest[0].features == whole[2].features).all()
    for start in (1, 11):
        with pytest.raises(ValueError, match=f"start must be a multiple of 4, not {start}"):
            next(encode(encoder, images, batch=4, start=start))
    with pytest.raises(ValueError, match="batch must be at least 1"):
        next(encode(encoder, images, batch=0))
    assert list(encode(encoder, images, batch=4, start=12)) == []
    assert list(encode(encoder, Colours(0))) == []


def test_broken_images_are_named_and_left_out(encoder):
    # All of these have been seen to come out of Pillow's decoders.
    kinds = [
        OSError("truncated"),
        SyntaxError("bad chunk"),
        IndexError("out of range"),
        KeyError("mode"),
        EOFError(),
        RuntimeError("codec"),
        MemoryError(),
    ]
    images = Colours(9, broken=enumerate(kinds))
    parts = list(encode(encoder, images, batch=4))
    assert [part.indices.tolist() for part in parts] == [[], [7], [8]]
    assert parts[0].features.shape == (0, 4)
    broken = {i: why for part in parts for i, why in part.broken.items()}
    assert list(broken) == list(range(7))
    assert (broken[0], broken[4]) == ("truncated", "EOFError")


def test_reasons_do_not_repeat_the_name_nor_show_the_memory(encoder):
    class Torn(Colours):
        def image(self, index):
            if index == 0:
                return Image.open(io.BytesIO(b"torn"))
            return Image.open("/no/such/image.png")

    (part,) = encode(encoder, Torn(2))
    assert part.broken == {0: "not an image of a known format", 1: "No such file or directory"}


def test_a_view_that_cannot_be_read_is_named(encoder):
    class Missing(Views):
        def __call__(self, image, key):
            return Image.open("/no/such/view.png")

    (part,) = encode(encoder, Colours(1), views=Missing(2, preprocess=encoder.preprocess))
    assert "/no/such/view.png" in part.broken[0]


def test_an_image_the_encoder_cannot_place_counts_as_broken(encoder):
    class Black(Colours):
        def image(self, index):
            return Image.new("RGB", (9, 9)) if index == 1 else super().image(index)

    (part,) = encode(encoder, Black(3, broken={0: OSError("gone")}))
    assert part.indices.tolist() == [2]
    assert part.broken == {0: "gone", 1: "the encoder gave it no direction"}
    np.testing.assert_allclose(np.linalg.norm(part.features, axis=1), 1.0, atol=1e-6)


def test_views_share_a_batch_and_depend_on_the_image_alone(encoder):
    images = Colours(5, broken={3: OSError("gone")})
    views = Views(3, preprocess=encoder.preprocess, seed=1)
    assert batch_images(7, views) == 2
    assert batch_images(2, views) == 1
    assert batch_images(7, None) == 7
    parts = list(encode(encoder, images, batch=7, views=views))
    assert [part.features.shape for part in parts] == [(2, 3, 4), (1, 3, 4), (1, 3, 4)]
    expected = encoder.encode_pixels(views(images.image(4), "4.png"))
    np.testing.assert_allclose(parts[2].features[0], expected, atol=1e-6)
    plain = directly(encoder, images, [0, 1])
    np.testing.assert_allclose(parts[0].features[:, 0], plain, atol=1e-6)
    assert encoder.preprocess.size == SIZE


def test_decoding_runs_ahead_but_not_away(encoder):
    images = Colours(100)
    parts = encode(encoder, images, batch=4)
    next(parts)
    parts.close()  # waits for what is being decoded
    assert len(images.opened) <= 4 * 4


def test_the_next_batch_is_encoded_while_one_is_used(encoder):
    """Without the second call to `next`: who uses the features works beside the encoder."""
    encoded = threading.Semaphore(0)

    class Counted:
        width, preprocess = encoder.width, staticmethod(encoder.preprocess)
        batches_at_once = 1

        def encode_pixels(self, pixels):
            features = encoder.encode_pixels(pixels)
            encoded.release()
            return features

    parts = encode(Counted(), Colours(12), batch=4)
    next(parts)
    assert encoded.acquire(timeout=600) and encoded.acquire(timeout=600)
    parts.close()


def test_as_many_batches_are_encoded_at_once_as_the_encoder_takes(encoder):
    """Each call waits for another one, so that less than two at once would wait for ever."""
    other = threading.Barrier(2, timeout=600)

    class Paired:
        width, preprocess = encoder.width, staticmethod(encoder.preprocess)
        batches_at_once = 2

        def encode_pixels(self, pixels):
            other.wait()
            return encoder.encode_pixels(pixels)

    images = Colours(24)
    parts = list(encode(Paired(), images, batch=4))
    assert [part.start for part in parts] == list(range(0, 24, 4))
    features = np.concatenate([part.features for part in parts])
    np.testing.assert_allclose(features, directly(encoder, images, range(24)), atol=1e-6)


def test_what_the_encoder_raises_is_raised_behind_the_batches_before(encoder):
    class Failing:
        width, preprocess, calls = encoder.width, staticmethod(encoder.preprocess), 0
        batches_at_once = 1

        def encode_pixels(self, pixels):
            self.calls += 1
            if self.calls == 3:
                raise RuntimeError("out of memory")
            return encoder.encode_pixels(pixels)

    parts = encode(Failing(), Colours(40), batch=4)
    assert [next(parts).start, next(parts).start] == [0, 4]
    with pytest.raises(RuntimeError, match="out of memory"):
        next(parts)
