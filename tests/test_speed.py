"""A small version of benchmarks/speed.py fails past the bar times 1.5."""

import subprocess
import sys
from pathlib import Path

SPEED = Path(__file__).parent.parent / "benchmarks" / "speed.py"


def test_small_benchmark():
    run = subprocess.run(
        [sys.executable, SPEED, "--small", "--slack", "1.5"], capture_output=True, text=True
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
