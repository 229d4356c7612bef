"""What to do when an optional package cannot be imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def no_open_clip(error: Exception) -> ImportError:
    """The error to raise in place of `error`: it says what to install.

    A torchvision that was built for another torch fails with "operator torchvision::nms does not
    exist". Wheels from PyPI and from pytorch.org, CPU and CUDA, do not mix.
    """
    if "torchvision::nms" in str(error):
        return ImportError(
            f"torch {_version('torch')} and torchvision {_version('torchvision')} do not fit "
            "together, so open_clip does not run; install both from one place: pip install "
            "--force-reinstall torch torchvision --index-url https://download.pytorch.org/whl/cpu "
            "(or /whl/cu126 and the like for a GPU)"
        )
    reason = " ".join(str(error).split())[:200]
    return ImportError(f"needs torch and open_clip: pip install 'soba-tta[torch]' ({reason})")


def no_package(package: str, error: Exception, extra: str = "sources") -> ImportError:
    """The error to raise where a package of an extra is not there.

    >>> str(no_package("pyarrow", ImportError("No module named 'pyarrow'")))
    "needs pyarrow: pip install 'soba-tta[sources]' (No module named 'pyarrow')"
    """
    reason = " ".join(str(error).split())[:200]
    return ImportError(f"needs {package}: pip install 'soba-tta[{extra}]' ({reason})")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(none)"
