"""The folder of a run: its manifest, its text features, and a feature file for each shard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from soba._files import load_checked, save_checked
from soba.adapt._arrays import read_text
from soba.encode.feature_shards import (
    FeatureBlock,
    FeatureShard,
    ShardMeta,
    digest_of_names,
    read_feature_shard,
)
from soba.encode.prompts import classifier as text_classifier
from soba.encode.prompts import templates_fingerprint
from soba.encode.shards import list_shards
from soba.scale.manifest import Manifest, claim, claim_manifest, read_manifest, refuse_other

if TYPE_CHECKING:
    from soba.encode.encoder import Encoder

MANIFEST, TEXT = "manifest.json", "text.safetensors"


@dataclass(frozen=True)
class ShardFolder:
    """A run's folder; it travels to other processes as its path.

    Attributes
    ----------
    text_features
        (C, d) float32, made by whoever made the manifest: machines round otherwise, and states
        merge only under the same text features.
    """

    path: Path
    manifest: Manifest
    text_features: np.ndarray

    @classmethod
    def make(
        cls,
        path: str | os.PathLike[str],
        source: str,
        encoder: Encoder,
        class_names: tuple[str, ...],
        templates: tuple[str, ...],
        *,
        shard_size: int = 10_000,
    ) -> Self:
        """The folder for these images and classes; what is there already must be about the same.

        A source that was listed before is not listed again: what came to it since is not in this
        run, and what changed is found out shard by shard.
        """
        place = Path(path)
        place.mkdir(parents=True, exist_ok=True)
        file = place / MANIFEST
        known = read_manifest(file) if file.exists() else None
        listed = known is not None and (known.source, known.shard_size) == (source, shard_size)
        manifest = Manifest(
            source=source,
            shard_size=shard_size,
            shards=known.shards if known and listed else list_shards(source, size=shard_size),
            encoder=encoder.fingerprint,
            opened_as=getattr(encoder, "opened_as", None),
            dim=encoder.width,
            logit_scale=encoder.logit_scale,
            class_names=class_names,
            templates=templates,
        )
        if known is not None:
            refuse_other(file, known, manifest)
        if not (place / TEXT).exists():
            # Made before the manifest is claimed: class names that cannot be told apart leave none.
            text = read_text(text_classifier(encoder.encode_texts, class_names, templates))
            manifest = claim_manifest(file, manifest)
            about = {"id_space": manifest.id_space}
            claim(place / TEXT, lambda temporary: save_checked(temporary, {"text": text}, about))
        elif not file.exists():
            # The manifest was lost. Text of another run is refused before it gets one of this run.
            _read_text(place, manifest)
            claim_manifest(file, manifest)
        folder = cls.open(place)
        refuse_other(file, folder.manifest, manifest)  # another process may have been faster
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """A folder that was made."""
        place = Path(path)
        if not (place / MANIFEST).is_file():
            raise FileNotFoundError(f"{place}: holds no {MANIFEST}; soba embed makes one")
        manifest = read_manifest(place / MANIFEST)
        return cls(place, manifest, _read_text(place, manifest))

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (str(self.path.resolve()), self.manifest.digest)

    def feature_file(self, number: int) -> Path:
        """Where the features of a shard are, or will be."""
        return self.path / f"features-{number:05d}.parquet"

    @property
    def missing(self) -> list[int]:
        """The shards without features."""
        numbers = range(len(self.manifest.shards))
        return [number for number in numbers if not self.feature_file(number).exists()]

    def features(self, number: int) -> FeatureShard:
        """The features of a shard, if they are of this run."""
        file = self.feature_file(number)
        if not file.exists():
            raise FileNotFoundError(f"{file}: not there yet; soba embed makes it")
        shard = read_feature_shard(file)
        if shard.meta != self.meta(number):
            wanted, there = self.manifest.id_space, shard.meta.id_space
            raise ValueError(
                f"{file}: is of another run ({there}) than this folder ({wanted}), or of another "
                "encoder or other prompts"
            )
        return shard

    def blocks(self, number: int, rows: int = 8192) -> Iterator[FeatureBlock]:
        """The rows of a shard, so many at a time."""
        return self.features(number).blocks(rows)

    def meta(self, number: int) -> ShardMeta:
        """What the feature file of a shard says of itself."""
        manifest = self.manifest
        return ShardMeta(
            dim=manifest.dim,
            encoder_fingerprint=manifest.encoder,
            templates_fingerprint=templates_fingerprint(manifest.templates),
            logit_scale=float(manifest.logit_scale),
            class_digest=digest_of_names(manifest.class_names),
            id_space=manifest.id_space,
            source_stamp=manifest.shards[number].stamp,
        )

    def note(self) -> dict[str, Any]:
        """What states of this run say of it: what a classifier's do, and the manifest."""
        manifest = self.manifest
        return {
            "class_names": list(manifest.class_names),
            "encoder": manifest.encoder,
            "opened_as": manifest.opened_as,
            "templates": list(manifest.templates),
            "shards": len(manifest.shards),
        }


@lru_cache(maxsize=1)
def _opened(path: str, digest: str) -> ShardFolder:
    """A folder in the process it was sent to, which reads it once and not for each shard."""
    folder = ShardFolder.open(path)
    if folder.manifest.digest != digest:
        raise ValueError(f"{path}: its manifest was replaced by another while it was worked on")
    return folder


def _read_text(place: Path, manifest: Manifest) -> np.ndarray:
    arrays, meta = load_checked(place / TEXT)
    text = arrays.get("text", np.empty(0))
    if meta.get("id_space") != manifest.id_space:
        raise ValueError(
            f"{place / TEXT}: is of another run ({meta.get('id_space')}) than the manifest "
            f"({manifest.id_space}); take another folder"
        )
    if text.shape != (len(manifest.class_names), manifest.dim):
        raise ValueError(f"{place / TEXT}: its text features are of shape {text.shape}")
    return text
