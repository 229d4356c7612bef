"""The same work on a Ray cluster: tasks, actors, and Ray's own retries; nothing else knows of Ray.

Features travel by path and never through the object store: what does is as large as a model, and
only as many results as there are workers wait in it.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

LOCAL = "local"  # in place of an address: a cluster of this machine's own, for this run
RETRIES = 3  # of a task whose process or node died, and restarts of an actor


@contextmanager
def ray_cluster(address: str = LOCAL, *, cpus: int = 1, gpus: float = 0) -> Iterator[OnRay]:
    """Connect to a cluster, or start one here, for as long as the block lasts.

    Parameters
    ----------
    address
        Of the head node, HOST:PORT; "auto" for the one this machine belongs to; "local" for a
        new one, without dashboard and usage statistics, which listens to this machine only.
    cpus, gpus
        That each worker is given.
    """
    started: dict[str, Any] = {}
    if address == LOCAL:
        _keep_to_this_machine()
        started = {"include_dashboard": False}
    ray = _ray()
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **started)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())
        raise ConnectionError(f"no Ray cluster at {address}: {reason}") from error
    try:
        yield OnRay(cpus, gpus)
    finally:
        ray.shutdown()


def _keep_to_this_machine() -> None:
    """What a cluster of our own is told before Ray is imported, unless a person has said it."""
    # It takes the loopback address, as it does on a Mac.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not any(name.startswith("RAY_AUTH_") for name in os.environ):
        # A token of this run alone: its processes inherit it, and it is written nowhere.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


class OnRay:
    """A `soba.scale.run.Runner` on the cluster that is connected to."""

    def __init__(self, cpus: int = 1, gpus: float = 0) -> None:
        self._ray = _ray()
        self._cpus, self._gpus = cpus, gpus
        self._needs = {"num_cpus": cpus, "num_gpus": gpus}
        self._surroundings = _Surroundings(os.getcwd(), bool(gpus))

    @property
    def slots(self) -> int:
        """How many workers the whole cluster has room for."""
        places = room(self._ray.nodes(), {"CPU": self._cpus, "GPU": self._gpus})
        if not places:  # Ray would wait for such a node for ever
            raise ValueError(
                "no node of the Ray cluster has what a worker needs: "
                f"{self._cpus} CPUs (--threads) and {self._gpus:g} GPUs (--device)"
            )
        return places

    def map(
        self, function: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any]
    ) -> Iterator[Any]:
        """A task per item; results come in order, and few of them wait for their turn."""
        ray, rest = self._ray, iter(items)
        task = ray.remote(_work_there).options(**self._needs, max_retries=RETRIES)
        start = partial(task.remote, self._surroundings, function, ray.put(shared))
        waiting = deque(start(item) for item in islice(rest, 2 * self.slots))
        while waiting:
            result = self._result(waiting.popleft())
            waiting.extend(start(item) for item in islice(rest, 1))
            yield result

    def spread(
        self, make_worker: Callable[[], Callable[[Any], Any]], items: Sequence[Any]
    ) -> Iterator[Any]:
        """A pool of actors, as many as there is room for, each with one item at a time."""
        ray, rest = self._ray, iter(items)
        # What is counted are an actor's restarts, not the tries of an item: while nobody knows yet
        # that a node is gone, an item is tried many times within a second.
        actor_class = ray.remote(_Actor).options(
            **self._needs, max_restarts=RETRIES, max_task_retries=-1
        )
        busy = {}
        for item in islice(rest, self.slots):
            actor = actor_class.remote(self._surroundings, make_worker)
            busy[actor.work.remote(item)] = actor
        while busy:
            [done], _ = ray.wait(list(busy), num_returns=1)
            actor = busy.pop(done)
            result = self._result(done)
            for item in islice(rest, 1):
                busy[actor.work.remote(item)] = actor
            # Without a next item it is let go: its place may be what a restarted one waits for.
            del actor
            yield result

    def _result(self, reference: Any) -> Any:
        """The result, or the error as it was raised where the work was done."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.RayError as error:
            reason = " ".join(str(error).split())
            raise ChildProcessError(
                f"a worker died, and {RETRIES} retries did not help: {reason}"
            ) from error


def room(nodes: Iterable[Mapping[str, Any]], needs: Mapping[str, float]) -> int:
    """How many workers find a place, each on one node that has all it needs.

    `nodes` are what `ray.nodes()` tells of.

    Examples
    --------
    >>> small, large = ({"Alive": True, "Resources": {"CPU": n}} for n in (1.0, 4.0))
    >>> room([small, large, small], {"CPU": 2}), room([small, small], {"CPU": 2})
    (2, 0)
    """
    return sum(
        min((int(node["Resources"].get(name, 0) // n) for name, n in needs.items() if n), default=1)
        for node in nodes
        if node["Alive"]
    )


@dataclass(frozen=True)
class _Surroundings:
    """What a worker finds around it, on whatever node it is."""

    folder: str
    has_gpu: bool

    def enter(self) -> None:
        # Relative paths mean on every node what they mean to whoever started the run.
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        # Ray shows all GPUs to whoever has asked for none, and all such workers would share the
        # first.
        if not self.has_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""


class _Actor:
    """A worker with a process of its own."""

    def __init__(
        self, surroundings: _Surroundings, make_worker: Callable[[], Callable[[Any], Any]]
    ) -> None:
        surroundings.enter()
        self._make_worker = make_worker
        self._worker: Callable[[Any], Any] | None = None

    def work(self, item: Any) -> Any:
        if self._worker is None:  # made here, so that what is wrong with it is raised as it is
            self._worker = self._make_worker()
        return self._worker(item)


def _work_there(
    surroundings: _Surroundings, function: Callable[[Any, Any], Any], shared: Any, item: Any
) -> Any:
    surroundings.enter()
    return function(shared, item)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            f"--ray needs Ray: pip install 'soba-tta[scale]' ({error}); without it, --shard i/n "
            "does the same work under any scheduler"
        ) from error
    return ray
