"""States of workers merge into the state of one who saw everything, however they are grouped."""

import os
import shutil
from collections import Counter

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import assert_same_logits
from runs import NAMES, make_folder, make_run, rows_of, write_lake

import soba
from soba.scale.embed import Embedder
from soba.scale.learn import Worker, check_state, learn, new_adapter, shards_seen, state_meta
from soba.scale.merge import learn_merged, merge, merge_tree, parts_of
from soba.scale.run import Here


@pytest.fixture(scope="module")
def wide_run(tmp_path_factory, tiny):
    """A run of 64 shards."""
    return make_run(tmp_path_factory.mktemp("wide"), tiny, [9 + n % 5 for n in range(64)])


@pytest.fixture(scope="module")
def states(wide_run, tmp_path_factory):
    """Number of workers -> their state files."""
    place = tmp_path_factory.mktemp("states")
    return {
        count: [learn(wide_run, Worker("soba+", i, count), place).path for i in range(count)]
        for count in (1, 2, 7, 64)
    }


@pytest.fixture(scope="module")
def whole(wide_run):
    """One who adapted on all rows in their order."""
    ids, features = rows_of(wide_run)
    adapter = new_adapter(wide_run, "soba+")
    adapter.adapt(features, ids=ids)
    return adapter.refresh()


def ids_kept(adapter):
    """What queues and uniform samples hold."""
    return {name: np.sort(store.items().ids).tolist() for name, store in adapter._stores.items()}


def assert_same_as(whole, path, features):
    merged = soba.SOBAPlus.load(path)
    assert merged.n_seen == whole.n_seen and merged.id_space == whole.id_space
    assert ids_kept(merged) == ids_kept(whole)
    assert_same_logits(merged.logits(features), whole.logits(features))


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_the_number_of_workers_changes_nothing(count, states, whole, wide_run, tmp_path):
    merge(states[count], tmp_path / "state")
    assert_same_as(whole, tmp_path / "state", rows_of(wide_run)[1])
    assert shards_seen(tmp_path / "state") == 64


@settings(max_examples=8)
@given(data=st.data())
def test_any_tree_with_duplicates_gives_the_same(data, states, whole, wide_run, tmp_path_factory):
    place = tmp_path_factory.mktemp("tree")
    count = data.draw(st.sampled_from((2, 7, 64)))
    # All states of one grouping, and some of the others, whose samples come again.
    extra = data.draw(st.lists(st.sampled_from(states[7] + states[64]), max_size=5))
    waiting = data.draw(st.permutations(states[count] + extra))
    for number in range(len(waiting)):
        fan = data.draw(st.integers(2, 9))
        taken, waiting = waiting[:fan], waiting[fan:]
        target = place / f"{number}.safetensors"
        merge(taken, target)
        waiting.insert(data.draw(st.integers(0, len(waiting))), target)
        if len(waiting) == 1:
            break
    assert_same_as(whole, waiting[0], rows_of(wide_run)[1][:50])


def test_the_bits_of_a_state_do_not_depend_on_the_grouping(states, tmp_path):
    for count in (2, 7, 64):
        merge(states[count], tmp_path / f"{count}")
    merge_tree(states[64], tmp_path / "tree", tmp_path, Here(), fan=3)
    contents = {path.read_bytes() for path in map(tmp_path.joinpath, ("2", "7", "64", "tree"))}
    assert len(contents) == 1


def ids_by_sql(folder, capacity=16):
    """A queue is a window over the rows, which any database computes."""
    rows = duckdb.sql(f"""
        select id from (
            select id, row_number() over (
                partition by clip_label order by clip_entropy, id
            ) as place
            from read_parquet('{folder.path}/features-*.parquet')
        ) where place <= {capacity} order by id
    """).fetchall()
    return [id_ for (id_,) in rows]


def test_sql_finds_the_same_ids(wide_run, tmp_path):
    learn_merged(wide_run, "soba", tmp_path / "state")
    ids = ids_by_sql(wide_run)
    assert len(ids) > 100
    assert ids == ids_kept(soba.SOBA.load(tmp_path / "state"))["queue"]


def test_the_sample_is_in_the_order_of_the_run(states, wide_run, tmp_path):
    """Workers have no common time, but a run has an order: that of its ids."""
    for count in (1, 7):
        merge(states[count], tmp_path / "state")
        kept = soba.SOBAPlus.load(tmp_path / "state").sample
        ids, _ = rows_of(wide_run)
        assert set(kept.ids) <= set(ids.tolist()) and len(kept.ids) == 512
        np.testing.assert_array_equal(np.argsort(kept.places), np.argsort(kept.ids))


