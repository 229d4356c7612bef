"""Images in tar files, as WebDataset lays them out, read from the first byte to the last.

Members that follow one another and share a key, their name up to the first dot, are one sample:
"000.jpg", "000.json", "000.cls". Its image is the first member with nothing but an image's suffix
after the key. Where there is none, each of its images is a picture ("tour.day1.jpg",
"tour.day2.jpg"): dots in names cost nobody a picture. Samples without an image are passed over, as
other files in a folder are. A picture is called by the archive and the member: "a.tar/000.jpg".
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Self, cast

from soba.encode._reading import may_pass
from soba.encode.files import open_file, plain_name
from soba.encode.image_files import is_image, why_not_read
from soba.encode.pictures import BytesPicture, NoPicture, Picture

_HELD = 8  # images of a sample that are held while its proper one may still come


def tar_pictures(path: str) -> Iterator[Picture]:
    """The pictures of a .tar, .tar.gz or .tgz, one at a time.

    Where the file is damaged, what comes before is given, and then what is wrong, once.
    """
    try:
        with open_file(path) as file:
            if plain_name(path).lower().endswith("gz"):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield from _pictures(path, cast(BinaryIO, unpacked))
                    while unpacked.read(1 << 20):  # the checksum is at the end
                        pass
            else:
                yield from _pictures(path, file)
    except Exception as error:  # the decompressors raise nearly every kind there is
        yield NoPicture(path, _why(error), may_pass=may_pass(error))


class _Header(tarfile.TarInfo):
    """A header that must be sound: tarfile takes one that is not for the end of the file."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # two blocks of zeros
            raise
        except tarfile.HeaderError as error:
            raise EOFError(f"truncated or corrupted ({error})") from error


def _pictures(path: str, file: BinaryIO) -> Iterator[Picture]:
    sample, held, is_settled = "", list[Picture](), False
    try:
        with tarfile.open(fileobj=file, mode="r|", tarinfo=_Header) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # else it remembers all of them
                folder, name = os.path.split(member.name)
                key, _, suffix = name.partition(".")
                if (begun := f"{folder}/{key}") != sample:
                    yield from held
                    sample, held, is_settled = begun, [], False
                if is_settled or member.isdir() or not is_image(name):
                    continue
                picture = _picture(path, tar, member)
                is_settled = "." not in suffix
                held = [picture] if is_settled else [*held, picture]
                if is_settled or len(held) > _HELD:
                    yield from held
                    held = []
    except Exception:
        yield from held
        raise
    yield from held


def _picture(path: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> Picture:
    name = f"{path}/{member.name.removeprefix('./')}"
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        return NoPicture(name, "a link or device in the archive, not a file")
    with content:
        return BytesPicture(name, content.read())


def _why(error: Exception) -> str:
    if isinstance(error, tarfile.TarError | EOFError | zlib.error | gzip.BadGzipFile):
        said = str(error)
        return said if "truncated" in said else f"truncated or corrupted ({said})"
    return why_not_read(error)
