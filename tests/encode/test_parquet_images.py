import itertools
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archives import hugging_face, png

from soba.encode.images import list_images
from soba.encode.parquet_images import count_rows, image_column
from soba.encode.pictures import NoPicture


def listed(path):
    """(name, problem) of each row."""
    return [(each.name, getattr(each, "problem", "")) for each in list_images(path)]


def test_hugging_faces_layout(tmp_path):
    file = tmp_path / "train.parquet"
    hugging_face(file, [png(number) for number in range(7)], row_group_size=3)
    assert listed(file) == [(f"{file}/{number}.png", "") for number in range(7)]
    assert count_rows(str(file)) == 7
    for number, picture in enumerate(list_images(file)):
        assert picture.open().getpixel((0, 0)) == (number, 40, 90)
        [alone] = list_images(png(number))
        alone.open()
        assert alone.content_id == picture.content_id


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_column_of_bytes(tmp_path, kind):
    file = tmp_path / "rows.parquet"
    contents = pa.array([png(1), None, b"", b"no picture"], kind)
    pq.write_table(pa.table({"jpg": contents, "thumbnail": contents}), file)
    names = [f"{file}/{number}" for number in range(4)]
    missing = "no image in this row"
    assert listed(file) == list(zip(names, ["", missing, missing, ""], strict=True))
    keyed = pa.table({"bytes": contents, "url": ["a", "b", None, ""], "width": [1, 2, 3, 4]})
    pq.write_table(keyed, file)
    assert [name for name, _ in listed(file)] == [f"{file}/{key}" for key in ("a", "b", "2", "3")]
    torn = list(list_images(file))[3]
    with pytest.raises(OSError, match="cannot identify"):
        torn.open()


def test_rows_without_an_image_in_hugging_faces_layout(tmp_path):
    file = tmp_path / "gaps.parquet"
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = [None, {"bytes": None, "path": "b.png"}, {"bytes": png(1), "path": None}]
    pq.write_table(pa.table({"image": pa.array(images, kind)}), file)
    problem = "no image in this row"
    assert listed(file) == [
        (f"{file}/0", problem),
        (f"{file}/b.png", problem),
        (f"{file}/2", ""),
    ]


@pytest.mark.parametrize(
    ("columns", "answer"),
    [
        ({"x": pa.binary()}, "x"),
        ({"x": pa.binary(), "image": pa.binary(), "label": pa.int64()}, "image"),
        ({"mask": pa.binary(), "WEBP": pa.binary()}, "WEBP"),
        ({"a": pa.string(), "b": pa.int64()}, ValueError("no column of image bytes among a, b")),
        ({"x": pa.binary(), "y": pa.binary()}, ValueError("which column holds the images")),
        ({"jpg": pa.binary(), "png": pa.binary()}, ValueError("jpg, png hold bytes")),
        ({"s": pa.struct({"path": pa.string()})}, ValueError("no column of image bytes among s")),
    ],
)
def test_which_column(tmp_path, columns, answer):
    schema = pa.schema(columns)
    if isinstance(answer, str):
        assert image_column(schema).name == answer
        return
    with pytest.raises(ValueError, match=str(answer)):
        image_column(schema)
    file = tmp_path / "wrong.parquet"
    pq.write_table(schema.empty_table(), file)
    [(name, problem)] = listed(file)
    assert name == str(file) and str(answer) in problem


def test_a_damaged_row_group_costs_its_own_rows_and_no_others(tmp_path):
    file = tmp_path / "damaged.parquet"
    hugging_face(
        file,
        [png(number) for number in range(9)],
        row_group_size=3,
        write_page_checksum=True,
        compression="none",
        write_statistics=False,  # they repeat some of the pictures
        use_dictionary=False,
    )
    content = bytearray(file.read_bytes())
    content[content.index(png(4)) + 20] ^= 255
    file.write_bytes(content)
    pictures = listed(file)
    assert [bool(problem) for _, problem in pictures] == [False] * 3 + [True] * 3 + [False] * 3
    assert pictures[4][0] == f"{file}/4" and "its row group cannot be read" in pictures[4][1]


def test_cut_off_it_is_one_error(tmp_path):
    file = tmp_path / "cut.parquet"
    hugging_face(file, [png(1)])
    content = file.read_bytes()
    for cut in (0, 3, 50, len(content) - 1):
        file.write_bytes(content[:cut])
        [picture] = list_images(file)
        assert isinstance(picture, NoPicture) and picture.name == str(file) and picture.problem
        assert count_rows(str(file)) is None


def test_rows_are_read_as_they_are_asked_for(tmp_path, monkeypatch):
    file = tmp_path / "large.parquet"
    hugging_face(file, [png(number % 200) for number in range(400)], row_group_size=100)
    groups = []
    read = pq.ParquetFile.iter_batches

    def watched(self, rows, *, row_groups, **settings):
        groups.extend(row_groups)
        return read(self, rows, row_groups=row_groups, **settings)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    pictures = list_images(file)
    assert len(list(itertools.islice(pictures, 120))) == 120
    assert groups == [0, 1]


def test_by_url(store, tmp_path):
    file = tmp_path / "a.parquet"
    hugging_face(file, [png(1), png(2)])
    url = store.put("a.parquet", file.read_bytes())
    assert listed(url) == [(f"{url}/0.png", ""), (f"{url}/1.png", "")]
    assert listed(f"file://{file}") == [(f"file://{file}/{n}.png", "") for n in range(2)]


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    file = tmp_path / "a.parquet"
    hugging_face(file, [png(1)])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install 'soba-tta\[sources\]'"):
        list(list_images(file))
