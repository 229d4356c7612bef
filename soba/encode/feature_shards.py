"""Features of one shard in a Parquet file, which anything that reads Parquet can read.

A row per image that could be read: key (string), id (int64), clip_label (int32), clip_entropy
(float32) and feature (fixed_size_list<float16>[d]). What else is known stands in the file's
metadata under "soba": the fingerprints that must not be mixed, the images that could not be read,
and a digest of all of it. The same rows make the same bytes, however they were cut into batches
(by one version of pyarrow, which signs its files). A file appears when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from soba._files import parse_json, replacing
from soba.encode._parquet import open_parquet, parquet_writer, pyarrow, valid_text

_ROWS = 8192  # of a row group
_NOTE = b"soba"
_REASON = 200  # characters that are kept of what was wrong with an image
_COMPRESSED = ("key", "id", "clip_label")  # the other columns are noise to a compressor


@dataclass(frozen=True)
class ShardMeta:
    """What the features of a shard are, so that what does not belong together is not mixed.

    Parameters
    ----------
    dim
        Of the features.
    encoder_fingerprint, templates_fingerprint
        Of what made the features, and of the prompts that made the text features.
    logit_scale
        With which labels and entropies were computed.
    class_digest
        Of the class names, in their order: see `digest_of_names`.
    id_space
        In which the ids are unique.
    source_stamp
        Of the shard of images: `soba.encode.shards.SourceShard.stamp`.
    """

    dim: int
    encoder_fingerprint: str
    templates_fingerprint: str
    logit_scale: float
    class_digest: str
    id_space: str
    source_stamp: str


class Broken(NamedTuple):
    """An image that could not be read."""

    id: int
    key: str
    error: str


class FeatureRows(NamedTuple):
    """A batch to write: what is known of the images that could be read, and of the others."""

    keys: list[str]
    ids: np.ndarray  # (n,) int64, rising from row to row and from batch to batch
    clip_labels: np.ndarray  # (n,) int32
    clip_entropies: np.ndarray  # (n,) float32
    features: np.ndarray  # (n, d); see `as_stored`
    broken: tuple[Broken, ...] = ()


class FeatureBlock(NamedTuple):
    """Some rows of a file."""

    keys: list[str]
    ids: np.ndarray  # (n,) int64
    features: np.ndarray  # (n, d) float32


def as_stored(features: np.ndarray) -> np.ndarray:
    """Features as they will be read back, float32 after a turn through float16.

    Labels and entropies of these, and not of the finer rows, are those that anybody computes from
    the file.

    Examples
    --------
    >>> as_stored(np.array([[1 / 3]]))
    array([[0.33325195]], dtype=float32)
    """
    return np.asarray(features, np.float16).astype(np.float32)


def digest_of_names(names: Iterable[str]) -> str:
    """Of class names in their order.

    Examples
    --------
    >>> digest_of_names(["cat", "dog"])
    '59b0e1e99669dc03'
    """
    content = json.dumps(list(names)).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def write_feature_shard(
    path: str | os.PathLike[str], batches: Iterable[FeatureRows], meta: ShardMeta
) -> FeatureShard:
    """Write batches as they come to a file that appears when the last one is in it.

    One row group is held at a time. Returns what `read_feature_shard` reads.
    """
    schema = _schema(meta.dim)
    content, broken = _Content(), list[Broken]()
    with (
        replacing(path) as temporary,
        parquet_writer(temporary, schema, compressed=_COMPRESSED) as writer,
    ):
        for table in _row_groups(_tables(batches, meta.dim, broken), schema):
            content.add(table)
            writer.write_table(table, row_group_size=_ROWS)
        note = _note(meta, content.rows, broken)
        text = json.dumps(note | {"digest": content.digest(note)}, sort_keys=True)
        writer.add_key_value_metadata({_NOTE: text})
    return read_feature_shard(path)


def read_feature_shard(path: str | os.PathLike[str]) -> FeatureShard:
    """A feature file, opened; its rows are read, and verified, as `FeatureShard.blocks`."""
    target = Path(path)
    if not target.is_file():
        raise FileNotFoundError(f"{target}: not found")
    try:
        with open_parquet(target) as file:
            return _checked(target, file)
    except ImportError:
        raise
    except Exception as error:  # pyarrow raises many kinds, all about the file
        raise ValueError(f"{target}: not a readable feature file ({error})") from error


@dataclass(frozen=True)
class FeatureShard:
    """A feature file.

    Attributes
    ----------
    meta
        What the features are.
    broken
        The images that could not be read, and have no row.
    digest
        Of all that is in the file.
    """

    path: Path
    meta: ShardMeta
    broken: tuple[Broken, ...]
    digest: str
    n_rows: int

    def __len__(self) -> int:
        return self.n_rows

    def blocks(self, rows: int = _ROWS) -> Iterator[FeatureBlock]:
        """The rows in their order, at most so many at a time.

        Damage is a ValueError that names the file: at a page whose checksum is wrong, or after the
        last block if the rows are not those that were written.
        """
        if rows < 1:
            raise ValueError(f"rows must be at least 1, not {rows}")
        content = _Content()
        try:
            with open_parquet(self.path) as file:
                for batch in file.iter_batches(batch_size=rows, use_threads=False):
                    content.add(batch)
                    yield _block(batch)
        except (OSError, ValueError, TypeError, KeyError) as error:  # pyarrow's are among them
            raise ValueError(f"{self.path}: truncated or corrupted ({error})") from error
        if content.digest(_note(self.meta, self.n_rows, self.broken)) != self.digest:
            raise ValueError(f"{self.path}: corrupted, its rows are not those that were written")

    def check(self) -> None:
        """Read all of it, and raise a ValueError if it is damaged."""
        for _ in self.blocks():
            pass


class _Content:
    """A digest of rows that does not depend on how they were cut."""

    def __init__(self) -> None:
        self.rows = 0
        self._columns = {name: hashlib.blake2b() for name in _COLUMNS}

    def add(self, table: Any) -> None:
        self.rows += table.num_rows
        for name, digest in self._columns.items():
            column = table.column(name)
            if name == "key":
                for key in column.to_pylist():
                    word = key.encode()
                    digest.update(len(word).to_bytes(8, "little") + word)
            elif name == "feature":
                digest.update(_features(table).tobytes())
            else:
                digest.update(column.to_numpy(zero_copy_only=False).tobytes())

    def digest(self, note: dict[str, Any]) -> str:
        """Of the rows, and of what stands in the metadata."""
        whole = hashlib.blake2b(json.dumps(note, sort_keys=True).encode(), digest_size=32)
        for digest in self._columns.values():
            whole.update(digest.digest())
        return whole.hexdigest()


_COLUMNS = ("key", "id", "clip_label", "clip_entropy", "feature")


def _schema(dim: int) -> Any:
    arrow = pyarrow()
    kinds = (
        arrow.string(),
        arrow.int64(),
        arrow.int32(),
        arrow.float32(),
        arrow.list_(arrow.float16(), dim),
    )
    columns = zip(_COLUMNS, kinds, strict=True)
    return arrow.schema([arrow.field(name, kind, nullable=False) for name, kind in columns])


def _tables(batches: Iterable[FeatureRows], dim: int, broken: list[Broken]) -> Iterator[Any]:
    """Each batch, checked, as a table; what could not be read is added to `broken`."""
    arrow, schema, last = pyarrow(), _schema(dim), -1
    for batch in batches:
        features = np.asarray(batch.features, np.float16).reshape(len(batch.keys), dim)
        ids = np.asarray(batch.ids, np.int64)
        if len(ids) and (ids[0] <= last or (np.diff(ids) <= 0).any()):
            raise ValueError("ids must rise from row to row, 0 or more")
        if not np.isfinite(features).all():
            raise ValueError("features must be finite in half precision")
        last = int(ids[-1]) if len(ids) else last
        broken += (
            Broken(int(each.id), valid_text(each.key), valid_text(each.error)[:_REASON])
            for each in batch.broken
        )
        columns = (
            arrow.array(map(valid_text, batch.keys), arrow.string()),
            arrow.array(ids),
            arrow.array(np.asarray(batch.clip_labels, np.int32)),
            arrow.array(np.asarray(batch.clip_entropies, np.float32)),
            arrow.FixedSizeListArray.from_arrays(arrow.array(features.reshape(-1)), dim),
        )
        yield arrow.Table.from_arrays(columns, schema=schema)


def _row_groups(tables: Iterable[Any], schema: Any) -> Iterator[Any]:
    """The same rows in tables of one size, so that batches leave no trace in the file."""
    arrow = pyarrow()
    held = schema.empty_table()
    for table in tables:
        held = arrow.concat_tables([held, table])
        while held.num_rows >= _ROWS:
            yield held.slice(0, _ROWS).combine_chunks()
            held = held.slice(_ROWS)
    if held.num_rows:
        yield held.combine_chunks()


def _checked(path: Path, file: Any) -> FeatureShard:
    text = (file.metadata.metadata or {}).get(_NOTE)
    if text is None:
        raise ValueError("its metadata has no entry of soba's")
    note = parse_json(text)
    meta = ShardMeta(**note["meta"])
    if not file.schema_arrow.equals(_schema(meta.dim)):
        raise ValueError("its columns are not those of features")
    if file.metadata.num_rows != note["rows"]:
        raise ValueError(f"{file.metadata.num_rows} rows, where {note['rows']} were written")
    broken = tuple(Broken(int(id_), str(key), str(error)) for id_, key, error in note["broken"])
    return FeatureShard(path, meta, broken, str(note["digest"]), int(note["rows"]))


def _note(meta: ShardMeta, rows: int, broken: Iterable[Broken]) -> dict[str, Any]:
    """What the digest covers besides the rows."""
    return {"meta": asdict(meta), "rows": rows, "broken": [list(each) for each in broken]}


def _block(batch: Any) -> FeatureBlock:
    return FeatureBlock(
        batch.column("key").to_pylist(),
        batch.column("id").to_numpy(zero_copy_only=False),
        _features(batch).astype(np.float32),
    )


def _features(table: Any) -> np.ndarray:
    """(n, d) float16."""
    column = table.column("feature")
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    values: np.ndarray = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(table.num_rows, column.type.list_size)
