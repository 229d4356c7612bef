"""A `soba` command that is killed at a chosen moment, by itself: no clock has to hit it."""

import glob
import os
import signal
import subprocess
import sys
from pathlib import Path

import soba

SCRIPT = """
import glob, os, signal, sys
pattern, count, sync = sys.argv.pop(1), int(sys.argv.pop(1)), os.fsync
def fsync(handle):
    sync(handle)
    if sum(os.path.getsize(path) > 0 for path in glob.glob(pattern)) >= count:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
from soba.cli import main
main()
"""


def killed_at(folder, pattern, count, *arguments, env=None):
    """Run a command; it dies as soon as so many files in `folder` match and are not empty."""
    files = os.path.join(glob.escape(str(folder)), pattern)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, files, str(count), *map(str, arguments)],
        env=env or os.environ | {"PYTHONPATH": str(Path(soba.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
