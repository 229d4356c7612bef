"""A disk that is full, for tests."""

import contextlib
import resource


@contextlib.contextmanager
def full_disk(size):
    """No file of this process may grow beyond `size` bytes: writing more fails with EFBIG."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
