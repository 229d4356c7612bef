"""State files with a valid checksum that hold nonsense: one clear line that names the file."""

import numpy as np
import pytest

import soba
from soba._files import save_checked
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream()


def learned(name):
    adapter = soba.create_adapter(name, TEXT, logit_scale=20.0)
    if hasattr(adapter, "fit"):
        adapter.fit(FEATURES, LABELS)
    adapter.adapt(FEATURES)
    return adapter


def spoil(entry, value):
    """What replaces an entry of the meta data, or an array by a function of what it was."""

    def change(meta, arrays):
        where = arrays if entry in arrays else meta["params"] if entry in meta["params"] else meta
        where[entry] = value(where[entry]) if callable(value) else value

    return change


def drop(entry):
    return lambda meta, arrays: arrays.pop(entry) if entry in arrays else meta.pop(entry)


def first(value):
    """An array with another first value."""

    def changed(array):
        array.reshape(-1)[0] = value
        return array

    return changed


WRONG = [
    ("soba", spoil("capacity", 10**12), "capacity must be 1048576 at most"),
    ("soba", spoil("capacity", 10**9), "capacity must be 1048576 at most"),
    ("soba", spoil("capacity", 10**30), "capacity must be 1048576 at most"),
    ("tda", spoil("capacity", 10**12), "capacity must be 1048576 at most"),
    ("ncm", spoil("capacity", -1), "capacity must be a whole number"),
    ("soba", spoil("capacity", "many"), "capacity must be a whole number"),
    ("soba+", spoil("params", [1]), "mapping"),
    ("soba+", spoil("params", {"colour": "red"}), "colour"),
    ("soba+", drop("params"), "params is missing from the state"),
    ("soba+", drop("text_features"), "text_features is missing from the state"),
    ("soba+", spoil("logit_scale", float("nan")), "scale must be positive and finite"),
    ("soba+", spoil("horizon", 100), "older_sample.features is missing from the state"),
    ("soba+", spoil("young", 3), "young is 3 where the horizon is None"),
    ("soba+", spoil("young", "x"), "young must be a whole number"),
    ("soba+", drop("statistics"), "statistics is missing from the state"),
    ("soba+", drop("statistics.weights"), "statistics.weights is missing"),
    ("soba+", drop("statistics.prior"), "statistics.prior is missing"),
    ("soba+", spoil("statistics", ["bias", "weights"]), "do not fit together"),
    ("soba", spoil("statistics", ["centre"]), "do not fit together"),
    ("soba+", spoil("statistics.weights", lambda a: a[:-1]), "do not fit together"),
    ("soba+", spoil("statistics.evidence", lambda a: a[:-1]), "do not fit together"),
    ("soba+", spoil("statistics.weights", first(np.nan)), "statistics.weights holds NaN"),
    ("soba+", spoil("sample.places", first(-1)), "places in the stream are no whole numbers"),
    ("soba+", drop("sample.places"), "sample.places is missing"),
    ("soba", spoil("statistics.prototypes", lambda a: a[:-1]), "do not fit together"),
    ("soba", spoil("statistics.prototypes", lambda a: a[:, :-1]), "do not fit together"),
    ("soba", spoil("statistics.centre", first(np.inf)), "statistics.centre holds NaN"),
    ("ncm", spoil("queue.features", first(np.nan)), "queue.features holds NaN"),
    ("ncm", spoil("queue.features", lambda a: a[:, :-1]), "the stored queue's features"),
    ("ncm", spoil("queue.entropies", lambda a: a[:-1]), "the stored queue's entropies"),
    ("ncm", spoil("queue.entropies", lambda a: -a), "not in the order of class, entropy and id"),
    ("ncm", spoil("queue.labels", first(-1)), "classes that do not exist"),
    ("ncm", spoil("queue.labels", lambda a: a + 1), "classes that do not exist"),
    ("ncm", spoil("queue.labels", lambda a: a.astype(float)), "the stored queue's labels"),
    ("ncm", spoil("queue.labels", lambda a: 0 * a), "more than 16 samples of a class"),
    ("ncm", spoil("queue.ids", lambda a: 0 * a), "an id twice"),
    ("tda", spoil("negative.extra", lambda a: a[:, :0]), "the stored queue's extra"),
    ("tda", spoil("seen", np.array([[5, 3]])), "ascending intervals"),
    ("tda", spoil("seen", np.array([[-5, 3]])), "ascending intervals"),
    ("tda", spoil("seen", np.arange(4)), "pairs of int64"),
    ("tda", spoil("counted", -1), "counted must be a whole number"),
    ("tda", spoil("counted", 100), "samples that were never counted"),
    ("tda", spoil("given_space", ["a"]), "an id space needs a name"),
    ("tda", drop("counted"), "counted is missing from the state"),
    ("gda", spoil("weights", lambda a: a[:-1]), "do not fit together"),
    ("gda", drop("bias"), "bias is missing from the state"),
    ("gda", spoil("alpha", "x"), ""),
    ("tip-adapter", spoil("labels", lambda a: a + 1), ""),
    ("tip-adapter", spoil("keys", lambda a: a[:-1]), ""),
    ("zero-shot", spoil("adapter", "magic"), "unknown method 'magic'"),
    ("zero-shot", spoil("format", 1), "the state is of format 1, this version reads 2"),
    ("zero-shot", spoil("format", "2"), "the state is of format '2', this version reads 2"),
    ("zero-shot", spoil("text_features", first(np.nan)), "text_features holds NaN"),
]


@pytest.mark.parametrize(("name", "change", "message"), WRONG, ids=[w[0] + w[2] for w in WRONG])
def test_nonsense_is_named(tmp_path, name, change, message):
    state = learned(name).state()
    path = tmp_path / "wrong.safetensors"
    save_checked(path, state["arrays"], state["meta"])
    soba.load(path)  # as it was
    change(state["meta"], state["arrays"])
    save_checked(path, state["arrays"], state["meta"])
    with pytest.raises(ValueError) as caught:
        soba.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("meta", [[], 3, None, "text", {}])
def test_meta_data_that_are_none_are_named(tmp_path, meta):
    save_checked(tmp_path / "wrong", {"text_features": TEXT}, meta)
    for load in (soba.load, soba.SOBA.load):
        with pytest.raises(ValueError, match="wrong: "):
            load(tmp_path / "wrong")


def test_a_large_capacity_costs_nothing_until_it_is_used():
    adapter = soba.SOBA(TEXT, logit_scale=20.0, capacity=1 << 20)
    assert adapter.queue.nbytes < 1 << 16
    adapter.adapt(FEATURES)
    everything = soba.SOBA(TEXT, logit_scale=20.0, capacity=1000)
    everything.adapt(FEATURES)
    assert len(adapter.queue) == len(everything.queue) == 240
    assert adapter.queue.nbytes < 1 << 18


@pytest.mark.parametrize("logit_scale", [0.999, 0.01, 0.0, -1.0])
def test_a_logit_scale_that_cannot_be_is_refused(logit_scale):
    with pytest.raises(ValueError, match="scale must be"):
        soba.SOBAPlus(TEXT, logit_scale=logit_scale)


def test_the_logarithm_of_a_logit_scale_is_told():
    with pytest.warns(UserWarning, match=r"give exp\(4\.6052\) = 100"):
        soba.ZeroShot(TEXT, logit_scale=4.6052)
    with pytest.warns(UserWarning, match="in doubt of everything"):
        soba.ZeroShot(TEXT, logit_scale=7.999)
    soba.ZeroShot(TEXT, logit_scale=8.0)
