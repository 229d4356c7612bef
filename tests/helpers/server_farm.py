"""Servers that start in a moment, to be killed at any.

A server needs seconds to import what it is made of, so one process does that once, and forks for
each. What runs then is the command, `soba serve`, with the options that a person would give it.
"""

import json
import os
import random
import resource
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path

import soba


def free_port():
    """One that nobody listens on, and that no outgoing connection is given by the system."""
    while True:
        port = random.SystemRandom().randrange(12_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class ServerFarm:
    """Starts servers, from outside."""

    def __init__(self):
        folders = [Path(soba.__file__).parents[1], Path(__file__).parent]
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
        )

    def start(self, store, folder, *options, port=None, ready=True, disk="writable"):
        """A server of this command's options; its log goes into the folder."""
        server = Server(self, port or free_port(), Path(folder) / "server.log")
        argv = ["serve", "--store", store, "--port", str(server.port), *options]
        server.pid = self._ask(argv=argv, log=str(server.log), disk=disk)
        if ready:
            server.wait("/readyz")
        return server

    def ended(self, pid):
        """Wait for the end of a server: its exit code, negative if a signal ended it."""
        return self._ask(wait=pid)

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, **order):
        print(json.dumps(order), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the servers' parent has ended"
        return int(line)


class Server:
    """One that runs, at an address."""

    def __init__(self, farm, port, log):
        self._farm, self.port, self.log, self.pid = farm, port, log, None
        self.url = f"http://127.0.0.1:{port}"

    def wait(self, path):
        """Until it answers 200 there."""
        while self.get(path) != 200:
            os.kill(self.pid, 0)
            assert self.running(), self.log.read_text()
            time.sleep(0.01)

    def get(self, path):
        """The status of an answer; None without any."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return None

    def running(self):
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"

    def kill(self, how=signal.SIGKILL):
        """The exit code it ends with."""
        os.kill(self.pid, how)
        return self.join()

    def join(self):
        return self._farm.ended(self.pid)

    def full_disk(self, size):
        """No file of it may grow beyond so many bytes from now on; None: any again."""
        hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def memory(self):
        """Bytes that are resident."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.pid is not None and Path(f"/proc/{self.pid}").exists():
            self.kill()


# In the parent of the servers ---------------------------------------------------------------------


def serve(argv, log, disk):
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    if disk == "read-only":
        connect = sqlite3.connect
        sqlite3.connect = lambda path, **options: connect(
            f"file:{path}?mode=ro", uri=True, **options
        )
    sys.argv = ["soba", *argv]
    from soba.cli import main

    main()


def forked(order):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        serve(**order)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main():
    import onnxruntime  # noqa: F401, what takes time is done before the first order

    import soba.cli
    import soba.serve.http.run  # noqa: F401

    running = set()
    while select.select([0], [], [])[0]:
        line = sys.stdin.buffer.raw.readline()
        if not line:
            break
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            running.discard(order["wait"])
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = forked(order)
            running.add(answer)
        os.write(1, f"{answer}\n".encode())
    for pid in running:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