def test_of_copies_sql_finds_as_many_and_the_queue_the_first(tmp_path, tiny):
    """The entropies of copies differ in their last digits, by the block that each was scored in."""
    lake = write_lake(tmp_path / "lake", tiny, (60,))
    pictures = np.load(lake / "part-000.npy")
    rng = np.random.default_rng(0)
    for number, count in enumerate((1, 7, 64, 33, 130, 2, 50)):
        np.save(lake / f"part-{number:03d}.npy", pictures[rng.integers(60, size=count)])
    folder = make_folder(tmp_path / "run", lake, tiny)
    embedder = Embedder(folder, lambda: tiny)
    for number in range(7):
        embedder(number)
    learn_merged(folder, "soba", tmp_path / "state")
    kept = ids_kept(soba.SOBA.load(tmp_path / "state"))["queue"]
    ids, features = rows_of(folder)
    content = {int(id_): row.tobytes() for id_, row in zip(ids, features, strict=True)}
    in_queue = Counter(content[id_] for id_ in kept)
    assert in_queue == Counter(content[id_] for id_ in ids_by_sql(folder))
    assert len(in_queue) < len(kept) < len(ids)  # some are kept twice, and not all are
    for picture, count in in_queue.items():
        copies = sorted(id_ for id_ in content if content[id_] == picture)
        assert set(copies[:count]) <= set(kept)


def test_a_worker_neither_scores_nor_refreshes(states, wide_run):
    adapter = soba.SOBAPlus.load(states[1][0])
    assert adapter.statistics_ is None and adapter.n_seen == len(rows_of(wide_run)[0])


def test_a_state_is_a_classifiers(wide_run, states, tiny, tmp_path):
    merge(states[2], tmp_path / "state")
    loaded = soba.load(tmp_path / "state", encoder=tiny)
    assert isinstance(loaded, soba.Classifier) and loaded.names == NAMES
    assert not loaded.learns
    blank = np.zeros((8, 8), np.uint8)
    with pytest.raises(ValueError, match="learn=False"):
        loaded.classify(blank)
    [answer] = loaded.classify(blank, learn=False)
    assert answer.label in NAMES
    assert loaded.adapter.n_seen == len(rows_of(wide_run)[0])


@pytest.mark.parametrize("method", ["soba", "tda", "ncm"])
def test_other_methods_whose_states_merge(method, lake_run, tmp_path):
    paths = [learn(lake_run, Worker(method, i, 3), tmp_path).path for i in range(3)]
    merged = merge(paths, tmp_path / "merged")
    ids, features = rows_of(lake_run)
    whole = new_adapter(lake_run, method)
    whole.learn(features, ids=ids)
    assert ids_kept(merged) == ids_kept(whole)
    assert_same_logits(merged.logits(features), whole.refresh().logits(features))


@pytest.mark.parametrize("method", ["zero-shot", "dota", "tpt", "gda", "zero", "transclip"])
def test_methods_whose_states_do_not_merge_are_refused(method):
    with pytest.raises(ValueError, match=r"does not merge .* soba\+"):
        Worker(method, 0, 1)


def test_a_state_that_is_there_stays(lake_run, tmp_path):
    first = learn(lake_run, Worker("soba+", 1, 3), tmp_path)
    content = first.path.read_bytes()
    again = learn(lake_run, Worker("soba+", 1, 3), tmp_path)
    assert again.was_there and again.n_seen == first.n_seen
    first.path.unlink()
    assert not learn(lake_run, Worker("soba+", 1, 3), tmp_path).was_there
    assert first.path.read_bytes() == content  # a retry writes the same bytes


