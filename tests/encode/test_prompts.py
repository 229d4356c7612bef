"""Templates by name and from files, class names, and the classifier against a slow loop."""

import json
import zlib

import numpy as np
import pytest

from soba.adapt.tda import TDA
from soba.encode.prompts import classifier, fill, list_templates, read_class_names, templates

DATASETS = list_templates()[4:]


def hashed(texts):
    """A stand-in text tower: every sentence its own direction and length."""
    seeds = [zlib.crc32(text.encode()) for text in texts]
    return np.stack(
        [np.random.default_rng(seed).normal(size=16) * (seed % 7 + 1) for seed in seeds]
    )


@pytest.mark.parametrize("name", list_templates())
def test_named_sets_are_whole(name):
    sentences = templates(name)
    assert sentences and all(template.count("{}") == 1 for template in sentences)
    assert len(set(sentences)) == len(sentences)


def test_named_sets_are_those_of_the_papers():
    assert templates("single") == ("a photo of a {}.",)
    assert len(templates("seven")) == len(templates("icon")) == 7
    assert len(templates("eighty")) == 80
    assert set(templates("seven")) <= set(templates("eighty"))
    assert templates("imagenet") == templates("sun397") == templates("seven")
    assert templates("imagenet-r") == templates("eighty")
    assert templates("ucf101") == ("a photo of a person doing {}.",)


def test_every_data_set_of_the_paper_has_templates():
    assert len(DATASETS) == 15
    for name in DATASETS:
        assert TDA.card.paper.constants_for(name)


def test_unknown_name_says_the_nearest():
    with pytest.raises(ValueError, match=r"Did you mean 'eurosat'.*Known: single, seven"):
        templates("eurosatt")


def test_a_file_of_templates(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("\ufeff# icons\n\n  a logo of a {}.  \na {} # sign\n", "utf-8")
    assert templates(path) == templates(str(path)) == ("a logo of a {}.", "a {} # sign")


def test_a_file_wins_over_a_name_only_as_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "single").write_text("my own {}\n")
    assert templates("single") == ("a photo of a {}.",)
    assert templates("./single") == templates(tmp_path / "single") == ("my own {}",)


@pytest.mark.parametrize("line", ["a photo.", "{} and {}", "a {0}", "a {} of {name}", "a {", "a }"])
def test_wrong_templates_in_a_file_are_named(tmp_path, line):
    path = tmp_path / "mine.txt"
    path.write_text(f"a {{}}.\n{line}\n")
    with pytest.raises(ValueError, match=r"mine\.txt, line 2: a template needs \{\} once"):
        templates(path)


def test_files_that_are_no_templates(tmp_path):
    (tmp_path / "empty").write_text("# nothing\n\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00{}")
    with pytest.raises(ValueError, match="empty: no templates"):
        templates(tmp_path / "empty")
    with pytest.raises(ValueError, match="bytes: not UTF-8"):
        templates(tmp_path / "bytes")


def test_fill():
    assert fill("{} texture.", "  sea_or_lake ") == "sea or lake texture."
    assert fill("a {}.", "a {} {0} name") == "a a {} {0} name."


@pytest.mark.parametrize("batch", [1, 3, 7, 1000])
def test_classifier_equals_a_slow_loop(batch):
    names, prompts = ["cat", "polar_bear", "dog", "T-shirt", "0"], templates("seven")
    expected = []
    for name in names:
        mean = np.zeros(16)
        for prompt in prompts:
            row = hashed([prompt.format(name.replace("_", " "))])[0]
            mean += row / np.sqrt((row**2).sum()) / len(prompts)
        expected.append(mean / np.sqrt((mean**2).sum()))
    sizes = []

    def encode(texts):
        sizes.append(len(texts))
        return hashed(texts)

    text = classifier(encode, names, prompts, batch=batch)
    assert text.dtype == np.float32 and text.shape == (5, 16)
    np.testing.assert_allclose(text, expected, atol=1e-7)
    assert max(sizes) <= batch and sum(sizes) == 35
    whole = classifier(hashed, names, prompts)
    np.testing.assert_allclose(text, whole, atol=1e-7)


@pytest.mark.parametrize(
    ("names", "prompts", "message"),
    [
        ([], ["{}"], "class_names: no class names"),
        (["a", "  "], ["{}"], r"class_names\[1\]: an empty"),
        (["a", "_"], ["{}"], r"class_names\[1\]: an empty"),
        (["hot dog", "cat", " hot_dog"], ["{}"], r"\[2\]: ' hot_dog' .*\[0\], 'hot dog'"),
        (["a"], [], "templates: there are none"),
        (["a"], ["{}", "photo"], r"templates\[1\]"),
    ],
)
def test_classifier_refuses(names, prompts, message):
    with pytest.raises(ValueError, match=message):
        classifier(hashed, names, prompts)


