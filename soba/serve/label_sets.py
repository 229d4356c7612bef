"""Text features of label sets that requests bring along: the last ones are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

from soba.adapt._arrays import softmax
from soba.encode.encoder import Encoder
from soba.encode.prompts import classifier as text_classifier

_KEPT = 64
_KEPT_LABELS = 20_000  # in all sets together


class LabelSets:
    """Zero-shot classifiers by their labels and template; nothing of them is ever stored."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self._lock = encoder, threading.Lock()
        self._texts: OrderedDict[tuple[tuple[str, ...], str], np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return len(self._texts)

    def scores(self, rows: np.ndarray, labels: tuple[str, ...], template: str) -> np.ndarray:
        """(n, C): softmax over the labels, or for SigLIP the sigmoid of each."""
        logits = rows @ self._scaled_text(labels, template).T
        if not self._encoder.sigmoid:
            return np.asarray(softmax(np, logits))
        return np.asarray(1.0 / (1.0 + np.exp(-(logits + self._encoder.logit_bias))))

    def _scaled_text(self, labels: tuple[str, ...], template: str) -> np.ndarray:
        key = labels, template
        with self._lock:
            if key in self._texts:
                self._texts.move_to_end(key)
                return self._texts[key]
        text = text_classifier(self._encoder.encode_texts, labels, (template,))
        text = text * np.float32(self._encoder.logit_scale)
        with self._lock:
            self._texts[key] = text
            while len(self._texts) > 1 and (len(self._texts) > _KEPT or self._size > _KEPT_LABELS):
                self._texts.popitem(last=False)
        return text

    @property
    def _size(self) -> int:
        return sum(len(text) for text in self._texts.values())
