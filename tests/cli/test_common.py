import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from soba.cli._common import check_folder, stop_signals

CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_first_signal_asks_and_a_second_ends_at_once(number, code):
    before = {each: signal.getsignal(each) for each, _ in CODES}
    for first, first_code in CODES:
        with pytest.raises(SystemExit) as end, stop_signals() as stop:
            assert not stop.is_set()
            signal.raise_signal(first)
            assert stop.is_set()
            assert stop.exit_code == first_code
            signal.raise_signal(number)
        assert end.value.code == code
        assert {each: signal.getsignal(each) for each in before} == before


def test_a_result_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("nowhere/file")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    for path, problem in {
        tmp_path: "is a folder",
        tmp_path / "no" / "file": "the folder does not exist",
        tmp_path / "lost": "the folder does not exist",
        tmp_path / "loop": "not a file that can be replaced",
        tmp_path / "pipe": "not a file that can be replaced",
        Path("/dev/null"): "not a file that can be replaced",
    }.items():
        with pytest.raises(ValueError, match=f"{path}: .*{problem}"):
            check_folder(path)
    for path in (None, tmp_path / "file", tmp_path / "link"):
        check_folder(path)


def test_python_runs_the_package_as_the_command():
    command = [sys.executable, "-m", "soba", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: soba [OPTIONS] COMMAND")
