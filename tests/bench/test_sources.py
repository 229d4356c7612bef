"""Folders of anyone's as data sets: what they are called, and what is wrong with them."""

import pickle

import pytest
from PIL import Image

from soba.bench.plan import Plan
from soba.bench.sources import Folders


@pytest.fixture
def tree(tmp_path):
    """Two classes of two grey patches each, as folders and as a table."""
    for word in ("black", "dark_grey"):
        (tmp_path / "patches" / word).mkdir(parents=True)
        for number in range(2):
            Image.new("L", (8, 8)).save(tmp_path / "patches" / word / f"{number}.png")
    lines = ["path,label", "patches/black/0.png,black", "patches/dark_grey/1.png,grey"]
    (tmp_path / "listed.csv").write_text("\n".join(lines))
    return tmp_path


def test_class_folders_and_tables_are_data_sets(tree):
    source = Folders((tree / "patches", tree / "listed.csv"))
    assert source.datasets == ("patches", "listed")
    assert source.class_ids("patches") == ("black", "dark grey")
    assert source.images("patches", "test").labels.tolist() == [0, 0, 1, 1]
    assert source.class_ids("listed") == ("black", "grey")
    assert len(source.images("listed", "test")) == 2
    assert Plan(source, ("zero-shot", "soba+"), tune_on="listed").problems() == []
    sent = pickle.loads(pickle.dumps(source))
    assert (
        sent == source
        and sent.images("patches", "test").keys == source.images("patches", "test").keys
    )
    assert len(pickle.dumps(source)) == len(pickle.dumps(Folders(source.paths)))  # no listing


def test_what_is_wrong_with_a_folder_is_told(tree):
    def problems(*paths, methods=("zero-shot",), **settings):
        return Plan(Folders(tuple(tree / path for path in paths)), methods, **settings).problems()

    (tree / "empty").mkdir()
    (tree / "bare.csv").write_text("path\npatches/black/0.png")
    (tree / "mixed" / "one").mkdir(parents=True)
    for place in ("mixed/a.png", "mixed/one/b.png"):
        Image.new("L", (8, 8)).save(tree / place)
    assert "has no labels" in problems("patches/black")[0]
    assert "has no labels" in problems("bare.csv")[0]
    assert problems("empty") == [f"{(tree / 'empty').resolve()}: holds no images"]
    assert problems("mixed")[0].endswith("holds both images and folders of images")
    assert "not a folder" in problems("nowhere")[0]
    for needs in ({"methods": ("gda",)}, {"methods": ("tda",), "tune_on": "val"}):
        [problem] = problems("patches", **needs)
        assert problem.startswith("patches: has only a test split")


def test_a_train_folder_is_for_few_shot_methods_only(tree):
    for word in ("Black", "DARK GREY", "white"):
        (tree / "labelled" / word).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (8, 8)).save(tree / "labelled" / word / f"{number}.png")
    source = Folders((tree / "patches",), tree / "labelled", shots=2)
    assert source.datasets == ("patches",) and not source.knows("labelled")
    assert Plan(source, ("zero-shot", "gda", "coop")).problems() == []
    assert source.train_set("patches", transfer=True) == "labelled"
    few = source.images("labelled", "train")
    assert few.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.class_ids("labelled") == ("black", "dark grey", "white")

    # The table calls its second class "grey", and nobody has shown the methods what that is.
    both = Folders((tree / "patches", tree / "listed.csv"), tree / "labelled")
    [problem] = Plan(both, ("gda",)).problems()
    assert "listed" in problem and "'grey'" in problem
    assert Plan(both, ("soba",)).problems() == []
    with pytest.raises(ValueError, match="tested on what they learned"):
        Folders((tree / "patches",), tree / "deeper" / ".." / "patches")
    (tree / "other" / "patches").mkdir(parents=True)
    with pytest.raises(ValueError, match="have one name"):
        Folders((tree / "patches",), tree / "other" / "patches")


def test_names_tell_folders_apart(tree):
    with pytest.raises(ValueError, match="have one name"):
        Folders((tree / "patches", tree / "elsewhere" / "patches"))
    with pytest.raises(ValueError, match="no folder"):
        Folders(())
