"""Saved tuners with a valid checksum that hold nonsense: one clear line that names the file."""

import numpy as np
import pytest
from tiny_clip import tiny_clip

import soba
from soba._files import save_checked
from soba.tune.cocoop import CoCoOp
from soba.tune.coop import CoOp
from soba.tune.histpt import HisTPT

NAMES = ["cat", "dog", "polar bear"]


@pytest.fixture(scope="module")
def learned():
    encoder = tiny_clip()
    images = np.random.default_rng(0).normal(size=(12, encoder.width)).astype(np.float32)
    histpt = HisTPT(encoder, NAMES)
    histpt.adapt(images)
    fitted = [
        cls(encoder, NAMES, epochs=1, warm_up=0).fit(images, np.arange(12) % 3)
        for cls in (CoOp, CoCoOp)
    ]
    return encoder, {tuner.name: tuner.state() for tuner in (histpt, *fitted)}


ENTRIES = [
    *(("coop", "context"), ("cocoop", "context")),
    *(("cocoop", name) for name in ("weight_in", "bias_in", "weight_out", "bias_out")),
    *(("histpt", name) for name in ("context", "exp_avg", "exp_avg_sq")),
    *(("histpt", name) for name in ("local", "hard", "overall", "entropies")),
]


@pytest.mark.parametrize(("name", "entry"), ENTRIES)
def test_nonsense_is_named(learned, tmp_path, name, entry):
    encoder, states = learned
    path, state = tmp_path / "wrong.safetensors", states[name]
    array = state["arrays"][entry]
    nan = array.copy()
    nan.flat[0] = np.nan
    for wrong, why in ((nan, f"{entry} holds NaN"), (array[:-1], f"{entry} of shape"), (None, "")):
        arrays = {key: value for key, value in state["arrays"].items() if key != entry}
        save_checked(path, arrays if wrong is None else arrays | {entry: wrong}, state["meta"])
        with pytest.raises(ValueError) as caught:
            soba.load(path, encoder=encoder)
        assert str(caught.value).startswith(f"{path}: ") and why in str(caught.value)
        assert "\n" not in str(caught.value)
