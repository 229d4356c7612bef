"""The same commands on a Ray cluster of two nodes: whatever dies, the same files come of it."""

import json
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest
from ray_nodes import RayNodes
from run_cli import soba_command

import soba
from soba.datasets.icons import icons

COMMANDS = """
import json, sys
from soba.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["soba", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


@pytest.fixture(scope="module")
def nodes():
    cluster = RayNodes()
    yield cluster
    cluster.close()


def draw(folder, images):
    """So many icons of the hard domains, and the file of their class names."""
    drawn = icons("sketch", per_class=-(-images // len(icons("sketch", per_class=1).class_names)))
    (folder / "icons").mkdir()
    order = np.random.default_rng(0).permutation(len(drawn.keys))[:images]
    for place, index in enumerate(order):
        drawn.image(int(index)).save(folder / "icons" / f"{place:05d}.png")
    (folder / "names.txt").write_text("\n".join(drawn.class_names))


def files_of(folder, pattern="*"):
    return {path.name: path.read_bytes() for path in sorted(folder.glob(pattern))}


def kept_ids(path):
    return soba.SOBAPlus.load(path).sample.ids.tolist()


def labels_in(folder):
    tables = [pq.read_table(file) for file in sorted(folder.glob("*.parquet"))]
    return [(row["id"], row["label"]) for table in tables for row in table.to_pylist()]


def run_on_both(nodes, place, images, size):
    draw(place, images)
    (place / "icons" / "00017.png").write_bytes(b"no picture")
    embed = ("embed", place / "icons", "--classes-file", place / "names.txt", "--shard-size", size)
    embed = (*embed, "--threads", 1)
    for index in range(2):
        soba_command(*embed, "-o", place / "here", "--shard", f"{index}/2")
    assert images // size == len(list((place / "here").glob("features-*")))

    there, ray = place / "there", ("--ray", nodes.address)
    command = nodes.start(*embed, "-o", there, *ray)
    nodes.plan("driver", there, 2, command.pid)
    with command:
        try:
            command.communicate()
        except BaseException:  # out of time
            command.kill()
            raise
    assert command.returncode == -signal.SIGKILL
    half = len(list(there.glob("features-*")))
    assert 2 <= half < images // size - 4

    nodes.plan("worker", there, half + 1)
    nodes.plan("node", there, half + 3)
    printed = nodes.run(*embed, "-o", there, *ray)
    assert f"{images - 1} images in" in printed and "00017.png" in printed
    assert not list(nodes.plans.iterdir())  # both were killed
    assert files_of(place / "here") == files_of(there, "[!.]*")

    soba_command("learn", place / "here", "-o", place / "here.state")
    soba_command("predict", place / "here", "--state", place / "here.state", "-o", place / "one")
    soba_command("learn", place / "here", "-o", place / "here.model", "--transductive")
    commands = [
        ("learn", there, "-o", place / "there.state", *ray),
        ("predict", there, "--state", place / "there.state", "-o", place / "two", *ray),
        ("learn", there, "-o", place / "there.model", "--transductive", *ray),
    ]
    nodes.run("-c", COMMANDS, json.dumps([list(map(str, command)) for command in commands]))
    assert kept_ids(place / "here.state") == kept_ids(place / "there.state")
    assert labels_in(place / "one") == labels_in(place / "two")
    assert len(labels_in(place / "one")) == images
    # The same blocks were summed in the same order.
    assert (place / "here.model").read_bytes() == (place / "there.model").read_bytes()
    assert not list(nodes.home.rglob("*ray*"))


def test_a_worker_a_node_and_the_driver_may_die(nodes, tmp_path):
    run_on_both(nodes, tmp_path, 600, 50)
    # What is wrong on a node is said as it is said here, in one line that names the file.
    file = tmp_path / "there" / "features-00003.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    arguments = ("predict", tmp_path / "there", "--state", tmp_path / "there.state")
    ray = ("-o", tmp_path / "three", "--ray", nodes.address)
    last = nodes.run(*arguments, *ray, code=2).rstrip().splitlines()[-1]
    assert last.startswith(f"error: {file}: not a readable feature file")


@pytest.mark.long
def test_twenty_thousand_images(tmp_path):
    cluster = RayNodes()
    try:
        run_on_both(cluster, tmp_path, 20_000, 1000)
    finally:
        cluster.close()


@pytest.mark.long
def test_a_shard_that_kills_every_worker_is_an_error(nodes, tmp_path):
    draw(tmp_path, 60)
    options = ("--classes-file", tmp_path / "names.txt", "--shard-size", 10, "--threads", 1)
    nodes.plan("poison", tmp_path / "run", 2)
    arguments = ("embed", tmp_path / "icons", "-o", tmp_path / "run", *options)
    printed = nodes.run(*arguments, "--ray", nodes.address, code=2)
    assert "a worker died, and 3 retries did not help" in " ".join(printed.split())
    (nodes.plans / "poison").unlink()
    assert "60 images in 6 shards" in nodes.run(*arguments, "--ray", nodes.address)


@pytest.mark.long
def test_what_a_worker_refuses_is_said_in_a_line(nodes, tmp_path):
    draw(tmp_path, 20)
    run, state, options = tmp_path / "run", tmp_path / "state", ("--threads", 1)
    classes = ("--classes-file", tmp_path / "names.txt")
    soba_command("embed", tmp_path / "icons", "-o", run, "--shards", *classes, *options)
    soba_command("learn", run, "-o", state)
    soba_command("predict", run, "--state", state, "-o", tmp_path / "answers")
    arguments = ("predict", run, "--state", state, "-o", tmp_path / "answers", "--top", 1)
    last = nodes.run(*arguments, "--ray", nodes.address, code=2).rstrip().splitlines()[-1]
    assert last.startswith(f"error: {tmp_path / 'answers' / 'answers.json'}: is of other answers")


@pytest.mark.long
def test_more_statistics_than_the_object_store_holds(tmp_path):
    """Sixteen shards of 6 MB of statistics each, through a store of 80 MB."""
    names = [f"thing number {number}" for number in range(6000)]
    (tmp_path / "names.txt").write_text("\n".join(names))
    (tmp_path / "lake").mkdir()
    rng = np.random.default_rng(0)
    for number in range(16):
        np.save(
            tmp_path / "lake" / f"{number:02d}.npy", rng.standard_normal((200, 128), np.float32)
        )
    here, classes = tmp_path / "here", ("--classes-file", tmp_path / "names.txt")
    classes = (*classes, "--templates", "{}")
    soba_command("embed", tmp_path / "lake", "-o", here, "--shards", *classes)
    learn = ("learn", here, "--transductive", "--rounds", 3)
    soba_command(*learn, "-o", tmp_path / "here.model")
    cluster = RayNodes()
    try:
        cluster.run(*learn, "-o", tmp_path / "there.model", "--ray", cluster.address)
    finally:
        cluster.close()
    assert (tmp_path / "here.model").read_bytes() == (tmp_path / "there.model").read_bytes()


@pytest.mark.long
def test_a_cluster_of_our_own_runs_a_benchmark(tmp_path):
    """`--ray` without an address; nothing of it stays, and the records are those made here."""
    cluster = RayNodes()  # for its environment only
    try:
        arguments = ("bench", "icons", "--datasets", "icons-v2", "--methods", "zero-shot,soba+")
        arguments = (*arguments, "--per-class", 2, "--orders", 2)
        cluster.run(*arguments, "-o", tmp_path / "there", "--ray")
        soba_command(*arguments, "-o", tmp_path / "here")
        accuracies = [
            {path.name: json.loads(path.read_text())["accuracy"] for path in place.iterdir()}
            for place in (tmp_path / "here" / "records", tmp_path / "there" / "records")
        ]
        assert len(accuracies[0]) == 4 and accuracies[0] == accuracies[1]
        assert not list(cluster.home.rglob("*ray*"))
    finally:
        cluster.close()
