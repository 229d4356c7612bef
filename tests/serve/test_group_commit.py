"""Whoever waits while one commits goes into the next transaction."""

import threading
from dataclasses import dataclass

import pytest

from soba.serve.group_commit import GroupCommit


@dataclass
class Job:
    size: int = 1


def run(jobs, work, begun=None):
    """Each job in a thread of its own; where `begun` is given, all wait until the first has."""
    failed = {}

    def guarded(job):
        try:
            work(job)
        except Exception as error:
            failed[id(job)] = error

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
        if begun is not None:
            begun.wait()
    for thread in threads:
        thread.join()
    return [failed.get(id(job)) for job in jobs]


class Held:
    """A commit that lets the first group wait until all others have queued up."""

    def __init__(self, waiting, limit=100, fails=()):
        self.groups, self.after = [], 0
        self.waiting, self.fails = waiting, fails
        self.begun = threading.Event()
        self.commits = GroupCommit(self.commit, self.count, limit)

    def commit(self, group):
        self.begun.set()
        while not self.groups and len(self.commits._waiting) < self.waiting:
            threading.Event().wait(0.001)
        self.groups.append(group)
        if len(self.groups) in self.fails:
            raise ValueError(f"group {len(self.groups)}")

    def count(self):
        self.after += 1

    def run(self, jobs):
        """The first one is a group of its own, since the others come when it is being written."""
        return run(jobs, self.commits.submit, self.begun)


def test_those_who_wait_are_committed_together():
    held = Held(waiting=15)
    assert held.run([Job() for _ in range(16)]) == [None] * 16
    assert [len(group) for group in held.groups] == [1, 15]
    assert held.after == 2


def test_a_group_has_a_limit_and_a_large_request_a_group_of_its_own():
    held, jobs = Held(waiting=8, limit=3), [Job() for _ in range(8)] + [Job(7)]
    assert held.run(jobs) == [None] * 9
    assert sorted(sum(job.size for job in group) for group in held.groups)[-1] == 7
    assert all(len(group) == 1 or sum(j.size for j in group) <= 3 for group in held.groups)
    assert sum(len(group) for group in held.groups) == 9


def test_what_a_commit_raises_all_of_its_group_raise():
    held = Held(waiting=5, fails={2})
    errors = held.run([Job() for _ in range(6)])
    assert sorted(map(str, errors)) == ["None"] + ["group 2"] * 5
    assert held.after == 1
    held.commits.submit(Job())  # the next one is none the worse


def test_an_interrupted_leader_leaves_others_an_error_and_the_turn():
    def commit(group):
        raise KeyboardInterrupt

    commits = GroupCommit(commit, lambda: None, 10)
    with pytest.raises(KeyboardInterrupt):
        commits.submit(Job())
    assert commits.alone(lambda: 3) == 3


def test_alone_is_alone():
    inside = []

    def enter(job):
        inside.append(1)
        assert len(inside) == 1
        threading.Event().wait(0.001)
        inside.pop()

    commits = GroupCommit(enter, lambda: None, 1)
    jobs = [Job() for _ in range(8)]
    assert run(jobs, lambda job: commits.submit(job)) == [None] * 8
    assert run(jobs, lambda job: commits.alone(lambda: enter(job))) == [None] * 8
