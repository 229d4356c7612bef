"""The numeric tests under the kernels of other CPUs, as far as this one can run them.

    python tests/kernels.py                    all kernels: some three minutes each
    python tests/kernels.py --only ATEN -x     those with this name; other options go to pytest

numpy, OpenBLAS, ATen, oneDNN and MKL choose their kernels by the CPU they find, and each rounds
its own way; what passes with one may ask another for the wrong bits. The libraries themselves
are asked whether a setting took effect. What this CPU cannot run is listed as not run, with the
reason.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUMERIC = (
    *("tests/adapt", "tests/tune", "tests/encode", "tests/scale", "soba"),
    *("tests/test_classifier.py", "tests/test_classifier_state.py"),
    *("tests/test_real_data.py", "tests/test_hf.py"),
)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Kernel:
    """Settings, and what the libraries must say when they took effect."""

    name: str
    settings: Mapping[str, str]
    says: Mapping[str, str]
    needs: frozenset[str] = frozenset()  # by the CPU: what it does not know would end the process

    def __str__(self) -> str:
        return self.name

    def __add__(self, other: Kernel) -> Kernel:
        return Kernel(
            f"{self} {other}",
            {**self.settings, **other.settings},
            {**self.says, **other.says},
            self.needs | other.needs,
        )

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | dict.fromkeys(THREADS, "1") | self.settings


def kernel(variable: str, value: str, library: str, says: str, *needs: str) -> Kernel:
    variables = THREADS if variable == THREADS[0] else (variable,)
    settings = dict.fromkeys(variables, value)
    return Kernel(f"{variable}={value}", settings, {library: says}, frozenset(needs))


def kernels() -> list[Kernel]:
    """Each by itself, then all libraries as on a CPU of AVX2, then with the least they have."""
    simd = numpy_simd()
    newer = [name for name in simd if "512" in name or name == "X86_V4"]
    avx512 = "Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions"
    haswell = kernel("OPENBLAS_CORETYPE", "Haswell", "OpenBLAS", "Haswell", "avx2")
    nehalem = kernel("OPENBLAS_CORETYPE", "Nehalem", "OpenBLAS", "Nehalem", "sse4_2")
    older = [name for name in simd if name not in newer]
    numpy_avx2 = kernel("NPY_DISABLE_CPU_FEATURES", " ".join(newer), "numpy", " ".join(older))
    numpy_least = kernel("NPY_DISABLE_CPU_FEATURES", " ".join(simd), "numpy", "")
    aten_least = kernel("ATEN_CPU_CAPABILITY", "default", "ATen", "DEFAULT")
    aten_avx2 = kernel("ATEN_CPU_CAPABILITY", "avx2", "ATen", "AVX2", "avx2")
    dnn_least = kernel("ONEDNN_MAX_CPU_ISA", "SSE41", "oneDNN", "Intel SSE4.1", "sse4_1")
    dnn_avx2 = kernel("ONEDNN_MAX_CPU_ISA", "AVX2", "oneDNN", "Intel AVX2", "avx2")
    mkl_least = kernel("MKL_CBWR", "COMPATIBLE", "MKL", "branch 3")
    return [
        kernel("OMP_NUM_THREADS", "1", "threads", "1 and 1"),
        kernel("OMP_NUM_THREADS", "2", "threads", "2 and 2"),
        haswell,
        kernel("OPENBLAS_CORETYPE", "SkylakeX", "OpenBLAS", "SkylakeX", "avx512f"),
        kernel("OPENBLAS_CORETYPE", "Zen", "OpenBLAS", "Zen", "avx2"),
        numpy_least,
        aten_least,
        aten_avx2,
        kernel("ATEN_CPU_CAPABILITY", "avx512", "ATen", "AVX512", "avx512f"),
        dnn_least,
        dnn_avx2,
        kernel("ONEDNN_MAX_CPU_ISA", "AVX512_CORE", "oneDNN", avx512, "avx512f"),
        mkl_least,
        haswell + numpy_avx2 + aten_avx2 + dnn_avx2,
        nehalem + numpy_least + aten_least + dnn_least + mkl_least,
    ]


def numpy_simd() -> list[str]:
    """The extensions numpy uses here beyond those it was built for."""
    import numpy as np

    return list(np.show_config(mode="dicts")["SIMD Extensions"].get("found", ()))


def report() -> dict[str, str]:
    """What the libraries of this process say of their kernels; oneDNN prints it by itself."""
    import numpy as np
    import torch
    from threadpoolctl import threadpool_info

    np.exp(np.ones((64, 64), np.float32)) @ np.ones((64, 64), np.float32)  # may end the process
    torch.nn.functional.gelu(torch.ones(64, 64) @ torch.ones(64, 64))
    blas = next((pool for pool in threadpool_info() if pool["internal_api"] == "openblas"), {})
    try:  # the branch of kernels that torch's MKL took
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        branch = f"branch {library.mkl_serv_cbwr_get(1)}"
    except (OSError, AttributeError):
        branch = "nothing"
    return {
        "OpenBLAS": blas.get("architecture", "nothing"),
        "numpy": " ".join(numpy_simd()),
        "ATen": torch.backends.cpu.get_cpu_capability(),
        "MKL": branch,
        # numpy may have another BLAS, which these settings do not reach.
        "threads": f"{blas.get('num_threads', torch.get_num_threads())} and "
        f"{torch.get_num_threads()}",
    }


def why_not(kernel: Kernel, flags: frozenset[str]) -> str:
    """Why this CPU does not run a kernel; nothing where it does."""
    if missing := kernel.needs - flags:
        return f"this CPU has no {', '.join(sorted(missing))}"
    probe = subprocess.run(
        [sys.executable, __file__, "--report"],
        env=kernel.environment | {"ONEDNN_VERBOSE": "1"},
        capture_output=True,
        text=True,
    )
    if probe.returncode < 0:
        return f"it ends the process with {signal.Signals(-probe.returncode).name}"
    if probe.returncode:
        return probe.stderr.strip().splitlines()[-1]
    lines = probe.stdout.splitlines()
    said = json.loads(lines[-1])
    said["oneDNN"] = next(
        (line.partition(",cpu,isa:")[2] for line in lines if ",cpu,isa:" in line), "nothing"
    )
    others = {name: said[name] for name, expected in kernel.says.items() if said[name] != expected}
    return ", ".join(f"{name} says {words or 'nothing'}" for name, words in others.items())


def cpu_flags() -> frozenset[str]:
    """The instructions this CPU knows; none where there is no /proc/cpuinfo."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(word for line in lines if line.startswith("flags") for word in line.split())


def run_tests(kernel: Kernel, arguments: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of the numeric tests."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *NUMERIC, *arguments],
        env=kernel.environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return run.returncode, run.stdout.rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels with this in the name")
    parser.add_argument("--report", action="store_true", help="what the libraries choose here")
    options, others = parser.parse_known_args(arguments)
    if options.report:
        print(json.dumps(report()))
        return 0
    to_run = [kernel for kernel in kernels() if options.only.lower() in str(kernel).lower()]
    flags, ran, failed, not_run = cpu_flags(), 0, 0, []
    for kernel in to_run:
        if reason := why_not(kernel, flags):
            not_run.append(f"{kernel}: not run, {reason}")
            continue
        code, output = run_tests(kernel, others)
        if code:
            print(output)
        counts = output.splitlines()[-1] if output else f"exit code {code}"
        print(f"{kernel}: {counts}", flush=True)
        ran, failed = ran + 1, failed + bool(code)
    print("\n".join([*not_run, f"{ran} kernels run, {failed} failed, {len(not_run)} not run"]))
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
