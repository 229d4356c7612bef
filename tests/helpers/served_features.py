"""Features for a server with the tiny CLIP, and what a stream must have learned from them."""

import functools

import numpy as np
from streams import assert_same_samples

import soba
from soba.serve.names import ids_of_names

CLASSES = ["bell", "bug", "bus", "camera", "car", "cat", "cloud", "heart"]


@functools.cache
def text_features():
    return soba.Classifier("tiny", CLASSES).adapter.text_features


def features(rows):
    """(n, d): the same row for the same number, near one class or another."""
    text = text_features()
    noise = np.array([np.random.default_rng(row).normal(size=text.shape[1]) for row in rows])
    near = text[[row % len(text) for row in rows]]
    return (near + 1.5 * noise / np.sqrt(text.shape[1])).astype(np.float32)


def learned_state(stream, folder):
    """The adapter that a server exports."""
    path = folder / "exported.safetensors"
    stream.export(path)
    return soba.load(path).adapter


def assert_served(stream, rows, folder):
    """A stream has learned from each of these rows once, and from nothing else."""
    ours = learned_state(stream, folder)
    theirs = ours.copy()
    theirs.reset()
    theirs.adapt(features(rows), ids=ids_of_names(rows))
    assert_same_samples(ours, theirs)
