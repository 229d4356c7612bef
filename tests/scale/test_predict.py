"""Answers to the shards of a run, under a state or a model of all of them."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rounding import assert_same_logits
from runs import NAMES, make_folder, make_run, rows_of

import soba
from soba.adapt.soba_plus.transduce import em_fit
from soba.scale.embed import Embedder
from soba.scale.learn import Worker, learn
from soba.scale.merge import learn_merged
from soba.scale.predict import Predictor, _best, scorer
from soba.scale.transduce import em_shards, load_model, model_logits, save_model


@pytest.fixture(scope="module")
def state(lake_run, tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "state.safetensors"
    learn_merged(lake_run, "soba+", path)
    return path


def answers_in(folder):
    return [
        row for file in sorted(folder.glob("*.parquet")) for row in pq.read_table(file).to_pylist()
    ]


def test_answers_are_those_of_the_state(lake_run, state, tmp_path):
    predictor = Predictor(lake_run, state, tmp_path / "answers", top=4)
    results = [predictor(number) for number in (6, 5, 4, 3, 2, 1, 0)]
    ids, features = rows_of(lake_run)
    shares = soba.SOBAPlus.load(state).probabilities(features)
    plain = soba.create_adapter(
        "zero-shot", lake_run.text_features, logit_scale=lake_run.manifest.logit_scale
    ).probabilities(features)
    answers = answers_in(tmp_path / "answers")
    assert [row["id"] for row in answers] == ids.tolist()
    assert [row["label"] for row in answers] == [NAMES[k] for k in shares.argmax(axis=1)]
    assert [row["zero_shot"] for row in answers] == [NAMES[k] for k in plain.argmax(axis=1)]
    np.testing.assert_allclose(
        [row["probability"] for row in answers], shares.max(axis=1), atol=1e-4
    )
    np.testing.assert_allclose(
        [[each["probability"] for each in row["top"]] for row in answers],
        -np.sort(-shares, axis=1)[:, :4],
        atol=1e-4,
    )
    changed = sum(row["label"] != row["zero_shot"] for row in answers)
    assert changed and sum(result.changed for result in results) == changed


def test_what_could_not_be_read_is_answered_with_its_error(tmp_path, tiny):
    run = make_run(tmp_path / "a", tiny, (9,))
    rows = np.load(tmp_path / "a" / "lake" / "part-000.npy")
    for broken in ((0, 4, 8), tuple(range(9))):
        place = tmp_path / f"{len(broken)}"
        (place / "lake").mkdir(parents=True)
        torn = rows.copy()
        torn[list(broken)] = 0
        np.save(place / "lake" / "part-000.npy", torn)
        run = make_folder(place / "run", place / "lake", tiny)
        Embedder(run, lambda: tiny)(0)
        learn_merged(run, "soba+", place / "state")
        result = Predictor(run, place / "state", place / "answers")(0)
        assert (result.rows, result.broken) == (9 - len(broken), len(broken))
        answers = answers_in(place / "answers")
        assert [row["id"] for row in answers] == list(range(9))
        assert [row["id"] for row in answers if row["error"]] == list(broken)
        assert all((row["label"] is None) == bool(row["error"]) for row in answers)


def test_answers_that_are_there_stay(lake_run, state, tmp_path):
    first = Predictor(lake_run, state, tmp_path)(3)
    file = tmp_path / "answers-00003.parquet"
    content, before = file.read_bytes(), file.stat().st_mtime_ns
    again = Predictor(lake_run, state, tmp_path)(3)
    assert again.was_there and again.changed == first.changed
    assert file.stat().st_mtime_ns == before
    file.unlink()
    Predictor(lake_run, state, tmp_path)(3)
    assert file.read_bytes() == content


def test_answers_under_another_state_are_refused(lake_run, state, tmp_path):
    Predictor(lake_run, state, tmp_path / "answers")(0)
    part = learn(lake_run, Worker("soba+", 0, 2), tmp_path).path
    with pytest.raises(ValueError, match=r"answers.json: is of other answers"):
        Predictor(lake_run, part, tmp_path / "answers")
    with pytest.raises(ValueError, match=r"answers.json: is of other answers"):
        Predictor(lake_run, state, tmp_path / "answers", top=2)
    Predictor(lake_run, part, tmp_path / "others")(0)
    shutil.copy(tmp_path / "others" / "answers-00000.parquet", tmp_path / "answers")
    with pytest.raises(ValueError, match=r"answers-00000.parquet: is of other answers"):
        Predictor(lake_run, state, tmp_path / "answers")(0)


def test_damaged_answers_are_named(lake_run, state, tmp_path):
    predictor = Predictor(lake_run, state, tmp_path)
    predictor(0)
    file = tmp_path / "answers-00000.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"answers-00000.parquet: not a readable"):
        predictor(0)
    (tmp_path / "answers.json").write_text("{")
    with pytest.raises(ValueError, match=r"answers.json"):
        Predictor(lake_run, state, tmp_path)


def test_a_state_of_other_classes_or_prompts_is_refused(lake_run, tiny, tmp_path):
    other = make_folder(tmp_path / "run", lake_run.manifest.source, tiny, NAMES[::-1])
    Embedder(other, lambda: tiny)(0)
    path = learn(other, Worker("soba+", 0, 7), tmp_path).path
    with pytest.raises(ValueError, match="learned with other classes"):
        scorer(lake_run, path)
    soba.SOBAPlus(np.eye(4)).save(tmp_path / "plain")
    with pytest.raises(ValueError, match="does not say of which classes"):
        scorer(lake_run, tmp_path / "plain")


def test_the_state_of_one_worker_answers_as_if_it_were_merged(lake_run, state, tmp_path):
    alone = learn(lake_run, Worker("soba+", 0, 1), tmp_path).path
    features = rows_of(lake_run)[1]
    np.testing.assert_array_equal(
        scorer(lake_run, alone)(features), scorer(lake_run, state)(features)
    )


# Transduction ---------------------------------------------------------------------------------


def test_shards_give_the_model_of_the_whole_set(lake_run, tmp_path):
    features = rows_of(lake_run)[1]
    scaled = lake_run.text_features * np.float32(lake_run.manifest.logit_scale)
    steps = []
    model = em_shards(lake_run, step=steps.append)
    assert sum(steps) % 7 == 0 and sum(steps) > 7
    assert model.gaussians is not None
    whole = em_fit(scaled, features)
    assert_same_logits(model_logits(model, features), model_logits(whole, features))
    save_model(tmp_path / "model", model, lake_run)
    np.testing.assert_array_equal(
        scorer(lake_run, tmp_path / "model")(features), model_logits(model, features)
    )


def test_no_rounds_are_plain_clip(lake_run, tmp_path):
    model = em_shards(lake_run, rounds=0)
    save_model(tmp_path / "model", model, lake_run)
    assert load_model(tmp_path / "model").gaussians is None


def test_a_damaged_model_is_named(lake_run, state, tmp_path):
    path = tmp_path / "model"
    save_model(path, em_shards(lake_run, rounds=2), lake_run)
    content = path.read_bytes()
    for cut in range(0, len(content) - 1, len(content) // 11):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match="model"):
            scorer(lake_run, path)
    with pytest.raises(ValueError, match="not a model"):
        load_model(state)


def test_an_empty_run_is_plain_clip(tmp_path, tiny):
    lake = tmp_path / "lake"
    lake.mkdir()
    np.save(lake / "a.npy", np.zeros((3, tiny.width), np.float32))
    run = make_folder(tmp_path / "run", lake, tiny)
    Embedder(run, lambda: tiny)(0)
    assert em_shards(run).gaussians is None
    learn_merged(run, "soba+", tmp_path / "state")
    assert Predictor(run, tmp_path / "state", tmp_path / "answers")(0).broken == 3


# Inside ---------------------------------------------------------------------------------------


@given(
    hnp.arrays(np.float32, (3, 20), elements=st.sampled_from((0, 0.25, 0.5, 0.75, 1))),
    st.integers(1, 20),
)
def test_the_best_come_first_and_the_first_of_equals(shares, count):
    expected = np.argsort(-shares, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(_best(shares, count), expected)


def test_answers_say_what_they_are_of(lake_run, state, tmp_path):
    Predictor(lake_run, state, tmp_path)(0)
    note = json.loads(pq.read_metadata(tmp_path / "answers-00000.parquet").metadata[b"soba"])
    assert note["id_space"] == lake_run.manifest.id_space and len(note["state"]) == 64
