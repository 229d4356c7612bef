"""A disk in memory, for SQLite through apsw, that loses what was not synced when the power goes."""

import itertools
import time

import apsw

_NUMBERS = itertools.count()


class PowerCut(Exception):
    pass


class _Content:
    """One file: what is on the disk for good, and what was done to it since, in order."""

    def __init__(self, durable=None):
        self.durable, self.pending = durable, []
        self.current = bytearray(durable or b"")

    def do(self, operation):
        operation(self.current)
        self.pending.append(operation)

    def sync(self):
        self.durable, self.pending = bytes(self.current), []

    def after_loss(self, survives):
        """What is left of it; None if it was never synced."""
        if self.durable is None:
            return None
        left = bytearray(self.durable)
        for operation in self.pending:
            if survives():
                operation(left)
        return bytes(left)


class Disk:
    """Files that :func:`connect` works on; the power goes `cut_after` writes, if that is set.

    The write at which it goes raises, and nobody can connect from then on. What a connection that
    is being closed still does to the dead disk comes to nothing.
    """

    def __init__(self, files=None, *, sync_seconds=0.0):
        self.files = {name: _Content(content) for name, content in (files or {}).items()}
        self.sync_seconds, self.cut_after, self.syncs, self.vfs = sync_seconds, None, 0, None

    @property
    def dead(self):
        return self.cut_after is not None and self.cut_after < 0

    def works(self):
        """Whether the next write is done; raises if the power goes now."""
        if self.cut_after is None:
            return True
        if not self.dead:
            self.cut_after -= 1
            if self.dead:
                raise PowerCut
        return not self.dead

    def after_power_loss(self, survives=lambda: False):
        """The disk as the next boot finds it; each unsynced write may have survived, or not."""
        left = {name: content.after_loss(survives) for name, content in self.files.items()}
        return Disk({name: content for name, content in left.items() if content is not None})


class _File:
    """An open file, as SQLite wants it."""

    def __init__(self, disk, content):
        self.disk, self.content = disk, content

    def xRead(self, amount, offset):
        return bytes(self.content.current[offset : offset + amount])

    def xWrite(self, data, offset):
        data = bytes(data)

        def write(content):
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data

        if self.disk.works():
            self.content.do(write)

    def xTruncate(self, size):
        def truncate(content):
            content.extend(bytes(max(0, size - len(content))))
            del content[size:]

        if self.disk.works():
            self.content.do(truncate)

    def xSync(self, flags):
        if self.disk.works():
            self.disk.syncs += 1
            if self.disk.sync_seconds:
                time.sleep(self.disk.sync_seconds)
            self.content.sync()

    def xFileSize(self):
        return len(self.content.current)

    def xLock(self, level):
        pass  # a boot has one connection

    def xUnlock(self, level):
        pass

    def xCheckReservedLock(self):
        return False

    def xSectorSize(self):
        return 4096

    def xDeviceCharacteristics(self):
        return 0  # it promises nothing

    def xFileControl(self, operation, pointer):
        return False

    def xClose(self):
        pass


class _VFS(apsw.VFS):
    def __init__(self, disk):
        self.disk, self.name = disk, f"power loss {next(_NUMBERS)}"
        super().__init__(self.name, base="")

    def xOpen(self, name, flags):
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[1] = flags[0]
        content = self.disk.files.setdefault(path, _Content())
        return _File(self.disk, content)

    def xDelete(self, name, sync_folder):
        if self.disk.works():
            self.disk.files.pop(name, None)

    def xAccess(self, name, flags):
        return name in self.disk.files

    def xFullPathname(self, name):
        return name


def connect(disk):
    """A connection to the one database of a disk. WAL without shared memory: it is alone."""
    if disk.dead:
        raise PowerCut
    vfs = disk.vfs = _VFS(disk)  # which goes when nobody refers to it
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection("database", flags=flags, vfs=vfs.name)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    return connection