def test_a_state_that_is_there_must_be_of_this_run_and_method(lake_run, tiny, tmp_path):
    other = make_run(tmp_path / "other", tiny, (10, 10), seed=50)
    path = learn(other, Worker("soba+", 0, 1), tmp_path).path
    with pytest.raises(ValueError, match=f"{path.name}: was learned from another run"):
        learn(lake_run, Worker("soba+", 0, 1), tmp_path)
    with pytest.raises(ValueError, match=r"was learned by soba\+, not tda"):
        learn(other, Worker("tda", 0, 1), tmp_path)
    content = path.read_bytes()
    for cut in range(0, len(content) - 1, len(content) // 9):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=path.name):
            learn(other, Worker("soba+", 0, 1), tmp_path)


def test_states_of_two_runs_do_not_mix(lake_run, tiny, tmp_path):
    other = make_run(tmp_path / "other", tiny, (10, 10), seed=50)
    ours = learn(lake_run, Worker("soba+", 0, 2), tmp_path).path
    theirs = learn(other, Worker("soba+", 1, 2), tmp_path).path
    for pair in ((ours, theirs), (theirs, ours)):
        with pytest.raises(ValueError, match=pair[1].name):
            merge(pair, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_states_of_other_classes_do_not_mix(lake_run, tiny, tmp_path):
    source = lake_run.manifest.source
    other = make_folder(tmp_path / "other", source, tiny, NAMES[::-1])
    Embedder(other, lambda: tiny)(0)
    ours = learn(lake_run, Worker("soba+", 0, 7), tmp_path).path
    (tmp_path / "theirs").mkdir()
    theirs = learn(other, Worker("soba+", 0, 7), tmp_path / "theirs")
    with pytest.raises(ValueError, match=theirs.path.name):
        merge((ours, theirs.path), tmp_path / "merged")


def test_what_is_no_state_is_not_merged(tmp_path):
    (tmp_path / "a").write_bytes(b"no state")
    with pytest.raises(ValueError, match="a: not a state"):
        merge([tmp_path / "a"], tmp_path / "merged")
    with pytest.raises(ValueError, match="no states"):
        merge([], tmp_path / "merged")


def test_all_at_once_is_what_workers_and_a_merge_make(states, wide_run, tmp_path):
    merge(states[7], tmp_path / "merged")
    steps = []
    learn_merged(wide_run, "soba+", tmp_path / "state", step=steps.append)
    assert sum(steps) == 64
    assert (tmp_path / "state").read_bytes() == (tmp_path / "merged").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged", "state"]


def test_what_a_killed_run_has_learned_is_taken_up(wide_run, states, tmp_path):
    """The state of a worker is there, and its features are gone: nobody reads them again."""
    copied = shutil.copytree(wide_run.path, tmp_path / "run")
    run = type(wide_run).open(copied)
    parts = parts_of(tmp_path / "state")
    parts.mkdir()
    shutil.copy(states[1][0], parts)
    # It had other workers, too, and was writing when it was killed.
    for name in ("state-00003-of-00007", "merged-0-00001", ".state-00000-of-00007"):
        (parts / f"{name}.safetensors").touch()
    (parts / ".state-00001-of-00007.safetensors.0123abcd.tmp").touch()
    run.feature_file(3).unlink()
    learn_merged(run, "soba+", tmp_path / "state")
    assert check_state(tmp_path / "state", run, "soba+") == len(rows_of(wide_run)[0])
    assert not parts.exists()


def test_what_others_keep_beside_a_state_stays(lake_run, tmp_path):
    theirs = [tmp_path / "state.parts" / "notes", parts_of(tmp_path / "state") / "notes"]
    for path in theirs:
        path.parent.mkdir()
        path.write_text("mine")
    learn_merged(lake_run, "soba+", tmp_path / "state")
    assert [path.read_text() for path in theirs] == ["mine", "mine"]
    assert os.listdir(theirs[1].parent) == ["notes"]


def test_one_run_at_a_time_makes_a_state(lake_run, tmp_path):
    """A second one would remove what the first has learned and not merged yet."""
    target = tmp_path / "state"
    rival = []

    def start_another(count):
        with pytest.raises(ValueError, match="another run is working on this file") as refusal:
            learn_merged(lake_run, "soba+", target)
        rival.append(str(refusal.value))

    learn_merged(lake_run, "soba+", target, step=start_another)
    assert len(rival) == 1 and str(target) in rival[0]
    assert os.listdir(tmp_path) == ["state"]


def test_features_that_are_not_there_are_asked_for(wide_run, tmp_path):
    copied = shutil.copytree(wide_run.path, tmp_path / "run")
    run = type(wide_run).open(copied)
    run.feature_file(3).unlink()
    with pytest.raises(FileNotFoundError, match=r"features-00003.parquet: not there yet"):
        learn(run, Worker("soba+", 0, 1), tmp_path)
    assert run.missing == [3]


def test_a_state_says_of_which_run_it_is(states, wide_run):
    meta = state_meta(states[2][1])
    assert meta["given_space"] == wide_run.manifest.id_space
    assert meta["note"]["class_names"] == list(NAMES) and meta["note"]["shards"] == 64
