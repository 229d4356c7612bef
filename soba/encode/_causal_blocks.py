"""Blocks of a causal transformer, run no further than a feature needs; both text towers share it.

A position sees only itself and those before it, and a feature is read at one position. So the keys
and values of words that many prompts begin with are made once for all, and the last block answers
for the one position that is read. Same features up to rounding; a prompt tuner's steps, forward and
backward, take two thirds of the time in a tower of three blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Layer = Callable[[Any], Any]


@dataclass(frozen=True)
class Block:
    """A block by its parts, whichever library made it."""

    norm: Layer  # before attention
    queries: Layer  # (..., w) -> (..., w)
    keys_and_values: Layer  # (..., w) -> (..., 2 w)
    leave: Layer  # what was attended to -> what is added to the states
    feed: Layer  # states -> what is added to them in the end
    heads: int
    scale: float | None = None

    def seen(self, states: Any) -> Any:
        """(b, L, w) states -> (b, L, 2 w) keys and values, for positions behind them to see."""
        return self.keys_and_values(self.norm(states))

    def __call__(self, states: Any, before: Any, mask: Any, at: Any = None) -> Any:
        """(m, L, w) states -> those that leave the block; with `at`, (m, 1, w), of one place each.

        `before` are keys and values of what stands in front of them, (m, P, 2 w), or None.
        """
        normed = self.norm(states)
        present = self.keys_and_values(normed)
        if at is not None:
            rows = torch.arange(len(states), device=states.device)
            states, normed = states[rows, at][:, None], normed[rows, at][:, None]
            mask = mask[at][:, None, None]
        seen = present if before is None else torch.cat([before, present], dim=1)
        keys, values = seen.chunk(2, dim=-1)
        attended = torch.nn.functional.scaled_dot_product_attention(
            self._split(self.queries(normed)),
            self._split(keys),
            self._split(values),
            attn_mask=mask,
            scale=self.scale,
        )
        states = states + self.leave(attended.transpose(1, 2).flatten(2))
        return states + self.feed(states)

    def _split(self, states: Any) -> Any:
        return states.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def read(blocks: Sequence[Block], states: Any, mask: Any) -> list[Any]:
    """(b, P, w) states that prompts begin with -> what each block lets those behind them see."""
    seen = []
    for block in blocks[:-1]:
        seen.append(block.seen(states))
        states = block(states, None, mask)
    return [*seen, blocks[-1].seen(states)]


def run(
    blocks: Sequence[Block], states: Any, ends: Any, mask: Any, openings: list[Any] | None = None
) -> Any:
    """(m, L, w) states -> (m, w), what leaves the last block at the `ends`.

    `openings` are rows of what `read` gave, one for each prompt; `mask` (L, P + L) and `ends` count
    from behind them.
    """
    before = [None] * len(blocks) if openings is None else openings
    for block, seen in zip(blocks[:-1], before[:-1], strict=True):
        states = block(states, seen, mask)
    return blocks[-1](states, before[-1], mask, at=ends)[:, 0]
