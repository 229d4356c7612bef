"""What every encoder is: pixels and words -> unit features of one space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from soba.encode.preprocess import Preprocess

Tokenizer = Callable[[Sequence[str]], Any]  # texts -> (m, context_length) token ids


class Encoder(ABC):
    """A CLIP: an image tower, a text tower, and the scale their cosines are multiplied by.

    Attributes
    ----------
    name
        For records and messages.
    preprocess
        PIL image -> (3, size, size) float32, as the model was trained.
    width
        Of the joint feature space.
    logit_scale
        exp of CLIP's learned temperature; 100 for OpenAI's models.
    fingerprint
        Of weights and preprocessing: features with different ones do not mix.
    """

    name: str
    preprocess: Preprocess
    width: int
    logit_scale: float
    fingerprint: str

    @abstractmethod
    def encode_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(n, 3, size, size) float32, preprocessed -> (n, width) float32 unit rows."""

    @abstractmethod
    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Whole sentences -> (m, width) float32 unit rows."""
