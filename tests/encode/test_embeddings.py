import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from soba.encode.embeddings import count_embeddings, embedding_blocks


@pytest.fixture
def rows():
    return np.random.default_rng(0).normal(size=(25, 6)).astype(np.float32)


def joined(blocks):
    keys, arrays = zip(*blocks, strict=True)
    return [key for block in keys for key in block], np.concatenate(arrays)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8"])
def test_rows_come_as_unit_rows(tmp_path, rows, dtype):
    file = str(tmp_path / "features.npy")
    np.save(file, rows.astype(dtype))
    assert count_embeddings(file) == 25
    keys, features = joined(embedding_blocks(file, rows=10))
    assert keys == [f"{file}/{number}" for number in range(25)]
    assert features.dtype == np.float32
    expected = rows.astype(dtype).astype(np.float64)
    expected /= np.sqrt((expected**2).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(features, expected, atol=1e-6)


def test_rows_without_a_direction_are_nan_and_keep_their_places(tmp_path, rows):
    rows[3], rows[7, 2], rows[9, 1] = 0, np.nan, np.inf
    rows[11] = 1e30  # whose square is no float32
    np.save(tmp_path / "f.npy", rows)
    _, features = joined(embedding_blocks(str(tmp_path / "f.npy")))
    assert np.flatnonzero(np.isnan(features).all(axis=1)).tolist() == [3, 7, 9]
    np.testing.assert_allclose(np.linalg.norm(np.delete(features, [3, 7, 9], 0), axis=1), 1, 1e-6)


@pytest.mark.parametrize("column", ["key", "image_path", "url"])
def test_keys_of_a_table(tmp_path, rows, column):
    file, names = str(tmp_path / "f.npy"), [f"é{number}" for number in range(25)]
    np.save(file, rows)
    names[4] = ""
    table = pa.table({"caption": ["a, b"] * 25, column: names})
    pq.write_table(table, tmp_path / "f.parquet")
    lines = [f"caption,{column}", *(f'"a, b",{name}' for name in names)]
    (tmp_path / "f.csv").write_text("\n".join(lines), encoding="utf-8")
    for suffix in ("parquet", "csv"):
        keys, _ = joined(embedding_blocks(file, str(tmp_path / f"f.{suffix}"), rows=7))
        assert keys[:4] == names[:4] and keys[5:] == names[5:]
        assert keys[4] == f"{tmp_path}/f.{suffix}/4"


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros(5, np.float32), r"\(5,\) of float32"),
        (np.zeros((5, 4), np.int64), r"\(5, 4\) of int64"),
        (np.zeros((5, 0), np.float32), r"\(5, 0\)"),
        (np.asfortranarray(np.zeros((5, 4), np.float32)), "where features are rows of floats"),
        (np.array([[None]], object), r"of object"),
    ],
)
def test_arrays_that_are_no_features(tmp_path, array, why):
    np.save(tmp_path / "f.npy", array)
    with pytest.raises(ValueError, match=rf"f\.npy: .*{why}"):
        list(embedding_blocks(str(tmp_path / "f.npy")))


def test_what_is_damaged_is_named(tmp_path, rows):
    file = tmp_path / "f.npy"
    np.save(file, rows)
    content = file.read_bytes()
    for cut in (0, 5, 40, 200, len(content) - 1):
        file.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=r"f\.npy: (truncated|not a readable)"):
            list(embedding_blocks(str(file)))
    file.write_bytes(content)
    for count, why in ((24, "fewer"), (26, "more")):
        pq.write_table(pa.table({"key": ["k"] * count}), tmp_path / "f.parquet")
        with pytest.raises(ValueError, match=rf"f\.parquet: {why} rows than .*f\.npy, .* 25"):
            list(embedding_blocks(str(file), str(tmp_path / "f.parquet")))
    pq.write_table(pa.table({"caption": ["k"] * 25}), tmp_path / "f.parquet")
    with pytest.raises(ValueError, match=r"f\.parquet: .*needs a column key, .*has caption"):
        list(embedding_blocks(str(file), str(tmp_path / "f.parquet")))
    (tmp_path / "f.parquet").write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"f\.parquet: not a readable table"):
        list(embedding_blocks(str(file), str(tmp_path / "f.parquet")))
