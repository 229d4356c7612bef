import pytest

from soba.bench.grid_table import averages, cells, quoted_cells


def record(dataset, method, seed, accuracy, tuned_on="paper or given", **more):
    base = {"dataset": dataset, "method": method, "seed": seed, "accuracy": accuracy}
    return base | {"tuned_on": tuned_on} | more


RECORDS = [
    record("imagenet", "soba", 0, 60.0),
    record("imagenet", "soba", 1, 64.0),
    record("imagenet-a", "soba", 0, 20.0, "test labels"),
    record("imagenet-r", "soba", 0, 40.0),
    record("imagenet", "tda", 0, 61.0),
]


def test_means_spreads_and_leaks():
    found = cells(RECORDS)
    cell = found["imagenet", "soba"]
    assert (cell.mean, cell.leaked) == (62.0, False)
    assert cell.std == pytest.approx(8**0.5)
    assert found["imagenet-a", "soba"].leaked
    assert found["imagenet", "tda"].std is None


def test_averages_as_the_paper_has_them():
    sets = ("imagenet", "imagenet-a", "imagenet-r")
    found = cells(RECORDS)
    assert averages(found, sets, "soba", ood=True) == {
        "average": pytest.approx(122 / 3),
        "ood-average": 30.0,
    }
    assert averages(found, sets, "soba", ood=False) == {"average": pytest.approx(122 / 3)}
    assert averages(found, sets, "tda", ood=True) == {}  # not over a part of the sets


def test_domains_of_a_joined_stream_are_rows():
    joined = record("ood-all", "soba", 0, 50.0, accuracy_per_domain={"imagenet": 60.0, "x": 40.0})
    found = cells([joined])
    assert {key[0]: cell.mean for key, cell in found.items()} == {"imagenet": 60.0, "x": 40.0}


def test_the_papers_numbers():
    vit = quoted_cells("cross", "ViT-B-16")
    assert (vit["pets", "soba"], vit["pets", "ncm"]) == (92.48, 88.41)
    assert quoted_cells("ood", "RN50")["imagenet", "zero-shot"] == 59.81
    assert ("imagenet", "ncm") not in quoted_cells("ood", "RN50")
    assert quoted_cells("ood", "ViT-L-14") == {}
