"""What `soba classify` begins with: given text features, and what an earlier run has learned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import soba
from soba._feature_files import read_npy
from soba.adapt._arrays import read_text
from soba.classifier import Classifier
from soba.encode.encoder import Encoder


def given_text(file: Path, classes: int, encoder: Encoder) -> np.ndarray:
    """(C, d) text features in a .npy file, for these classes and this encoder."""
    text = read_npy(file)
    if text.dtype.kind != "f":
        raise ValueError(f"{file}: not an array of floating-point numbers")
    if text.shape != (classes, encoder.width):
        raise ValueError(
            f"{file}: expected {classes} classes x {encoder.width} dimensions, not {text.shape}"
        )
    try:
        return read_text(text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def continued(fresh: Classifier, state: Path | None, change_classes: bool) -> Classifier:
    """The new classifier, or what an earlier run with the same classes and encoder has learned."""
    if state is None or not state.exists():
        return fresh
    saved = soba.load(state, encoder=fresh.encoder)
    adapter = saved.adapter if isinstance(saved, Classifier) else saved
    if adapter.name != fresh.adapter.name:
        raise ValueError(f"{state}: learned by {adapter.name}; say --method {adapter.name}")
    # Another machine rounds its text features otherwise; other words are further away than that.
    text = fresh.adapter.text_features
    if text.shape != adapter.text_features.shape or not np.allclose(
        text, adapter.text_features, rtol=0.0, atol=1e-4
    ):
        before = saved.names if isinstance(saved, Classifier) else ()
        if not change_classes:
            what = (
                "with other prompts"
                if before == fresh.names
                else f"for the classes {_some(before)}"
            )
            raise ValueError(
                f"{state}: learned {what}, where this run has {_some(fresh.names)}; "
                "--change-classes takes the samples over, another --state starts anew"
            )
        adapter = adapter.with_text(text)
    try:
        return Classifier(fresh.encoder, fresh.names, method=adapter, templates=fresh.templates)
    except ValueError as error:
        raise ValueError(f"{state}: {error}") from error


def _some(names: Sequence[str]) -> str:
    if not names:
        return "of another list"
    listed = ", ".join(names[:5])
    return listed if len(names) <= 5 else f"{listed}, ... ({len(names)})"
