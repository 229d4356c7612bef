"""A real server process on a free port, for tests: it says where it listens."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from server_farm import free_port

import soba

HOME = Path(soba.__file__).parents[1]
READY = "soba serves at "


class Server:
    """`soba serve` with some options; :meth:`kill` and :meth:`start` as often as you like.

    The second start listens on the same port as the first, as a restarted service does.
    """

    def __init__(self, store, *options, env=None):
        self.store, self.options, self.env = store, options, env or {}
        self.port, self.url, self.process, self.lines = free_port(), None, None, []

    def start(self):
        command = [sys.executable, "-m", "soba", "serve", "--store", self.store]
        command += ["--port", str(self.port), "--drain-seconds", "0", *map(str, self.options)]
        folders = [str(HOME), str(Path(__file__).parent)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(folders), "COLUMNS": "200"} | self.env,
        )
        for line in self.process.stdout:
            self.lines.append(line)
            if READY in line:
                self.url = line.split(READY)[1].strip()
                self.port = int(self.url.rpartition(":")[2])
                break
        else:
            raise AssertionError("the server did not start:\n" + "".join(self.lines))
        self._reader = threading.Thread(target=self._drain, args=(self.process,), daemon=True)
        self._reader.start()
        return self

    def _drain(self, process):
        """Nobody may wait for a full pipe."""
        with contextlib.suppress(ValueError):  # the pipe is closed
            self.lines.extend(process.stdout)

    def kill(self):
        """kill -9, in the middle of whatever it does."""
        self.process.kill()
        self._ended()

    def stop(self):
        """Ask it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def _ended(self):
        """The exit code, when all that it said was read and its pipe is closed."""
        code = self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        return code

    def __enter__(self):
        return self.start()

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