def test_one_string_is_no_list():
    with pytest.raises(TypeError, match="lists of strings"):
        classifier(hashed, "cat", ["{}"])
    with pytest.raises(TypeError, match="lists of strings"):
        classifier(hashed, ["cat"], "{}")
    with pytest.raises(TypeError, match=r"class_names\[1\].*not 3"):
        classifier(hashed, ["cat", 3], ["{}"])


def test_duplicates_on_request():
    text = classifier(hashed, ["missile", "cat", "missile"], ["{}"], allow_duplicates=True)
    np.testing.assert_allclose(text[0], text[2], atol=1e-7)


class Reader:
    """A text tower behind a tokenizer of its own."""

    def __init__(self, tokenize):
        self.tokenize = tokenize
        self.asked = []

    def tokens(self, texts):
        self.asked.append(len(texts))
        return np.array([self.tokenize(text) for text in texts])

    def encode_texts(self, texts):
        return hashed([str(row) for row in self.tokens(texts).tolist()])


def cased(text):
    return [ord(letter) for letter in text.ljust(40)[:40]]


def lower(text):
    return cased(text.lower())


def test_names_that_a_tokenizer_reads_alike_are_refused():
    names = ["Polish", "dog", "polish"]
    reader = Reader(lower)
    with pytest.raises(ValueError, match=r"'Polish' and 'polish': the same to this encoder"):
        classifier(reader.encode_texts, names, ["a {}.", "the {}."], batch=2)
    assert max(reader.asked) <= 2
    text = classifier(reader.encode_texts, names, ["{}"], allow_duplicates=True)
    np.testing.assert_array_equal(text[0], text[2])
    assert len(classifier(Reader(cased).encode_texts, names, ["a {}."])) == 3
    # Of a function nobody knows what it reads.
    with pytest.raises(ValueError, match="'Polish' and 'polish'"):
        classifier(hashed, names, ["{}"])


def test_a_template_that_is_cut_before_the_name_does_not_make_all_alike():
    long = "x" * 40 + " {}"
    with pytest.raises(ValueError, match="'cat' and 'dog'"):
        classifier(Reader(cased).encode_texts, ["cat", "dog"], [long])
    assert len(classifier(Reader(cased).encode_texts, ["cat", "dog"], [long, "{}"])) == 2


def test_what_an_encoder_may_not_give():
    with pytest.raises(ValueError, match="no direction for 'a b'"):
        classifier(lambda texts: np.array([[1.0, 0], [np.nan, 0]]), ["a", "b"], ["a {}"])
    with pytest.raises(ValueError, match="no direction for the mean over templates of 'a'"):
        classifier(lambda texts: np.array([[1.0, 0], [-1.0, 0]]), ["a"], ["a {}", "b {}"])
    with pytest.raises(ValueError, match=r"shape \(1, 16\) for 2 sentences"):
        classifier(lambda texts: hashed(texts[:1]), ["a", "b"], ["a {}"])


def test_class_names_from_files(tmp_path):
    (tmp_path / "names.txt").write_text("cat\r\n polar_bear\r\n# 1\r\n\r\n", "utf-8")
    assert read_class_names(tmp_path / "names.txt") == ("cat", "polar_bear", "# 1")
    (tmp_path / "names.json").write_text(json.dumps(["crème brûlée", "b"]), "utf-8")
    assert read_class_names(str(tmp_path / "names.json")) == ("crème brûlée", "b")
    (tmp_path / "twice.txt").write_text("sunglasses\nsunglasses\n")
    assert read_class_names(tmp_path / "twice.txt", allow_duplicates=True) == ("sunglasses",) * 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("n.txt", "", "n.txt: no class names"),
        ("n.txt", "a\n\nb\n", "n.txt, line 2: an empty"),
        ("n.txt", "a_b\nc\na b\n", "n.txt, line 3: 'a b' .*n.txt, line 1"),
        ("n.json", '["a", "a"]', "n.json, item 2: 'a'"),
        ("n.json", '["a", ""]', "n.json, item 2: an empty"),
        ("n.json", '{"a": 1}', "n.json: expected a list of strings"),
        ("n.json", '["a", 1]', "n.json: expected a list of strings"),
        ("n.json", '["a"', "n.json: not JSON"),
    ],
)
def test_wrong_class_names_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_class_names(tmp_path / name)
