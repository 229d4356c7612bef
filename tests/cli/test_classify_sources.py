"""`soba classify` of tars, Parquet files, lists and URLs answers as it does the same folder."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from archives import hugging_face, tar_content
from run_cli import refused, soba_command

import soba
from soba.datasets.icons import icons
from soba.encode.images import list_images

CLASSES = icons("source", per_class=1).class_names[:4]


def answered(*sources, output, transductive=False):
    """The lines of answers to these sources."""
    extra = ["--transductive"] if transductive else []
    classes = ["--classes", ",".join(CLASSES)]
    soba_command("classify", *sources, *classes, *extra, "--batch", 16, "-o", output)
    return list(map(json.loads, output.read_text().splitlines()))


def agree(ones, others):
    """Whether answers are the same but for the images' names."""
    return [one | {"image": ""} for one in ones] == [other | {"image": ""} for other in others]


@pytest.fixture(scope="module")
def plain(icon_stream, tmp_path_factory):
    return answered(icon_stream, output=tmp_path_factory.mktemp("answers") / "plain.jsonl")


@pytest.fixture(scope="module")
def contents(icon_stream):
    return {path.name: path.read_bytes() for path in sorted(icon_stream.iterdir())}


def test_a_tar_is_answered_as_the_folder_is(tmp_path, contents, plain, icon_stream):
    tar = tmp_path / "shard.tar"
    tar.write_bytes(tar_content(contents.items()))
    lines = answered(tar, output=tmp_path / "out.jsonl")
    assert agree(lines, plain)
    assert [line["image"] for line in lines] == [f"{tar}/{name}" for name in contents]
    for number in range(2):
        half = list(contents.items())[24 * number : 24 * (number + 1)]
        (tmp_path / f"part-{number}.tar.gz").write_bytes(tar_content(half, "w:gz"))
    braces = tmp_path / "part-{0..1}.tar.gz"
    assert agree(answered(braces, output=tmp_path / "out.jsonl"), plain)
    whole = answered(icon_stream, output=tmp_path / "out.jsonl", transductive=True)
    assert agree(answered(tar, output=tmp_path / "out.jsonl", transductive=True), whole)


def test_a_parquet_file_is_answered_as_the_folder_is(tmp_path, contents, plain):
    hugging_face(tmp_path / "photos.parquet", contents.values(), row_group_size=10)
    assert agree(answered(tmp_path / "photos.parquet", output=tmp_path / "out.jsonl"), plain)


def test_lists_and_urls_are_answered_as_the_folder_is(tmp_path, store, contents, plain):
    for name, content in contents.items():
        store.put(f"photos/{name}", content)
    urls = [f"{store.url}/photos/{name}" for name in contents]
    text = tmp_path / "list.txt"
    text.write_text("\n".join(urls))
    for source in (text, f"{store.url}/photos", f"{store.url}/photos/*.png"):
        lines = answered(source, output=tmp_path / "out.jsonl")
        assert agree(lines, plain)
        assert [line["image"] for line in lines] == urls
    classifier = soba.Classifier("tiny", CLASSES)
    answers = list(classifier.classify(f"{store.url}/photos/*.png", batch=16))
    assert [answer.label for answer in answers] == [line["label"] for line in plain]


def test_broken_members_are_answers_with_their_errors(tmp_path, contents):
    members = list(contents.items())[:6]
    members[2] = (members[2][0], b"no picture")
    tar = tmp_path / "cut.tar"
    content = tar_content(members)
    tar.write_bytes(content[: content.index(members[4][1]) + 10])
    output = tmp_path / "out.jsonl"
    command = ["classify", tar, "--classes", ",".join(CLASSES), "-o", output]
    printed = soba_command(*command)
    assert "3 images" in printed and "truncated or corrupted" in printed
    lines = list(map(json.loads, output.read_text().splitlines()))
    errors = {line["image"]: line["error"] for line in lines if line["error"]}
    assert len(lines) == 5
    assert errors == {
        f"{tar}/{members[2][0]}": "not an image of a known format",
        str(tar): "truncated or corrupted (unexpected end of data)",
    }


def test_answers_in_parquet(tmp_path, icon_stream, plain):
    output = tmp_path / "answers.parquet"
    soba_command(
        "classify", icon_stream, "--classes", ",".join(CLASSES), "--batch", 16, "-o", output
    )
    table = pq.read_table(output)
    assert table["key"].to_pylist() == [line["image"] for line in plain]
    assert table["label"].to_pylist() == [line["label"] for line in plain]
    shares = [line["probability"] for line in plain]
    np.testing.assert_allclose(table["probability"].to_pylist(), shares, atol=1e-4)
    pictures = list(list_images(icon_stream))
    for picture in pictures:
        picture.open()
    assert table["id"].to_pylist() == [picture.content_id for picture in pictures]


def test_bad_sources_are_one_line(tmp_path):
    classes = ["--classes", ",".join(CLASSES)]
    assert "none.tar: not there" in refused("classify", tmp_path / "none.tar", *classes)
    line = refused("classify", "nowhere://a/*.png", *classes)
    assert "Protocol not known: nowhere" in line
    (tmp_path / "empty.tar").write_bytes(tar_content([]))
    line = refused("classify", tmp_path / "empty.tar", *classes)
    assert "none of the images could be read" in line
    parquet = tmp_path / "a.parquet"
    hugging_face(parquet, [b"no picture"])
    line = refused("classify", parquet, *classes, "-o", parquet)
    assert "a.parquet: is read by this run" in line
