"""`make test-kernels` counts a kernel as run only if the library says that it took it."""

import subprocess
import sys

import kernels
import pytest
from kernels import kernel, main, why_not

ONE = kernel("OMP_NUM_THREADS", "1", "threads", "1 and 1")


def test_the_libraries_are_asked():
    assert why_not(ONE, frozenset()) == ""


def test_what_the_cpu_does_not_know_is_not_tried():
    needy = kernel("ATEN_CPU_CAPABILITY", "avx512", "ATen", "AVX512", "avx512f")
    assert why_not(needy, frozenset(["avx2"])) == "this CPU has no avx512f"


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("""print('{"threads": "8 and 1"}')""", "threads says 8 and 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "ends the process with SIGILL"),
        ("raise SystemExit('no such library')", "no such library"),
    ],
)
def test_a_library_that_does_otherwise_is_the_reason(monkeypatch, ending, reason):
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda _, **options: run([sys.executable, "-c", ending], **options)
    )
    assert reason in why_not(ONE, frozenset())


def test_a_line_a_kernel_and_failures_in_the_exit_code(monkeypatch, capsys):
    two = kernel("OMP_NUM_THREADS", "2", "threads", "2 and 2")
    odd = kernel("ATEN_CPU_CAPABILITY", "odd", "ATen", "ODD")
    outcomes = {str(ONE): (0, "...\n3 passed in 1s"), str(two): (1, "FAILED x\n1 failed in 1s")}
    monkeypatch.setattr(kernels, "kernels", lambda: [ONE, odd, two])
    monkeypatch.setattr(kernels, "why_not", lambda kernel, _: "it is odd" if kernel is odd else "")
    given = []
    monkeypatch.setattr(
        kernels, "run_tests", lambda kernel, rest: given.append(rest) or outcomes[str(kernel)]
    )
    assert main(["-k", "coop", "-x"]) == 1
    assert given == [["-k", "coop", "-x"]] * 2  # what it does not know goes to pytest
    assert capsys.readouterr().out.splitlines() == [
        "OMP_NUM_THREADS=1: 3 passed in 1s",
        "FAILED x",
        "1 failed in 1s",
        "OMP_NUM_THREADS=2: 1 failed in 1s",
        "ATEN_CPU_CAPABILITY=odd: not run, it is odd",
        "2 kernels run, 1 failed, 1 not run",
    ]
    assert main(["--only", "threads=1"]) == 0
    assert main(["--only", "odd"]) == 1  # nothing has run
