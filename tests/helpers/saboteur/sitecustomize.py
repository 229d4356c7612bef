"""Kills a worker, its node or the driver at a moment that files decide: no clock has to hit it.

Python imports this file where it starts with this folder in PYTHONPATH. What is to be killed, and
after how many feature files, stands in files that whoever kills takes away: it happens once.
"""

import contextlib
import glob
import os
import signal
import time

_SYNC = os.fsync
_PLANS = os.environ.get("SOBA_TEST_PLANS", "")
_NODE = os.environ.get("SOBA_TEST_NODE", "")


def _read(name):
    """The words of a plan, if there is one and its time has come."""
    with contextlib.suppress(OSError):
        with open(os.path.join(_PLANS, name)) as file:
            features, least, *rest = file.read().split()
        if len(glob.glob(os.path.join(features, "features-*.parquet"))) >= int(least):
            return rest
    return None


def _take(name):
    """Whether this process is the one that carries a plan out."""
    try:
        os.unlink(os.path.join(_PLANS, name))
    except OSError:
        return False
    return True


def _kill(*processes):
    for process in processes:
        os.kill(process, signal.SIGKILL)


def _fsync(handle):
    """A file is written, and has not got its name yet."""
    _SYNC(handle)
    driver = _read("driver")
    if driver is not None and _take("driver"):
        _kill(int(driver[0]))
    if _read("worker") is not None and _take("worker"):
        _kill(os.getpid())
    if _read("poison") is not None:  # again and again
        _kill(os.getpid())
    if _NODE == "second" and _read("node") is not None and _take("node"):
        _kill(os.getppid(), os.getpid())  # the parent of Ray's workers is the node itself
    until = time.monotonic() + 300  # should the second never come
    while _NODE != "second" and _read("node") is not None and time.monotonic() < until:
        time.sleep(0.05)  # else the first node might do all the work before the second is up


if _PLANS and _NODE:
    os.fsync = _fsync
