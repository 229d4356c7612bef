import dataclasses
import itertools

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soba.encode import feature_shards
from soba.encode.feature_shards import (
    Broken,
    FeatureRows,
    ShardMeta,
    as_stored,
    digest_of_names,
    read_feature_shard,
    write_feature_shard,
)

DIM, ROWS = 8, 50
META = ShardMeta(DIM, "encoder-1", "templates-1", 100.0, "classes-1", "manifest-1", "stamp-1")
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(ROWS, DIM)) / 3
IDS = np.sort(RNG.choice(2**40, ROWS, replace=False))
LABELS, ENTROPIES = RNG.integers(0, 5, ROWS), RNG.random(ROWS)
BROKEN = (Broken(2**41, "caf\udce9.png", "not an image"), Broken(2**41 + 1, "b.png", "x" * 999))


def batches(cuts=(), broken=()):
    """All rows, cut at these places."""
    for start, stop in itertools.pairwise([0, *sorted(cuts), ROWS]):
        part = slice(start, stop)
        yield FeatureRows(
            [f"é{row}.png" for row in range(start, stop)],
            IDS[part],
            LABELS[part],
            ENTROPIES[part],
            FEATURES[part],
            broken,
        )
        broken = ()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "000.parquet"


def joined(shard, rows):
    blocks = list(shard.blocks(rows))
    assert all(1 <= len(block.ids) <= rows for block in blocks)
    keys = [key for block in blocks for key in block.keys]
    return keys, np.concatenate([b.ids for b in blocks]), np.concatenate([b[2] for b in blocks])


@pytest.mark.parametrize("rows", [1, 7, 50, 1000])
def test_what_was_written_is_read(path, rows):
    written = write_feature_shard(path, batches([20], BROKEN), META)
    shard = read_feature_shard(path)
    assert shard == written and shard.meta == META and len(shard) == ROWS
    keys, ids, features = joined(shard, rows)
    assert keys == [f"é{row}.png" for row in range(ROWS)]
    assert ids.dtype == np.int64 and (ids == IDS).all()
    assert features.dtype == np.float32 and (features == as_stored(FEATURES)).all()
    assert shard.broken[0] == (2**41, "caf\\udce9.png", "not an image")
    assert shard.broken[1].error == "x" * 200


def test_anybody_reads_it(path):
    write_feature_shard(path, batches(), META)
    schema = pq.read_schema(path)
    assert schema.names == ["key", "id", "clip_label", "clip_entropy", "feature"]
    assert schema.field("feature").type == pa.list_(pa.float16(), DIM)
    best = duckdb.sql(
        f"select id from '{path}' qualify row_number() over "
        "(partition by clip_label order by clip_entropy, id) <= 3 order by id"
    ).fetchall()
    entropies = ENTROPIES.astype(np.float32)
    expected = [
        IDS[row]
        for label in range(5)
        for row in sorted(np.flatnonzero(label == LABELS), key=lambda row: entropies[row])[:3]
    ]
    assert [row for (row,) in best] == sorted(expected)


@settings(max_examples=25)
@given(st.lists(st.integers(0, ROWS), max_size=6))
def test_the_same_rows_make_the_same_bytes_however_they_were_cut(tmp_path_factory, cuts):
    folder = tmp_path_factory.mktemp("cuts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_shards, "_ROWS", 16)  # several row groups
        write_feature_shard(folder / "a.parquet", batches(broken=BROKEN), META)
        write_feature_shard(folder / "b.parquet", batches(cuts, BROKEN), META)
    assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()
    assert pq.ParquetFile(folder / "a.parquet").num_row_groups == 4


def test_other_rows_and_other_settings_have_another_digest(path):
    digests = {write_feature_shard(path, batches(), META).digest}
    for field, value in dataclasses.asdict(META).items():
        if field != "dim":
            other = dataclasses.replace(META, **{field: value + type(value)(1)})
            digests.add(write_feature_shard(path, batches(), other).digest)
    digests.add(write_feature_shard(path, batches(broken=BROKEN), META).digest)
    [rows] = batches()
    for field in ("ids", "clip_labels", "clip_entropies", "features"):
        changed = rows._replace(**{field: getattr(rows, field) + 1})
        digests.add(write_feature_shard(path, [changed], META).digest)
    changed = rows._replace(keys=["é0.pngé1.png", "", *rows.keys[2:]])
    digests.add(write_feature_shard(path, [changed], META).digest)
    assert len(digests) == 1 + 6 + 1 + 4 + 1


def test_a_shard_without_a_row(path):
    shard = write_feature_shard(path, [], META)
    assert len(shard) == 0 and list(shard.blocks()) == [] and shard.broken == ()
    [rows] = batches(broken=BROKEN)
    none = FeatureRows([], IDS[:0], LABELS[:0], ENTROPIES[:0], FEATURES[:0], BROKEN)
    assert len(write_feature_shard(path, [none], META).broken) == 2
    assert len(write_feature_shard(path, [none, rows], META)) == ROWS


def test_wherever_it_is_cut_off_it_is_refused_by_name(path):
    write_feature_shard(path, batches(), META)
    content = path.read_bytes()
    for cut in range(0, len(content), 64):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=r"000\.parquet: "):
            read_feature_shard(path).check()
    with pytest.raises(FileNotFoundError, match=r"none\.parquet: not found"):
        read_feature_shard(path.with_name("none.parquet"))


