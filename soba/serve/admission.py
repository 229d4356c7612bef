"""One bound on the work that a server takes on, counted in images whoever brings them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Busy(Exception):
    """There is enough to do already; the same request may come again in a while."""

    retry_after = 1  # second


class Admission:
    """Lets so many images in at a time.

    Examples
    --------
    >>> admission = Admission(3)
    >>> with admission.of(2):
    ...     try:
    ...         with admission.of(2):
    ...             pass
    ...     except Busy as error:
    ...         print(error)
    2 images are being worked on, and 2 more would be over the limit of 3
    """

    def __init__(self, limit: int) -> None:
        self.limit, self._inside, self._lock = limit, 0, threading.Lock()

    @contextmanager
    def of(self, images: int) -> Iterator[None]:
        """Whoever is inside counts with all their images, until they leave."""
        with self._lock:
            if self._inside + images > self.limit:
                raise Busy(
                    f"{self._inside} images are being worked on, and {images} more would be over "
                    f"the limit of {self.limit}"
                )
            self._inside += images
        try:
            yield
        finally:
            with self._lock:
                self._inside -= images
