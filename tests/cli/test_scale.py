"""embed, learn, merge and predict in shards, as any scheduler runs them."""

import os
import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from killed import killed_at
from run_cli import refused, soba_command

import soba
from soba.cli._scale import with_ray_address

CLASSES = ("--classes", "alarm,anchor,archive,arrow down")


@pytest.fixture(scope="module")
def run(icon_stream, tmp_path_factory):
    """The feature files of five shards; not to be written to."""
    place = tmp_path_factory.mktemp("scale") / "run"
    for index in range(2):
        embed(icon_stream, place, f"{index}/2")
    return place


def embed(source, place, shard, *more):
    options = ("--shard-size", 10, "--threads", 1)
    return soba_command("embed", source, "-o", place, "--shard", shard, *CLASSES, *options, *more)


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_from_images_to_answers(icon_stream, run, tmp_path):
    assert [path.name for path in sorted(run.glob("*.parquet"))] == [
        f"features-{number:05d}.parquet" for number in range(5)
    ]
    states, state = tmp_path / "states", tmp_path / "state.safetensors"
    for index in range(3):
        printed = soba_command("learn", run, "--shard", f"{index}/3", "-o", states)
        assert f"state-{index:05d}-of-00003.safetensors" in printed
    printed = soba_command("merge", *sorted(states.iterdir()), "-o", state)
    assert f"48 images of 3 states in {state}" in printed
    for index in range(2):
        arguments = ("predict", run, "--state", state, "--shard", f"{index}/2")
        printed = soba_command(*arguments, "-o", tmp_path / "answers")
    assert "images in 2 shards" in printed
    rows = [
        row
        for file in sorted((tmp_path / "answers").glob("*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]
    assert [row["key"] for row in rows] == [str(path) for path in sorted(icon_stream.iterdir())]
    right = sum(Path(row["key"]).stem[3:] == row["label"] for row in rows)
    assert right > 40
    # One machine, one command: the same state.
    soba_command("learn", run, "-o", tmp_path / "alone.safetensors")
    assert (tmp_path / "alone.safetensors").read_bytes() == state.read_bytes()


def test_a_merged_state_classifies_and_is_left_as_it_is(icon_stream, run, tmp_path):
    state = tmp_path / "state.safetensors"
    soba_command("learn", run, "-o", state)
    before = state.read_bytes()
    printed = soba_command("classify", icon_stream, *CLASSES, "--state", state)
    assert "48 images" in printed and "learned nothing" in printed
    assert state.read_bytes() == before
    assert isinstance(soba.load(state), soba.Classifier)


def test_a_model_of_all_images_at_once(run, tmp_path):
    model = tmp_path / "model.safetensors"
    assert "5 shards" in soba_command("learn", run, "--transductive", "-o", model)
    printed = soba_command("predict", run, "--state", model, "-o", tmp_path / "answers")
    assert "48 images in 5 shards" in printed
    assert "no --shard" in refused("learn", run, "--transductive", "--shard", "0/2", "-o", model)
    assert "tda" in refused("learn", run, "--transductive", "--method", "tda", "-o", model)


def test_a_model_of_all_images_is_no_state(icon_stream, run, tmp_path):
    model, states = tmp_path / "model.safetensors", tmp_path / "states"
    soba_command("learn", run, "--transductive", "--rounds", 1, "-o", model)
    soba_command("learn", run, "--shard", "0/1", "-o", states)
    what = f"{model}: a model that soba learn --transductive made"
    assert what in refused("classify", icon_stream, *CLASSES, "--state", model)
    for given in ([model], [*states.iterdir(), model]):
        assert what in refused("merge", *given, "-o", tmp_path / "merged")
    with pytest.raises(ValueError, match=what):
        soba.load(model)
    line = refused("merge", run / "text.safetensors", "-o", tmp_path / "merged")
    assert "text.safetensors: does not say of which method" in line


def test_a_folder_is_no_state(icon_stream, run, tmp_path):
    (tmp_path / "states").mkdir()
    line = refused("merge", tmp_path / "states", "-o", tmp_path / "merged")
    assert f"{tmp_path / 'states'}: is a folder; name the states themselves" in line
    line = refused("predict", run, "--state", tmp_path / "states", "-o", tmp_path / "answers")
    assert f"{tmp_path / 'states'}: is a folder" in line
    assert "null: is no file" in refused("merge", os.devnull, "-o", tmp_path / "merged")


@pytest.mark.parametrize("done", [1, 3])
def test_a_killed_worker_is_started_again(icon_stream, run, tmp_path, done):
    place = tmp_path / "run"
    place.mkdir()
    arguments = ("embed", icon_stream, "-o", place, "--shards", *CLASSES, "--shard-size", 10)
    killed_at(place, "features-*.parquet", done, *arguments, "--threads", 1)
    there = len(list(place.glob("features-*.parquet")))
    assert done <= there < 5
    printed = soba_command(*arguments, "--threads", 1)
    assert f"5 shards of 5, {there} of them from an earlier run" in printed
    assert files_of(place) == files_of(run)  # what was half written is gone, too


def test_broken_images_are_recorded_and_no_end(icon_stream, tmp_path):
    pictures = shutil.copytree(icon_stream, tmp_path / "pictures")
    torn = sorted(pictures.iterdir())[12]
    torn.write_bytes(torn.read_bytes()[:50])
    printed = embed(pictures, tmp_path / "run", "0/1")
    assert "1 image could not be read" in printed and torn.name in printed
    assert "47 images in 5 shards of 5" in printed
    soba_command("learn", tmp_path / "run", "-o", tmp_path / "state")
    soba_command(
        "predict", tmp_path / "run", "--state", tmp_path / "state", "-o", tmp_path / "answers"
    )
    rows = pq.read_table(tmp_path / "answers" / "answers-00001.parquet").to_pylist()
    assert [row["key"] for row in rows if row["error"]] == [str(torn)]


def test_a_shard_of_broken_images_is_not_said_to_be_missing(icon_stream, tmp_path):
    pictures = shutil.copytree(icon_stream, tmp_path / "pictures")
    for torn in sorted(pictures.iterdir())[10:20]:
        torn.write_bytes(b"no picture")
    embed(pictures, tmp_path / "run", "0/1")
    soba_command("learn", tmp_path / "run", "--shard", "0/1", "-o", tmp_path / "states")
    [state] = (tmp_path / "states").iterdir()
    printed = soba_command("merge", state, "-o", tmp_path / "state")
    assert "no image of 1 of 5 shards of the run was learned from" in printed
    assert "or no image of these shards could be read" in printed


def test_two_runs_do_not_share_a_folder(icon_stream, run, tmp_path):
    place = shutil.copytree(run, tmp_path / "run")
    before = files_of(place)
    options = ("-o", place, "--shards", "--shard-size", 10)
    line = refused("embed", icon_stream, *options, "--classes", "alarm,anchor")
    assert "holds another run" in line and "the classes" in line
    line = refused("embed", icon_stream, *options, *CLASSES, "--templates", "seven")
    assert "the prompts" in line
    assert files_of(place) == before


def test_a_shard_that_changed_since_the_manifest_is_refused(icon_stream, tmp_path):
    pictures = shutil.copytree(icon_stream, tmp_path / "pictures")
    embed(pictures, tmp_path / "run", "0/2")
    shutil.copy(sorted(pictures.iterdir())[0], sorted(pictures.iterdir())[11])
    options = ("-o", tmp_path / "run", "--shard", "1/2", "--shard-size", 10, *CLASSES)
    line = refused("embed", pictures, *options)
    assert "shard 1 is not any more what the manifest says" in line
    assert not (tmp_path / "run" / "features-00001.parquet").exists()


def test_what_is_missing_is_said_before_the_work(icon_stream, tmp_path):
    embed(icon_stream, tmp_path / "run", "0/2")
    line = refused("learn", tmp_path / "run", "-o", tmp_path / "state")
    assert "2 shards of 5 without features, the first is features-00001.parquet" in line
    soba_command("learn", tmp_path / "run", "--shard", "0/2", "-o", tmp_path / "states")
    [state] = (tmp_path / "states").iterdir()
    printed = soba_command("merge", state, "-o", tmp_path / "state")
    assert "no image of 2 of 5 shards of the run was learned from" in printed
    assert "no manifest.json" in refused("learn", tmp_path, "-o", tmp_path / "state")


def test_arguments_that_make_no_sense(icon_stream, run, tmp_path):
    out = ("-o", tmp_path / "x")
    assert "count from 0, 0/4 to 3/4" in refused("learn", run, "--shard", "4/4", *out)
    assert "takes i/n" in refused("predict", run, "--state", "x", "--shard", "half", *out)
    assert "leave --shard out" in refused("learn", run, "--shard", "0/2", "--ray", *out)
    assert "--views has no place" in refused(
        "embed", icon_stream, "--shards", "--views", 4, *CLASSES, *out
    )
    for option in ("--seed", "--per-class", "--generated-count"):
        line = refused("embed", icon_stream, "--shards", option, 1, *CLASSES, *out)
        assert f"{option} has no place" in line
    assert "--shard-size goes with --shard" in refused(
        "embed", icon_stream, "--shard-size", 9, *out
    )
    assert "--rounds goes with --transductive" in refused("learn", run, "--rounds", 3, *out)
    assert "which classes" in refused("embed", icon_stream, "--shards", *out)
    assert "--classes goes with --shard" in refused("embed", icon_stream, *CLASSES, *out)
    assert "does not merge" in refused("learn", run, "--method", "dota", *out)
    assert "not a state" in refused("merge", icon_stream / os.listdir(icon_stream)[0], *out)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("command", ["embed", "learn", "predict", "bench"])
def test_without_ray_the_extra_is_named(command, icon_stream, run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    soba_command("learn", run, "-o", tmp_path / "state")
    arguments = {
        "embed": (icon_stream, *CLASSES),
        "learn": (run,),
        "predict": (run, "--state", tmp_path / "state"),
        "bench": ("icons", "--datasets", "icons-v2", "--methods", "zero-shot", "--per-class", 1),
    }[command]
    line = refused(command, *arguments, "-o", tmp_path / "out", "--ray")
    assert "soba-tta[scale]" in line


def test_ray_without_an_address_is_a_cluster_of_this_machine():
    assert with_ray_address(["learn", "o", "--ray"]) == ["learn", "o", "--ray", "local"]
    given = ["learn", "o", "--ray", "10.0.0.1:6379", "-o", "s"]
    assert with_ray_address(given) == given


@pytest.mark.parametrize("command", ["embed", "learn", "merge", "predict"])
def test_help_explains_itself(command):
    printed = soba_command(command, "--help")
    if command != "merge":
        assert "counted from 0" in " ".join(printed.split()).replace("│ │ ", "")
        assert "--ray" in printed
    assert "soba-tta\\" not in printed
