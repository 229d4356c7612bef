"""Votes -> logits."""

from __future__ import annotations

from typing import Any

from soba.adapt._arrays import Array, softmax

_TIE_BREAK, _DOUBT = 1e-2, 1e-3  # in votes: too little to outvote anyone


def vote_logits(xp: Any, votes: Array, preference: Array, logits: Array) -> Array:
    """(n, C) votes -> logits whose argmax has the most votes and whose softmax are their shares.

    Of classes with equally many votes the one of the highest `preference` wins. Shares are off
    by a hundredth of a vote at most: the tie break, and a thousandth spread by the softmax of
    `logits`, so that classes without a vote have an order and a logarithm too.
    """
    most = xp.max(votes, axis=-1, keepdims=True)
    lowest = xp.min(preference, axis=-1, keepdims=True) - 1.0
    winners = xp.argmax(xp.where(votes == most, preference, lowest), axis=-1)
    won = xp.arange(votes.shape[-1], device=winners.device)[None, :] == winners[:, None]
    total = votes + _TIE_BREAK * xp.astype(won, votes.dtype) + _DOUBT * softmax(xp, logits)
    return xp.log(xp.maximum(total, xp.full_like(total, 1e-30)))
