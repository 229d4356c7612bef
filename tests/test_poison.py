"""The attacks of tests/helpers/crafted.py, and the table of what they cost."""

import sys

import numpy as np
import pytest
from conftest import ROOT
from crafted import ATTACKS, copied, lead_of

import soba
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=600, classes=6, width=32, seed=3)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_unit_rows_that_the_seed_repeats(name):
    attack = ATTACKS[name]
    one, again, other = (attack(FEATURES, TEXT, seed) for seed in (1, 1, 2))
    assert len(one) == (1200 if name == "near-copies" else 16 * len(TEXT))
    assert one.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1.0, atol=1e-5)
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("lead", [0.05, 0.10])
def test_each_class_gets_copies_of_one_image_that_leads_by_so_much(lead):
    rows = copied(FEATURES, TEXT, 0, lead=lead)
    called = (FEATURES @ TEXT.T).argmax(axis=1)
    for label, block in enumerate(rows.reshape(len(TEXT), 16, -1)):
        leads = [lead_of(row, TEXT, label) for row in block]
        # The noise moves a lead by some thousandths, the last step on the way by as much again.
        assert lead - 0.02 < np.mean(leads) < lead + 0.05
        assert (block @ block.T).min() > 0.99
        # It lies between the text and an image that CLIP calls otherwise.
        others = FEATURES[called != label]
        assert (
            min(distance_from_plane(block.mean(axis=0), row, TEXT[label]) for row in others) < 0.02
        )


def distance_from_plane(point, one, other):
    """From the plane through the origin and two points."""
    plane = np.stack([one, other], axis=1)
    return np.linalg.norm(point - plane @ np.linalg.lstsq(plane, point)[0])


def test_an_image_moves_no_further_than_it_must():
    """The lead of 0.05 is reached before that of 0.10, on the way of the same image."""
    near, far = (copied(FEATURES, TEXT, 0, lead=lead, copies=1) for lead in (0.05, 0.10))
    cosine = [np.sum(rows * TEXT, axis=1) for rows in (near, far)]
    assert (cosine[0] < cosine[1]).all()


def test_near_copies_attack_four_classes():
    rows = ATTACKS["near-copies"](FEATURES, TEXT, 5)
    called = (rows @ TEXT.T).argmax(axis=1).reshape(4, 300)
    assert (called == called[:, :1]).all()
    assert len(set(called[:, 0])) == 4


def test_the_table_marks_what_costs_too_much(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "perf")
    import poison

    (tmp_path / "whurs19").mkdir()
    for name in poison.BARS:
        np.savez(
            tmp_path / "whurs19" / f"{name}.npz",
            image_features=FEATURES,
            text_features=TEXT,
            labels=LABELS,
        )
    command = ["poison.py", "--data", str(tmp_path), "--orders", "1", "--methods", "zero-shot"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        poison.main()
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == 2 * len(ATTACKS)
    assert all("| 0.0 |" in line and line.endswith("| ok |") for line in lines)
    monkeypatch.setattr(poison, "NEAR_COPIES_BAR", -1.0)
    with pytest.raises(SystemExit) as end:
        poison.main()
    assert end.value.code == 1
    missed = [line for line in capsys.readouterr().out.splitlines() if "MISSED" in line]
    assert len(missed) == 2 and all("near-copies" in line for line in missed)


def test_the_cost_is_against_the_same_stream_without_the_attack(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "perf")
    import poison

    features = soba.FeatureSet(FEATURES, TEXT, 20.0, LABELS)
    images, text = poison.unit(FEATURES), poison.unit(TEXT)
    adapter = soba.create_adapter("ncm", text, logit_scale=20.0)
    adapter.adapt(images[np.random.default_rng(7).permutation(600)[:455]])
    clean = 100 * (adapter.logits(images).argmax(axis=1) == LABELS).mean()
    adapter.adapt(ATTACKS["crafted, lead 0.25"](images, text, 7))
    attacked = 100 * (adapter.logits(images).argmax(axis=1) == LABELS).mean()
    rows, *scores = poison.costs(features, "ncm", 7)["crafted, lead 0.25"]
    assert rows == 96
    assert scores == pytest.approx([clean, attacked])
    assert attacked < clean - 2
