"""Small streams that look like CLIP's, and the case that the contract is checked on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from soba.adapt.base import Adapter
from soba.adapt.few_shot import FewShotAdapter


def example_stream(
    n: int = 240, classes: int = 6, width: int = 24, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and text that look like CLIP's: a cone, classes on it, a modality gap."""
    rng = np.random.default_rng(seed)
    centre, gap = 2.0 * rng.normal(size=width), rng.normal(size=width)
    means = rng.normal(size=(classes, width))
    labels = rng.integers(classes, size=n)
    noise = rng.normal(size=(n, width)) * np.linspace(0.3, 1.5, width)
    features = centre + means[labels] + noise
    text = centre + gap + means + 0.8 * rng.normal(size=(classes, width))
    return _unit(features), labels, _unit(text)


def example_views(features: np.ndarray, views: int, seed: int = 0) -> np.ndarray:
    """(n, V, d): views scattered around (n, d) features, which are the first view of each."""
    noise = np.random.default_rng(seed).normal(size=(len(features), views, features.shape[1]))
    noise[:, 0] = 0.0
    return _unit(features[:, None, :] + 0.1 * noise)


@dataclass
class Case:
    """An adapter class to check, with the arrays it is checked on."""

    cls: type[Adapter]
    convert: Callable[[np.ndarray], Any] = np.asarray
    dtype: str = "float32"
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.features, self.labels, self.text = example_stream()
        self.rows = self.features  # (n, d), whatever the method takes
        if self.cls.card.min_views > 1:
            self.features = example_views(self.rows, max(10, self.cls.card.min_views))
        self.shots, self.shot_labels, _ = example_stream(n=60)
        self.shots[:6], self.shot_labels[:6] = self.rows[:6], np.arange(6)

    def make(self) -> Any:
        """A new adapter, fitted if it is of that kind. A low scale leaves some doubt in it."""
        adapter = self.cls(self.words(self.text), **({"logit_scale": 20.0} | self.params))
        if isinstance(adapter, FewShotAdapter):
            adapter.fit(self.array(self.shots), self.shot_labels)
        return adapter

    def array(self, rows: np.ndarray) -> Any:
        """Host values as the kind of array under check."""
        return self.convert(rows.astype(self.dtype))

    def words(self, text: np.ndarray) -> Any:
        """(C, d) text features as the method takes them: of several prompts where it needs them."""
        if not self.cls.card.per_prompt:
            return self.array(text)
        noise = np.random.default_rng(0).normal(size=(2, *text.shape))
        return self.array(np.concatenate([text[None], text + 0.02 * noise]))

    @property
    def stream(self) -> Any:
        return self.array(self.features)


def _unit(rows: np.ndarray) -> np.ndarray:
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return unit
