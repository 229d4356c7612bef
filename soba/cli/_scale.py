"""What the commands share that work in shards: options, who does the work, what is left to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from threadpoolctl import threadpool_limits

from soba.scale.folder import ShardFolder
from soba.scale.manifest import parse_part
from soba.scale.on_ray import LOCAL, ray_cluster
from soba.scale.run import Here, Runner

OPTION = "--ray"

ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Be worker I of N, counted from 0 as Slurm and Kubernetes count: 0/4, 1/4, 2/4, 3/4. "
        "Each takes every Nth shard of the input.",
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        OPTION,
        metavar="[ADDRESS]",
        help="Work on a Ray cluster: HOST:PORT, `auto` for the one of this machine, or nothing "
        "for a new one on this machine. Needs soba-tta\\[scale].",
    ),
]
Folder = Annotated[
    str, typer.Argument(metavar="OUT", help="The folder that `soba embed --shard` wrote.")
]


def with_ray_address(arguments: Sequence[str]) -> list[str]:
    """The arguments, where `--ray` without an address has one.

    >>> with_ray_address(["learn", "out", "--ray", "-o", "state"])
    ['learn', 'out', '--ray', 'local', '-o', 'state']
    """
    given: list[str] = []
    for place, word in enumerate(arguments):
        given.append(word)
        follows = arguments[place + 1 : place + 2]
        if word == OPTION and (not follows or follows[0].startswith("-")):
            given.append(LOCAL)
    return given


def refuse_both(shard: str | None, ray: str | None) -> None:
    """A cluster gives its workers their shards itself."""
    if shard is not None and ray is not None:
        raise ValueError("--ray spreads all shards over a cluster: leave --shard out")


@contextmanager
def working(ray: str | None, *, cpus: int = 1, gpus: float = 0) -> Iterator[Runner]:
    """Who does the work: a Ray cluster, or this process."""
    if ray is None:
        # Shards are what runs in parallel; threads of BLAS on top of that get in each other's way.
        with threadpool_limits(1, user_api="blas"):
            yield Here()
        return
    with ray_cluster(ray, cpus=cpus, gpus=gpus) as cluster:
        yield cluster


def gpus_of(*devices: str) -> int:
    """GPUs for a worker whose encoders are on such devices, as those opened here are.

    >>> gpus_of("cuda:0"), gpus_of("cpu", "cuda"), gpus_of("cpu"), gpus_of("mps")
    (1, 1, 0, 0)
    """
    return int(any(device.partition(":")[0] in ("cuda", "rocm") for device in devices))


def part_of(folder: ShardFolder, shard: str | None) -> range:
    """The numbers of the shards that this worker takes; without --shard all."""
    index, count = (0, 1) if shard is None else parse_part(shard)
    return folder.manifest.part(index, count)
