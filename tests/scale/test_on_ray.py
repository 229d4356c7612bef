"""What is decided for a Ray cluster before there is work: no cluster is started here."""

import importlib
import os
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_cli import refused

from soba.cli import _embed_shards
from soba.scale.on_ray import OnRay, _Surroundings, room


def node(alive=True, **resources):
    """One of those that `ray.nodes()` tells of."""
    return {"NodeID": "ab12", "Alive": alive, "Resources": {"memory": 1e9, **resources}}


def test_a_worker_has_all_it_needs_on_one_node():
    singles = [node(CPU=1.0), node(CPU=1.0), node(CPU=1.0)]
    assert room(singles, {"CPU": 1, "GPU": 0}) == 3
    assert room(singles, {"CPU": 2, "GPU": 0}) == 0
    assert room([*singles, node(CPU=5.0)], {"CPU": 2, "GPU": 0}) == 2


def test_cpus_of_one_node_and_the_gpu_of_another_are_no_place():
    apart = [node(CPU=8.0), node(GPU=4.0)]
    assert room(apart, {"CPU": 1, "GPU": 1}) == 0
    assert room([*apart, node(CPU=8.0, GPU=2.0)], {"CPU": 1, "GPU": 1}) == 2


def test_a_dead_node_has_no_room():
    assert room([node(CPU=1.0), node(alive=False, CPU=4.0)], {"CPU": 1}) == 1
    assert room([{"Alive": False, "Resources": {}}], {"CPU": 1}) == 0


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=5),
    st.integers(1, 4),
    st.integers(0, 2),
)
def test_no_more_than_there_is(sizes, cpus, gpus):
    """One worker after the other is given a place, until no node has one."""
    left, placed = [list(size) for size in sizes], 0
    for free in left:
        while free[0] >= cpus and free[1] >= gpus:
            free[0], free[1], placed = free[0] - cpus, free[1] - gpus, placed + 1
    nodes = [node(CPU=float(c), GPU=float(g)) for c, g in sizes]
    assert room(nodes, {"CPU": cpus, "GPU": gpus}) == placed


def test_where_no_node_is_large_enough_there_is_no_waiting(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "nodes", lambda: [node(CPU=1.0), node(CPU=1.0)])
    assert OnRay(cpus=1).slots == 2
    with pytest.raises(ValueError, match=r"no node .* 2 CPUs \(--threads\) and 0 GPUs"):
        _ = OnRay(cpus=2).slots
    with pytest.raises(ValueError, match=r"no node .* 1 CPUs .* and 1 GPUs \(--device\)"):
        list(OnRay(gpus=1).map(max, 1, [2]))


@pytest.mark.parametrize(("has_gpu", "shown"), [(False, ""), (True, "3")])
def test_who_was_given_no_gpu_sees_none(has_gpu, shown, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # as Ray sets it for who was given one
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    _Surroundings(str(tmp_path / "there"), has_gpu).enter()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == shown
    assert os.path.samefile(os.getcwd(), tmp_path / "there")
    _Surroundings(str(tmp_path / "nowhere"), has_gpu).enter()
    assert os.path.samefile(os.getcwd(), tmp_path / "there")


@pytest.mark.parametrize(("device", "gpus"), [("cuda:0", 1), ("cpu", 0)])
@pytest.mark.parametrize("command", ["embed", "bench"])
def test_a_gpu_is_asked_for_where_the_encoder_is_on_one(
    command, device, gpus, icon_stream, tiny, tmp_path, monkeypatch
):
    """By what `--device auto` came to here, not by the word."""
    asked = []

    @contextmanager
    def cluster(address, *, cpus, gpus):
        asked.append(gpus)
        raise ValueError("far enough")
        yield

    monkeypatch.setattr(tiny, "device", device)
    if command == "embed":
        module = _embed_shards
        monkeypatch.setattr(module, "open_encoder", lambda *settings: tiny)
        arguments = (icon_stream, "--classes", "alarm,anchor")
    else:
        module = importlib.import_module("soba.cli.bench")  # the package has an app of that name
        monkeypatch.setattr(module, "load_encoder", lambda *names, **settings: tiny)
        arguments = ("icons", "--datasets", "icons-v2", "--methods", "soba", "--per-class", 1)
    monkeypatch.setattr(module, "working", cluster)
    assert "far enough" in refused(command, *arguments, "-o", tmp_path / "out", "--ray")
    assert asked == [gpus]
