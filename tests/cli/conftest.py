"""What the tests of `soba classify` share."""

import numpy as np
import pytest
from classifying import classify, rows
from PIL import Image

from soba.encode.onnx import OnnxEncoder


@pytest.fixture
def answers(tmp_path):
    """Runs the command and returns its rows."""

    def run(*arguments, **options):
        path = tmp_path / "answers.csv"
        classify(*arguments, "-o", path, **options)
        lines = rows(path)
        path.unlink()
        return lines

    return run


@pytest.fixture(scope="session")
def features(icon_stream):
    """Of the stream, computed without the command."""
    tiny = OnnxEncoder.tiny()
    files = sorted(icon_stream.iterdir())
    parts = []
    for start in range(0, len(files), 8):
        images = [tiny.preprocess(Image.open(file)) for file in files[start : start + 8]]
        parts.append(tiny.encode_pixels(np.stack(images)))
    return np.concatenate(parts)


@pytest.fixture(scope="session")
def spread(features, tmp_path_factory):
    """Text features that divide the stream into classes, whatever the encoder has learned.

    They have much in common, so that CLIP is in doubt, and there is something to learn.
    """
    path = tmp_path_factory.mktemp("text") / "text.npy"
    centre = features.mean(axis=0)
    apart = features[:4] - centre
    apart /= np.linalg.norm(apart, axis=1, keepdims=True)
    np.save(path, apart + 3.0 * centre / np.linalg.norm(centre))
    return path
