"""A PostgreSQL server for tests, on a socket in a folder; root runs it as user `postgres`."""

import contextlib
import glob
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

PLACES = ["/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin"]


def binaries():
    """The folder of PostgreSQL's programs, of the newest version there is; None without any."""
    folders = [folder for place in PLACES for folder in glob.glob(place)]
    on_path = shutil.which("initdb")
    folders += [os.path.dirname(os.path.realpath(on_path))] if on_path else []
    usable = [folder for folder in folders if os.path.exists(f"{folder}/initdb")]
    return max(usable, key=lambda folder: [*map(int, _numbers(folder))], default=None)


def _numbers(folder):
    return "".join(c if c.isdigit() else " " for c in folder).split()


class PostgresServer:
    """Started by :meth:`start`; everything of it is in one folder, which goes in the end."""

    def __init__(self):
        self.programs = binaries()
        # In /tmp, since the name of a socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="soba-pg-", dir="/tmp"))
        self.identity, self.process = {}, None
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            user = pwd.getpwnam("postgres")
            self.identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        options = "-U soba -A trust -E UTF8 --locale=C --no-sync"
        self._run("initdb", "-D", "data", *options.split())

    def start(self):
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "16MB",
            "max_connections": "40",
            "fsync": "off",  # no power is cut here: the kernel keeps what a killed server wrote
        }
        settings = [part for item in options.items() for part in ("-c", "=".join(item))]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [f"{self.programs}/postgres", "-D", "data", *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"LANG": "C", "PATH": os.environ["PATH"]},
                **self.identity,
            )
        while True:
            try:
                psycopg.connect(self._url("postgres")).close()
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.02)

    def kill(self):
        """All at once and without a word to its clients, as a machine goes down."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()

    @contextlib.contextmanager
    def hanging(self):
        """It neither answers nor refuses meanwhile, as if its disk or the network stood still."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        processes = [self.process.pid]
        os.kill(self.process.pid, signal.SIGSTOP)  # first: it neither forks nor reaps from now on
        try:
            processes += map(int, children.read_text().split())
            for pid in processes[1:]:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in processes:
                os.kill(pid, signal.SIGCONT)

    def new_database(self):
        """The URL of an empty place in it."""
        schema = f"t_{secrets.token_hex(6)}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        return f"{self._url('postgres')}&options=-csearch_path%3D{schema}"

    def remove(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder)

    def _url(self, database):
        return f"postgresql:///{database}?host={self.folder}&user=soba"

    def _run(self, program, *arguments):
        done = subprocess.run(
            [f"{self.programs}/{program}", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env={"LANG": "C", "PATH": os.environ["PATH"]},
            **self.identity,
        )
        assert done.returncode == 0, done.stdout + done.stderr
