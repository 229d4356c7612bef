"""A Ray cluster of two node processes on this machine, with nothing in the home folder.

Run as a script it starts the nodes, prints their address, and ends them when its input ends.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import soba

ROOT = Path(soba.__file__).parents[1]
HELPERS = Path(__file__).parent
STORE = 80 * 2**20  # bytes of each node's object store, close to the least that Ray takes


class RayNodes:
    """Two nodes of one CPU each; `plans` is where a test says what is to be killed."""

    def __init__(self):
        # Sockets lie in it, whose names may not be long.
        self.place = Path(tempfile.mkdtemp(prefix="soba-"))
        self.plans, self.home = self.place / "plans", self.place / "home"
        self.plans.mkdir()
        self.home.mkdir()
        (self.place / "ray").mkdir()
        self.env = os.environ | {
            "HOME": str(self.home),
            "RAY_TMPDIR": str(self.place),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the loopback address
            "RAY_health_check_initial_delay_ms": "0",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_failure_threshold": "5",
            "RAY_worker_niceness": "0",  # Ray's own 15 starves them on a busy machine
            "SOBA_TEST_PLANS": str(self.plans),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{HELPERS / 'saboteur'}",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._log = (self.place / "nodes.log").open("w+")
        self._nodes = subprocess.Popen(
            [sys.executable, __file__],
            env=self.env | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HELPERS}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self.address = self._nodes.stdout.readline().strip()
        assert self.address, (self.place / "nodes.log").read_text()

    def start(self, *arguments):
        """A `soba` command on the cluster, or with `-c` a script, begun."""
        lead = [] if arguments[0] == "-c" else ["-m", "soba"]
        return subprocess.Popen(
            [sys.executable, *lead, *map(str, arguments)],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments, code=0):
        """What a command prints; its exit code must be `code`."""
        with self.start(*arguments) as command:
            try:
                printed, _ = command.communicate()
            except BaseException:  # out of time: nobody shall wait for it any more
                command.kill()
                raise
        assert command.returncode == code, printed + self.logs()
        return printed

    def plan(self, name, features, least, *rest):
        """Have something killed once so many feature files are in a folder."""
        words = " ".join(map(str, (features, least, *rest)))
        hidden = self.plans / f".{name}"
        hidden.write_text(words)
        hidden.rename(self.plans / name)

    def logs(self):
        return (self.place / "nodes.log").read_text()

    def close(self):
        self._nodes.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._nodes.wait(120)
        with contextlib.suppress(ProcessLookupError):  # what outlived its node
            os.killpg(self._nodes.pid, signal.SIGKILL)
        self._nodes.wait()
        self._nodes.stdout.close()
        self._log.close()
        shutil.rmtree(self.place)


def main():
    from ray.cluster_utils import Cluster

    shared = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "object_store_memory": STORE}
    saboteur = f"{ROOT}{os.pathsep}{HELPERS / 'saboteur'}"

    def env(node):
        return os.environ | {"SOBA_TEST_NODE": node, "PYTHONPATH": saboteur}

    Cluster._wait_for_node.__defaults__ = (300,)  # seconds: a busy machine is slow to start nodes
    head = shared | {"include_dashboard": False, "env_vars": env("first")}
    temp = os.path.join(os.environ["RAY_TMPDIR"], "ray")
    cluster = Cluster(initialize_head=True, head_node_args=head | {"temp_dir": temp})
    cluster.add_node(**shared, env_vars=env("second"))
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
