"""Where a cell finds images, features and encoders: all that a cell itself does not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from soba.bench.feature_cache import FeatureFolder
from soba.bench.loading import Loader
from soba.bench.sendable import Sendable
from soba.bench.sources import Source
from soba.encode.encoder import Encoder


@dataclass(frozen=True)
class Model(Sendable):
    """An encoder that is opened when it is first needed.

    Parameters
    ----------
    name
        What records call it.
    opener
        Makes the encoder; for a model that travels, a partial of `load_encoder`.
    tunable_opener
        Makes the same model with a text tower that passes gradients, for the methods that tune
        prompts; by default the encoder itself is one.
    """

    name: str
    opener: Callable[[], Encoder]
    tunable_opener: Callable[[], Encoder] | None = None

    @cached_property
    def encoder(self) -> Encoder:
        return self.opener()

    @cached_property
    def tunable(self) -> Encoder:
        return self.encoder if self.tunable_opener is None else self.tunable_opener()


@dataclass(frozen=True)
class Places(Sendable):
    """A source of images, a model, and a results folder.

    The folder holds features/ (made once), tuning/ (what was searched, and long trainings, epoch by
    epoch) and records/, a file per cell. Files appear whole or not at all, and their names carry a
    digest of all that decides their content.

    Parameters
    ----------
    templates
        In place of the prompts each set is usually scored with.
    augmix
        Distort and mix the views.
    batch
        Images per run of the encoder.
    """

    source: Source
    model: Model
    results: Path
    templates: tuple[str, ...] | None = None
    augmix: bool = False
    batch: int = 64

    @cached_property
    def loader(self) -> Loader:
        folder = FeatureFolder(
            self.results / "features",
            self.model.encoder,
            self.templates,
            augmix=self.augmix,
            batch=self.batch,
        )
        return Loader(self.source, folder)

    @cached_property
    def trained(self) -> dict[str, Any]:
        """Prompts learned on the source set, which serve all others."""
        return {}

    @property
    def broken(self) -> dict[tuple[str, str], str]:
        """The images that could not be read: (set, key) -> why."""
        return self.loader.folder.broken

    def make(self) -> None:
        """Have the folders there."""
        for name in ("features", "records", "tuning"):
            (self.results / name).mkdir(parents=True, exist_ok=True)
