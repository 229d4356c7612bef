"""Small versions of the benchmarks fail past the bar times 1.5."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("name", ["speed", "views"])
def test_small_benchmark(name):
    command = [sys.executable, BENCHMARKS / f"{name}.py", "--small", "--slack", "1.5"]
    run = subprocess.run(command, capture_output=True, text=True)
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
