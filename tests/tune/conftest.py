"""A small encoder, class names, and features with views that lean towards some class."""

import numpy as np
import pytest
from tiny_clip import tiny_clip

NAMES = ["dog", "cat", "sea_lion", "owl", "newt"]


@pytest.fixture(scope="session")
def encoder():
    return tiny_clip()


@pytest.fixture
def names():
    return list(NAMES)


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="session")
def text(encoder):
    return encoder.encode_texts([f"a photo of a {n.replace('_', ' ')}." for n in NAMES])


@pytest.fixture(scope="session")
def views(text):
    """(6, 20, d): the first view of each sample is its image. Text features lie close together
    in a random model, so what tells them apart is made large in the images."""
    rng = np.random.default_rng(0)
    apart = unit(text - text.mean(axis=0))
    labels = rng.integers(len(text), size=6)
    noise = 0.5 * rng.normal(size=(6, 20, text.shape[1]))
    return unit(apart[labels][:, None] + noise)


@pytest.fixture(scope="session")
def support(text):
    """Four labelled samples of each class, (20, d)."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(len(text)), 4)
    return unit(text[labels] + 0.3 * rng.normal(size=(len(labels), text.shape[1]))), labels
