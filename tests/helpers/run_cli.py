"""The `soba` command inside the test's own process: the same entry point, without the start-up."""

import contextlib
import io
import sys
from unittest import mock

from soba.cli import main
from soba.cli._common import err, out


def soba_command(*arguments, code=0):
    """What the command prints, both streams; its exit code must be `code`."""
    printed = io.StringIO()
    argv = ["soba", *map(str, arguments)]
    out.width = err.width = 200
    with (
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            main()
            exit_code = 0
        except SystemExit as end:
            exit_code = end.code or 0
    assert exit_code == code, printed.getvalue()
    return printed.getvalue()


def refused(*arguments):
    """The one line that bad input ends in."""
    printed = soba_command(*arguments, code=2)
    lines = [line for line in printed.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, printed
    assert printed.rstrip().endswith(lines[0]), printed
    return lines[0]
