"""Shards of images -> feature files, one a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from soba.adapt._arrays import read_batch, score_with_clip
from soba.encode.feature_shards import Broken, FeatureRows, as_stored, write_feature_shard
from soba.encode.shards import SourceShard
from soba.scale.folder import ShardFolder
from soba.scale.manifest import ids_of

if TYPE_CHECKING:
    from soba.encode.encoder import Encoder


@dataclass(frozen=True)
class Embedded:
    """What came of one shard."""

    number: int
    rows: int
    broken: tuple[Broken, ...]
    was_there: bool


class Embedder:
    """Makes the feature files of a run; the encoder is opened once, for all its shards.

    Parameters
    ----------
    folder
        Of the run.
    opener
        Opens the encoder, in whatever process this is.
    batch
        Images per run of the encoder. Other batches round otherwise: the same bytes come of the
        same batch on the same kind of machine.
    step
        Is called with the number of images done since the last call.
    """

    def __init__(
        self,
        folder: ShardFolder,
        opener: Callable[[], Encoder],
        batch: int = 64,
        step: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.folder, self.batch, self._step = folder, batch, step
        self._opener = opener
        self._encoder: Encoder | None = None
        self._scaled_text = folder.text_features * np.float32(folder.manifest.logit_scale)

    @property
    def encoder(self) -> Encoder:
        """The encoder of the manifest; another one is refused."""
        if self._encoder is None:
            encoder, wanted = self._opener(), self.folder.manifest.encoder
            if encoder.fingerprint != wanted:
                raise ValueError(
                    f"{self.folder.path}: was begun with encoder {wanted}, not "
                    f"{encoder.fingerprint}: features of different encoders do not mix"
                )
            self._encoder = encoder
        return self._encoder

    def __call__(self, number: int) -> Embedded:
        """Make the feature file of a shard, unless it is there."""
        folder, shard = self.folder, self.folder.manifest.shards[number]
        was_there = folder.feature_file(number).exists()
        if was_there:
            features = folder.features(number)
            self._step(len(features) + len(features.broken))
        else:
            rows = self._ready if shard.kind == "embeddings" else self._encoded
            batches = _counted(rows(shard, number), self._step)
            unchanged = _unchanged(folder, shard, number, batches)
            file, meta = folder.feature_file(number), folder.meta(number)
            features = write_feature_shard(file, unchanged, meta)
        return Embedded(number, len(features), features.broken, was_there)

    def _encoded(self, shard: SourceShard, number: int) -> Iterator[FeatureRows]:
        from soba.encode.features import encode_stream

        pictures = shard.pictures()
        # A feature file is made once: what it calls broken stays so, whatever comes later.
        parts = encode_stream(self.encoder, pictures, batch=self.batch, raise_failures=True)
        for part in parts:
            lost = np.array(list(part.broken), np.int64)
            names = [part.images[index - part.start].name for index in lost]
            broken = tuple(
                Broken(int(id_), name, why)
                for id_, name, why in zip(
                    ids_of(number, lost), names, part.broken.values(), strict=True
                )
            )
            keys = [picture.name for picture in part.read]
            yield self._rows(keys, ids_of(number, part.indices), part.features, broken)

    def _ready(self, shard: SourceShard, number: int) -> Iterator[FeatureRows]:
        """Features that somebody else has made, with the same encoder as they say."""
        at = 0
        for keys, features in shard.features():
            if features.shape[1] != self.folder.manifest.dim:
                raise ValueError(
                    f"{shard.paths[0]}: rows of {features.shape[1]} dimensions, where the encoder "
                    f"gives {self.folder.manifest.dim}"
                )
            ids = ids_of(number, np.arange(at, at + len(keys)))
            sound = np.isfinite(features).all(axis=1)
            broken = tuple(
                Broken(int(ids[row]), keys[row], "the row has no direction")
                for row in np.flatnonzero(~sound)
            )
            fine = [key for key, good in zip(keys, sound, strict=True) if good]
            yield self._rows(fine, ids[sound], features[sound], broken)
            at += len(keys)

    def _rows(
        self, keys: list[str], ids: np.ndarray, features: np.ndarray, broken: tuple[Broken, ...]
    ) -> FeatureRows:
        stored = as_stored(features)
        clip = score_with_clip(read_batch(stored, stored.shape[1]), self._scaled_text)
        return FeatureRows(keys, ids, clip.labels, clip.entropies, stored, broken)


def _counted(batches: Iterator[FeatureRows], step: Callable[[int], None]) -> Iterator[FeatureRows]:
    for batch in batches:
        yield batch
        step(len(batch.keys) + len(batch.broken))


def _unchanged(
    folder: ShardFolder, shard: SourceShard, number: int, batches: Iterator[FeatureRows]
) -> Iterator[FeatureRows]:
    """The batches of a shard that is what the manifest says, before and after it was read."""
    _refuse_changed(folder, shard, number)
    yield from batches
    _refuse_changed(folder, shard, number)  # the file does not appear


def _refuse_changed(folder: ShardFolder, shard: SourceShard, number: int) -> None:
    change = shard.changed()
    if change is not None:
        raise ValueError(
            f"{folder.path}: shard {number} is not any more what the manifest says: {change}; "
            "take another folder for what it is now"
        )
