"""Runs in shards for tests: features around the text of icon classes, in files that are ready."""

import os

import numpy as np

from soba.encode.prompts import classifier, templates
from soba.scale.embed import Embedder
from soba.scale.folder import ShardFolder

NAMES = ("alarm", "anchor", "archive", "bell", "bug", "camera", "cat", "cloud", "coffee", "flag")
PROMPTS = templates("icon")
LAKE_TIME = 1_700_000_000  # of all files, so that the same features make the same manifest


def rows_around(text, count, seed, spread=0.2, shift=0.4):
    """(n, d) unit rows of classes whose images lie aside of their texts: there is much to learn."""
    centres = text + shift * np.random.default_rng(7).standard_normal(text.shape)
    rng = np.random.default_rng(seed)
    rows = centres[rng.integers(len(text), size=count)]
    rows = rows + spread * rng.standard_normal(rows.shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def write_lake(folder, encoder, counts, seed=0):
    """A folder of .npy files of features, one for each of `counts`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = classifier(encoder.encode_texts, NAMES, PROMPTS)
    for number, count in enumerate(counts):
        file = folder / f"part-{number:03d}.npy"
        np.save(file, rows_around(text, count, seed + number))
        os.utime(file, (LAKE_TIME, LAKE_TIME))
    return folder


def make_folder(path, source, encoder, names=NAMES, **options):
    return ShardFolder.make(path, str(source), encoder, names, PROMPTS, **options)


def make_run(path, encoder, counts, seed=0):
    """A run all of whose shards have their features."""
    lake = write_lake(path / "lake", encoder, counts, seed)
    folder = make_folder(path / "run", lake, encoder)
    embedder = Embedder(folder, lambda: encoder)
    for number in range(len(counts)):
        embedder(number)
    return folder


def rows_of(folder):
    """The ids and features of all shards."""
    blocks = [b for n in range(len(folder.manifest.shards)) for b in folder.blocks(n)]
    return (
        np.concatenate([block.ids for block in blocks]),
        np.concatenate([block.features for block in blocks]),
    )
