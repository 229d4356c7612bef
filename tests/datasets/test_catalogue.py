"""The catalogue: names, groups, and that its facts are those of the real metadata."""

import json

import pytest
from conftest import REAL_DATA

from soba.adapt.tda import TDA
from soba.bench.paper import quoted
from soba.datasets import GROUPS, NAMES, check, class_names, load
from soba.datasets._facts import catalogue, coop_class_names, imagenet_classes


def metadata(name):
    path = REAL_DATA / "metadata" / name
    if not path.is_file():
        pytest.skip(f"no metadata at {path}; set SOBA_REAL_DATA")
    return json.loads(path.read_text())


def test_fifteen_sets_in_two_groups():
    assert len(NAMES) == 15
    assert GROUPS["ood"] + GROUPS["cross"] == NAMES
    assert [len(GROUPS[group]) for group in ("ood", "cross")] == [5, 10]
    for name in NAMES:  # the same names as elsewhere
        assert TDA.card.paper.constants_for(name)


def test_sizes_are_the_papers_but_for_its_two_slips():
    differing = {}
    for row in quoted(table="datasets"):
        facts = catalogue()[row.dataset]
        ours = facts.classes if row.unit == "classes" else facts.sizes["test"]
        if ours != row.value:
            differing[row.dataset] = (ours, row.value)
    assert differing == {"imagenet-sketch": (50889, 50000), "caltech101": (100, 101)}


@pytest.mark.parametrize("name", NAMES)
def test_as_many_names_as_classes(name):
    names = class_names(name)
    assert len(names) == catalogue()[name].classes
    assert not any("_" in words or words != words.strip() for words in names)


def test_imagenet_names_and_subsets_are_the_real_ones():
    classes = imagenet_classes()
    assert [row.wnid for row in classes] == metadata("imagenet_wnids.json")
    assert [row.name for row in classes] == metadata("imagenet_classes.json")
    assert [row.wnid for row in classes if row.in_r] == metadata("imagenet_r_wnids.json")
    position = metadata("imagenet_a_thousand_to_200.json")
    in_a = [label for label, row in enumerate(classes) if row.in_a]
    assert in_a == [label for label in range(1000) if position[str(label)] >= 0]
    assert [position[str(label)] for label in in_a] == list(range(200))


def test_cross_dataset_names_are_the_real_ones():
    real = metadata("cross_dataset_classnames.json")
    for name in GROUPS["cross"]:
        key = "flower102" if name == "flowers102" else name
        assert list(coop_class_names(name)) == real[f"{key}_classes"]


@pytest.mark.parametrize("name", ["food101", "dtd"])
def test_sets_that_coop_lists_by_folder_are_in_the_order_of_their_folders(name):
    """Their labels count the sorted folders; TPT's list has two of Food101's names swapped."""
    names = coop_class_names(name)
    assert list(names) == sorted(names)
    if name == "food101":
        assert (names[16], names[17]) == ("cheese_plate", "cheesecake")


def test_unknown_names_and_splits(tmp_path):
    with pytest.raises(
        ValueError, match=r"unknown data set 'flower102'. Did you mean 'flowers102'"
    ):
        load("flower102", tmp_path)
    with pytest.raises(ValueError, match="split must be one of train, val, test, not 'dev'"):
        load("dtd", tmp_path, "dev")
    with pytest.raises(ValueError, match="nowhere: not a folder"):
        check("dtd", tmp_path / "nowhere")


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_root_says_what_was_looked_for(name, tmp_path):
    problems = check(name, tmp_path)
    for place in catalogue()[name].images:
        assert place.format(split="val").split("/")[0] in " ".join(problems)
