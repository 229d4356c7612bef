"""A database on which statements fail when a test wants them to."""

from dataclasses import replace

from soba.serve.databases import open_database


class _Connection:
    def __init__(self, connection, fault):
        self._connection, self._fault = connection, fault

    def execute(self, statement, values=()):
        self._fault(statement, True)
        cursor = self._connection.execute(statement, values)
        self._fault(statement, False)
        return cursor

    def __getattr__(self, name):
        return getattr(self._connection, name)


def faulty(url, fault):
    """The database of a URL; `fault(statement, before)` is called before and after each."""
    database = open_database(url)
    return replace(database, connect=lambda: _Connection(database.connect(), fault))
