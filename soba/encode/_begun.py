"""A feature file in the making: its rows in FILE.partial, what they are in FILE.partial.json.

A row is an image's features, float16, and the stamp of its file. Whoever is killed leaves whole
batches, and at most one that breaks off or that is marked as to be made again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from soba._files import naming, parse_json, remove_litter, replacing
from soba.encode._stamps import UNMADE
from soba.encode.features import Encoded

_BLOCK = 1 << 20  # bytes moved at a time


class Begun:
    """The parts of one feature file.

    Parameters
    ----------
    target
        The file that will be.
    job
        What must be equal for the rows to be used.
    images, batch
        How many in all, and how many at a time.
    shape
        Of the features of one image.
    broken
        Index -> why it could not be read; kept up to date.
    """

    def __init__(
        self,
        target: Path,
        job: dict[str, Any],
        images: int,
        batch: int,
        shape: tuple[int, ...],
        broken: dict[int, str],
    ) -> None:
        self.job, self.images, self.batch, self.broken = job, images, batch, broken
        self.row = np.dtype([("features", "<f2", shape), ("stamp", "<u8")])
        place = os.path.realpath(target)
        self.partial, self.journal, self.kept = (
            Path(f"{place}.{ending}") for ending in ("partial", "partial.json", "partial.kept")
        )

    def earlier(self) -> dict[int, str] | None:
        """The broken images of an earlier run; None where there is nothing to go on with."""
        if not (self.partial.exists() and self.journal.exists()):
            return None
        try:
            content = parse_json(self.journal.read_bytes())
            job, row_bytes, broken = content["job"], content.get("row_bytes"), broken_of(content)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            problem = f"{self.journal}: damaged; remove it to start over ({error})"
            raise ValueError(problem) from error
        if (job, row_bytes) != (self.job, self.row.itemsize):
            raise ValueError(
                f"{self.partial}: begun with another encoder, image list, labels, batch size or "
                "views; finish that run first, or remove the file to start over"
            )
        return broken

    def go_on(self) -> int:
        """Begin, or go on with an earlier run; the number of images that are done."""
        broken = self.earlier()
        self.broken.clear()
        if broken is None:
            self.partial.unlink(missing_ok=True)
            self._write_journal()
            self.partial.touch()
            return 0
        size = self.partial.stat().st_size
        if size > self.images * self.row.itemsize:
            raise ValueError(f"{self.partial}: longer than it can be; remove it to start over")
        done = size // self.row.itemsize
        if done < self.images:
            done -= done % self.batch
        os.truncate(self.partial, done * self.row.itemsize)
        self.broken.update({i: why for i, why in broken.items() if i < done})
        return done

    def rows(self, count: int) -> np.ndarray:
        """The first rows, on disk."""
        return np.memmap(self.partial, self.row, "r", shape=count)

    def write(self, part: Encoded, stamps: np.ndarray) -> None:
        """The rows of one batch, new ones or in place of earlier ones."""
        before = [i for i in self.broken if part.start <= i < part.stop]
        if before or part.broken:  # known before their rows are counted as done
            for index in before:
                del self.broken[index]
            self.broken.update(part.broken)
            self._write_journal()
        block = self._block(part.stop - part.start)
        block["features"][part.indices - part.start] = part.features
        block["stamp"] = stamps
        with naming(self.partial), self.partial.open("rb+") as file:
            file.seek(part.start * self.row.itemsize)
            file.write(block.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def unmake(self, spans: list[range]) -> None:
        """Mark rows as to be made again, lest a kill leave some that are half of each."""
        rows = np.memmap(self.partial, self.row, "r+", shape=max(span.stop for span in spans))
        for span in spans:
            rows["stamp"][span.start : span.stop] = UNMADE
        rows.flush()

    def reopen(self, features: np.ndarray, stamps: np.ndarray) -> None:
        """Take the rows from a finished file, which has none of broken images."""
        sound = np.array([index not in self.broken for index in range(self.images)])
        place = np.cumsum(sound) - 1
        count = max(1, _BLOCK // self.row.itemsize)
        with replacing(self.partial) as temporary, temporary.open("wb") as file:
            for start in range(0, self.images, count):
                span = slice(start, start + count)
                block = self._block(len(stamps[span]))
                block["features"][sound[span]] = features[place[span][sound[span]]]
                block["stamp"] = stamps[span]
                file.write(block.tobytes())
        self._write_journal()

    def without(self, rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """The features of the kept rows, still on disk."""
        features: np.ndarray = rows["features"]
        if len(kept) == len(rows):
            return features
        count = max(1, _BLOCK // self.row.itemsize)
        with naming(self.kept), self.kept.open("wb") as file:
            for start in range(0, len(kept), count):
                file.write(np.asarray(features[kept[start : start + count]]).tobytes())
        return np.memmap(self.kept, "<f2", "r", shape=(len(kept), *features.shape[1:]))

    def remove(self) -> None:
        for leftover in (self.partial, self.journal, self.kept):
            leftover.unlink(missing_ok=True)
            remove_litter(leftover)

    def progress(self) -> dict[str, Any]:
        """What was done, and what could not be read."""
        broken = {str(index): why for index, why in sorted(self.broken.items())}
        return {"job": self.job, "broken": broken}

    def _write_journal(self) -> None:
        with replacing(self.journal) as temporary:
            temporary.write_text(json.dumps(self.progress() | {"row_bytes": self.row.itemsize}))

    def _block(self, count: int) -> np.ndarray:
        block = np.zeros(count, self.row)
        block["features"] = np.nan
        return block


def broken_of(content: dict[str, Any]) -> dict[int, str]:
    """The broken images, as `Begun.progress` has them."""
    return {int(index): str(why) for index, why in content["broken"].items()}