def test_a_flipped_bit_is_noticed_or_changes_nothing(path):
    write_feature_shard(path, batches(broken=BROKEN), META)
    expected, content = joined(read_feature_shard(path), 1000), path.read_bytes()
    shard, refused = read_feature_shard(path), 0
    for place in range(0, len(content), 11):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            flipped = read_feature_shard(path)
            keys, ids, features = joined(flipped, 1000)
        except ValueError as error:
            assert "000.parquet: " in str(error)
            refused += 1
            continue
        assert flipped == shard and keys == expected[0]  # it was in a word that nobody reads
        assert (ids == expected[1]).all() and (features == expected[2]).all()
    assert refused > len(content) / 11 / 2


def test_rows_that_were_exchanged_are_noticed_after_the_last(path):
    """All pages of such a file are sound."""
    write_feature_shard(path, batches(), META)
    table = pq.read_table(path)
    note = pq.read_metadata(path).metadata[b"soba"]
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table.take([1, 0, *range(2, ROWS)]))
        writer.add_key_value_metadata({b"soba": note})
    blocks = read_feature_shard(path).blocks(10)
    assert len(list(itertools.islice(blocks, 5))) == 5
    with pytest.raises(ValueError, match=r"000\.parquet: corrupted, its rows are not those"):
        next(blocks)


def test_files_of_others_are_refused(path):
    pq.write_table(pa.table({"key": ["a"]}), path)
    with pytest.raises(ValueError, match=r"000\.parquet: not a readable feature file \(its meta"):
        read_feature_shard(path)
    table = pa.table({"key": ["a"]}).replace_schema_metadata({"soba": '{"meta": {"dim": 3}}'})
    pq.write_table(table, path)
    with pytest.raises(ValueError, match=r"000\.parquet: not a readable feature file"):
        read_feature_shard(path)
    with pytest.raises(ValueError, match="rows must be at least 1"):
        next(write_feature_shard(path, batches(), META).blocks(0))


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("ids", IDS[::-1], "ids must rise"),
        ("ids", np.zeros(ROWS, np.int64), "ids must rise"),
        ("ids", IDS - 2**41, "ids must rise from row to row, 0 or more"),
        ("features", FEATURES * np.nan, "finite"),
        ("features", FEATURES * 1e9, "finite in half precision"),
        ("features", FEATURES[:, :3], "reshape"),
        ("clip_labels", LABELS[:3], "length"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_bad_rows_leave_the_file_as_it_was(path, field, value, why):
    write_feature_shard(path, batches([5]), META)
    before = path.read_bytes()
    [rows] = batches()
    with pytest.raises(ValueError, match=why):
        write_feature_shard(path, [rows._replace(**{field: value})], META)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_ids_rise_across_batches(path):
    first, second = batches([25])
    with pytest.raises(ValueError, match="ids must rise"):
        write_feature_shard(path, [second, first], META)
    assert not path.exists()


def test_a_stream_that_breaks_off_leaves_nothing(path):
    def failing():
        yield from batches()
        raise RuntimeError("the machine is gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_feature_shard(path, failing(), META)
    assert list(path.parent.iterdir()) == []


def test_a_row_group_is_held_at_a_time(path, monkeypatch):
    monkeypatch.setattr(feature_shards, "_ROWS", 10)
    written = []
    write = pq.ParquetWriter.write_table

    def watched(self, table, **settings):
        written.append(table.num_rows)
        return write(self, table, **settings)

    def watching():
        for number, batch in enumerate(batches(range(5, ROWS, 5))):
            assert sum(written) >= 5 * number - 10
            yield batch

    monkeypatch.setattr(pq.ParquetWriter, "write_table", watched)
    write_feature_shard(path, watching(), META)
    assert written == [10] * 5


def test_the_order_of_class_names_counts():
    names = ["cat", "dog", "catdog"]
    assert digest_of_names(names) == digest_of_names(tuple(names))
    assert len({digest_of_names(order) for order in itertools.permutations(names)}) == 6
    assert digest_of_names(["a", "b"]) != digest_of_names(["ab"])
