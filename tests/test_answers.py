import csv
import json
import sys
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from PIL import Image

from soba.answers import Answer, check_format, write_answers

FINE = Answer("a.png", "cat", 0.75, (("cat", 0.75), ("dog", 0.25)), "dog", 0.6)
TORN = Answer("b.png", error="not an image")


def test_an_answer_is_a_value():
    assert Answer("b.png", error="not an image") == TORN
    assert len({FINE, TORN, TORN}) == 2
    with pytest.raises(AttributeError):
        FINE.label = "dog"


def test_csv_and_jsonl(tmp_path):
    write_answers(tmp_path / "out.csv", iter([FINE, TORN]))
    with (tmp_path / "out.csv").open(newline="") as file:
        fine, torn = csv.DictReader(file)
    assert fine == {
        "image": "a.png",
        "label": "cat",
        "probability": "0.7500",
        "zero_shot": "dog",
        "zero_shot_probability": "0.6000",
        "label_2": "dog",
        "probability_2": "0.2500",
        "label_3": "",
        "probability_3": "",
        "error": "",
    }
    assert {key: cell for key, cell in torn.items() if cell} == {
        "image": "b.png",
        "error": "not an image",
    }
    write_answers(tmp_path / "one.csv", [FINE], top=1)
    assert (tmp_path / "one.csv").read_text().splitlines()[1] == "a.png,cat,0.7500,dog,0.6000,"
    write_answers(tmp_path / "out.jsonl", [FINE, TORN])
    fine, torn = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert fine["top"] == [["cat", 0.75], ["dog", 0.25]] and fine["error"] is None
    assert torn == {
        "image": "b.png",
        "label": None,
        "probability": None,
        "top": [],
        "zero_shot": {"label": None, "probability": None},
        "error": "not an image",
    }


def test_parquet(tmp_path):
    odd = Answer("caf\udce9.png", "dog", 0.5, (("dog", 0.5),), "cat", 0.25, id=2**62 + 1)
    write_answers(tmp_path / "out.parquet", iter([FINE, TORN, odd]))
    table = pq.read_table(tmp_path / "out.parquet")
    fine, torn, odd_row = table.to_pylist()
    assert fine == {
        "key": "a.png",
        "id": None,
        "label": "cat",
        "probability": 0.75,
        "top": [{"label": "cat", "probability": 0.75}, {"label": "dog", "probability": 0.25}],
        "zero_shot": "dog",
        "zero_shot_probability": pytest.approx(0.6),
        "error": None,
    }
    assert torn == dict.fromkeys(fine) | {"key": "b.png", "error": "not an image"}
    assert (odd_row["key"], odd_row["id"]) == ("caf\\udce9.png", 2**62 + 1)
    write_answers(tmp_path / "again.parquet", [FINE, TORN, odd])
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "out.parquet").read_bytes()
    write_answers(tmp_path / "none.parquet", [])
    assert pq.read_table(tmp_path / "none.parquet").schema == table.schema


def test_parquet_is_written_as_answers_come(tmp_path):
    """Of the answers that were given, no more than a row group is held."""
    many = 20_000
    write_answers(tmp_path / "out.parquet", (replace(FINE, id=number) for number in range(many)))
    file = pq.ParquetFile(tmp_path / "out.parquet")
    assert file.num_row_groups > 1
    assert file.read(["id"])["id"].to_pylist() == list(range(many))


def test_without_pyarrow_parquet_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install 'soba-tta\[sources\]'"):
        check_format(tmp_path / "out.parquet")
    check_format(tmp_path / "out.csv")


def test_a_page_shows_the_pictures_that_lie_in_files(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    in_memory = Answer("image 1", "cat", 1.0, (("cat", 1.0),), "cat", 1.0)
    in_file = Answer(str(tmp_path / "a.png"), "<b>", 1.0, (("<b>", 1.0),), "cat", 0.6)
    write_answers(tmp_path / "out.html", [in_file, in_memory, TORN])
    page = (tmp_path / "out.html").read_text()
    assert "<h1>2 images</h1>" in page
    assert page.count("<figure") == 2 and page.count("data:image/jpeg") == 1
    assert page.count('class="card changed"') == 1
    assert "&lt;b&gt;" in page and "<b>" not in page
    assert "not an image" in page


def test_a_file_appears_when_it_is_whole(tmp_path):
    def failing():
        yield FINE
        raise RuntimeError("the stream broke off")

    for name in ("out.csv", "out.jsonl", "out.parquet", "out.html"):
        (tmp_path / name).write_text("precious")
        with pytest.raises(RuntimeError, match="broke off"):
            write_answers(tmp_path / name, failing())
        assert (tmp_path / name).read_text() == "precious"
    with pytest.raises(ValueError, match=r"out\.txt: answers are written as \.csv, \.jsonl"):
        write_answers(tmp_path / "out.txt", [FINE])
