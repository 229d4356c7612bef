"""What to do when an optional package cannot be imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def no_open_clip(error: Exception) -> ImportError:
    """The error to raise in place of `error`: it says what to install."""
    return _no_torch(error, "open_clip", "torch", "needs torch and open_clip")


def no_transformers(error: Exception) -> ImportError:
    """The same for models of transformers, which looks for torchvision and uses what it finds."""
    problem = _no_torch(error, "transformers", "hf", "needs torch and transformers")
    if "do not fit" in str(problem):
        return ImportError(f"{problem}; or remove torchvision, which soba does not need")
    return problem


def _no_torch(error: Exception, package: str, extra: str, needs: str) -> ImportError:
    """What to install, or what to do about a torchvision that does not fit.

    One that was built for another torch fails with "operator torchvision::nms does not exist".
    Wheels from PyPI and from pytorch.org, CPU and CUDA, do not mix.
    """
    reasons = [str(reason) for reason in (error, error.__cause__) if reason is not None]
    if any("torchvision::nms" in reason for reason in reasons):
        return ImportError(
            f"torch {_version('torch')} and torchvision {_version('torchvision')} do not fit "
            f"together, so {package} does not run; install both from one place: pip install "
            "--force-reinstall torch torchvision --index-url https://download.pytorch.org/whl/cpu "
            "(or /whl/cu126 and the like for a GPU)"
        )
    reason = " ".join(reasons[0].split())[:200]
    return ImportError(f"{needs}: pip install 'soba-tta[{extra}]' ({reason})")


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
