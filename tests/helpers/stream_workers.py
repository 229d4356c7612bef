"""Processes that feed a durable stream, to be killed at any moment.

Python takes a second to start, so one process does that, and forks for each job. It tells of
what happens line by line: `ack JOB FIRST LAST` of samples that were acknowledged, `end JOB`.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from pathlib import Path

import soba


class Workers:
    """Starts and kills jobs, from outside."""

    def __init__(self):
        folders = [Path(soba.__file__).parents[1], Path(__file__).parent]
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
        )
        self._events, self._jobs, self._ended = deque(), {}, set()

    def start(self, url, rows, **options):
        """Feed some samples, in small batches; the job's number."""
        job = len(self._jobs)
        print(json.dumps({"job": job, "url": url, "rows": list(rows), **options}),
              file=self._process.stdin, flush=True)  # fmt: skip
        self._jobs[job] = None
        while self._jobs[job] is None:
            self._read()
        return job

    def acknowledged(self, job):
        """The samples of the next acknowledgement; None when the job has ended."""
        while True:
            for event in self._events:
                if event[0] == job:
                    self._events.remove(event)
                    return event[1]
            if job in self._ended:
                return None
            self._read()

    def kill(self, job):
        """The samples that were acknowledged and not yet asked for; the job is dead then."""
        if job not in self._ended:
            with contextlib.suppress(ProcessLookupError):  # it ended, and that is still to be read
                os.kill(self._jobs[job], signal.SIGKILL)
        rows = []
        while (more := self.acknowledged(job)) is not None:
            rows += more
        return rows

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _read(self):
        line = self._process.stdout.readline()
        assert line, "the workers' parent has ended"
        what, job, *numbers = line.split()
        job = int(job)
        if what == "begin":
            self._jobs[job] = int(numbers[0])
        elif what == "ack":
            self._events.append((job, list(map(int, numbers))))
        else:
            self._ended.add(job)


def kill_often(workers, url, rows, kills, rng):
    """Feed samples while the feeder is killed again and again; what is not acknowledged is
    sent again, until all is. How often it was killed before it had done all."""
    left, killed = set(rows), 0
    while killed < kills:
        if not left:  # all is learned already: send it again, which changes nothing
            left = set(rows)
        job = workers.start(url, rng.permutation(sorted(left)).tolist())
        for _ in range(rng.integers(0, 5)):
            left -= set(workers.acknowledged(job) or [])
        time.sleep(rng.uniform(0.0, 0.02))
        left -= set(workers.kill(job))
        killed += 1
    job = workers.start(url, sorted(left))
    while (acknowledged := workers.acknowledged(job)) is not None:
        left -= set(acknowledged)
    assert not left


# In the worker ------------------------------------------------------------------------------------


def feed(url, rows, job, threads=2, batch=3, die_after=None):
    """Two threads, so that some samples go into one transaction."""
    from faulty import faulty
    from streams import FEATURES, classifier

    from soba.serve import replica

    def fault(statement, before):
        if die_after and not before and statement.startswith(die_after):
            os.kill(os.getpid(), signal.SIGKILL)

    replica._LEAST_LOG = 1 << 14  # so that the log is compacted now and then
    stream = soba.DurableStream(faulty(url, fault), "cats", classifier())

    def work(mine):
        for start in range(0, len(mine), batch):
            some = mine[start : start + batch]
            stream.learn(FEATURES[some], ids=some)
            tell("ack", job, *some)

    workers = [threading.Thread(target=work, args=(rows[k::threads],)) for k in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    stream.close()


def tell(*words):
    os.write(1, f"{' '.join(map(str, words))}\n".encode())  # in one piece


def main():
    import streams  # noqa: F401, what takes time is done before the first job

    from soba.serve import durable  # noqa: F401

    jobs = {}
    while True:
        ready, _, _ = select.select([0], [], [], 0.005)
        if ready:
            line = sys.stdin.buffer.raw.readline()
            if not line:
                break
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                try:
                    feed(**order)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)
            tell("begin", order["job"], pid)
            jobs[pid] = order["job"]
        while jobs:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            tell("end", jobs.pop(pid))
    for pid in jobs:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
