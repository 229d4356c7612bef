"""A store whose files cannot be read when a test wants it."""

import io
import threading


class _File(io.BytesIO):
    def __init__(self, content, before_read):
        super().__init__(content)
        self._before_read = before_read

    def read(self, *size):
        self._before_read()
        return super().read(*size)


class FlakyReads:
    """Counts the reads of fsspec's file system in memory, of which one fails."""

    def __init__(self, monkeypatch, system):
        self._left, self._error, self.has_failed = 0, None, True
        self._lock = threading.Lock()  # pictures are read in threads
        kind = type(system)  # each thread has a file system of its own
        open_whole = kind._open

        def open_flaky(system, path, *given, **settings):
            with open_whole(system, path, *given, **settings) as file:
                return _File(file.getvalue(), self._before_read)

        monkeypatch.setattr(kind, "_open", open_flaky)

    def fail_at(self, number, error):
        """Let the read of this number, counted from 0 and from now, raise an error."""
        self._left, self._error, self.has_failed = number, error, False

    def _before_read(self):
        with self._lock:
            if not self._left and not self.has_failed:
                self.has_failed = True
                raise self._error
            self._left -= 1
