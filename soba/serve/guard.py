"""A guard: a few labelled images that tell when a stream was taught rubbish.

Crafted samples would stay: nothing displaces from a queue what CLIP is surest of, and a uniform
sample keeps a share of all that came. Each time the statistics refresh, the guard's images are
answered adapted and by zero-shot. Where the adapted classifier is wrong more often than chance
would have it, the stream freezes and answers by zero-shot, in the very transaction that refreshed:
nobody gets an answer of the statistics that failed. All that is decided is in the log, so that
every process knows it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from soba.adapt._arrays import read_batch, to_host
from soba.serve.learning import Learning
from soba.serve.shares import sign_test
from soba.serve.store import Transaction, json_bytes
from soba.serve.stream_state import StreamState

if TYPE_CHECKING:
    from soba.serve.replica import View

LEVEL = 0.05  # of the sign test, at each refresh
_WORTH_NOTING = 1.1  # times the samples at the last note that is kept of a guard that passed
WITHOUT_GUARD = {"guard": None, "guard_score": None, "last_good": None, "fallback": False}


class GuardFailed(ValueError):
    """The guard's images are answered worse than by zero-shot."""


@dataclass(frozen=True)
class Guard:
    """Labelled samples. Those whose class is no longer among the stream's are left out."""

    rows: np.ndarray  # (n, d) float32
    labels: tuple[str, ...]

    @classmethod
    def checked(cls, features: Any, labels: Iterable[str], view: View) -> Guard:
        """Of what a caller gave; raises what is wrong with it."""
        names, dim = tuple(labels), view.scaled_text.shape[1]
        batch = read_batch(features, dim)
        rows = np.asarray(to_host(batch.x), np.float32)
        if batch.views or len(rows) != len(names) or not len(rows):
            raise ValueError(f"a guard takes rows (n, {dim}) and n labels, of one at least")
        unknown = sorted(set(names) - set(view.names))
        if unknown:
            raise ValueError(f"no class of the stream: {', '.join(map(repr, unknown[:5]))}")
        return cls(rows, names)

    def installed(self, state: StreamState) -> dict[str, Any]:
        """What it changes in the settings of a stream."""
        guard = {"guard": self.setting()}
        watched = state.replaced(settings=state.settings | guard)
        return guard | verdict(self.score(settled(watched)), state.version + 1)

    def setting(self) -> dict[str, Any]:
        """As the log keeps it."""
        content = np.ascontiguousarray(self.rows, "<f4").tobytes()
        return {
            "rows": base64.b64encode(content).decode(),
            "dim": self.rows.shape[1],
            "labels": list(self.labels),
        }

    @classmethod
    def of(cls, state: StreamState) -> Guard | None:
        """The guard of a stream, if it has one."""
        setting = state.settings.get("guard")
        if not setting:
            return None
        return cls(_rows(setting["rows"], setting["dim"]), tuple(setting["labels"]))

    def score(self, state: StreamState) -> dict[str, Any]:
        """How a stream does on it; counts, and how likely such a loss is by chance."""
        places = {name: place for place, name in enumerate(state.names)}
        known = [row for row, label in enumerate(self.labels) if label in places]
        truth = np.array([places[self.labels[row]] for row in known], np.int64)
        rows = self.rows[known]
        adapted = np.asarray(state.adapter.logits(rows)).argmax(axis=1) == truth
        zero_shot = (rows @ state.adapter._scaled_text.T).argmax(axis=1) == truth
        worse, better = int((zero_shot & ~adapted).sum()), int((adapted & ~zero_shot).sum())
        p_value = sign_test(worse, better)
        return {
            "images": len(known),
            "adapted": int(adapted.sum()),
            "zero_shot": int(zero_shot.sum()),
            "p_value": p_value,
            "failed": p_value <= LEVEL,
            "n_seen": state.adapter.n_seen,
        }


@lru_cache(maxsize=64)
def _rows(content: str, dim: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(content), "<f4").reshape(-1, dim)


def guarded(transaction: Transaction, state: StreamState, group: list[Learning]) -> StreamState:
    """The state after samples were learned and statistics refreshed: frozen, if the guard says so.

    Whoever waits for an answer is then answered by zero-shot.
    """
    guard = Guard.of(state)
    if guard is None:
        return state
    score = guard.score(state)
    before = state.settings.get("guard_score") or {"n_seen": 0}
    if not score["failed"] and score["n_seen"] < _WORTH_NOTING * before["n_seen"]:
        return state
    settings = verdict(score, transaction.version + 1)
    transaction.append("freeze" if score["failed"] else "guard", json_bytes(settings))
    state = state.replaced(settings=state.settings | settings)
    if score["failed"]:
        for learning in group:
            learning.logits = np.asarray(state.predictor().logits(learning.rows))
    return state


def rescored(state: StreamState) -> StreamState:
    """A state that takes the place of another: its guard, if there is one, is asked anew.

    Where the guard had frozen the stream and is content again, the stream answers adapted and
    stays frozen: an operator says when it learns again.
    """
    guard = Guard.of(state)
    if guard is None:
        return state
    settings = verdict(guard.score(settled(state)), state.version)
    return state.replaced(settings=state.settings | settings)


def settled(state: StreamState) -> StreamState:
    """A state as its next refresh will make it: what is kept may be worse than what answers."""
    return state.replaced(adapter=state.adapter.copy().refresh())


def trusted(state: StreamState) -> dict[str, Any]:
    """The settings of a stream that learns again; raises where its guard has a say against it."""
    guard = Guard.of(state)
    settings = {"frozen": False, "frozen_by": None, "fallback": False}
    if guard is None:
        return settings
    score = guard.score(settled(state))
    if not score["images"] and state.settings.get("fallback"):
        raise GuardFailed("the guard has no image of these classes: set another, or remove it")
    if score["failed"]:
        raise GuardFailed(
            f"of the guard's {score['images']} images the adapted classifier has "
            f"{score['adapted']} right and zero-shot {score['zero_shot']} "
            f"(p = {score['p_value']:.2g}): roll back first, or remove the guard"
        )
    return settings | verdict(score, state.version + 1)


def verdict(score: dict[str, Any], version: int) -> dict[str, Any]:
    """What a guard's score changes in the settings of a stream."""
    settings: dict[str, Any] = {"guard_score": score | {"version": version}}
    if not score["images"]:  # it says nothing, neither for the stream nor against it
        return settings
    if score["failed"]:
        return settings | {"frozen": True, "frozen_by": "guard", "fallback": True}
    return settings | {"last_good": version, "fallback": False}
