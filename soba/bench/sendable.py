"""Values that travel to other processes without what they have opened or listed."""

from __future__ import annotations

import dataclasses
from typing import Any


class Sendable:
    """A dataclass that pickles as its fields; what it has cached since is made anew elsewhere."""

    def __getstate__(self) -> dict[str, Any]:
        names = (entry.name for entry in dataclasses.fields(self))  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names}
