"""The text tower of an open_clip model, from embedded tokens on, and no further than it must run.

open_clip runs all 77 positions of every prompt. Under a causal mask nothing behind the end token
can reach it, and the feature is read there: sequences are cut after it, a dozen positions for a
usual prompt. Same features up to rounding, several times faster. Taking embeddings in place of
tokens is what prompt tuning needs.
"""

from __future__ import annotations

from typing import Any

import torch

_PARTS = ("transformer", "token_embedding", "positional_embedding", "ln_final", "text_projection")


class TextTower:
    """The parts of `open_clip.CLIP`, which holds them itself, or of the `text` of other models."""

    def __init__(self, model: Any) -> None:
        self._parts = getattr(model, "text", model)
        missing = [part for part in _PARTS if not hasattr(self._parts, part)]
        if missing or not hasattr(self._parts.transformer, "resblocks"):
            raise ValueError("the text tower is not one of open_clip's own transformers")
        if getattr(self._parts, "cls_emb", None) is not None or getattr(
            self._parts, "use_pad_mask", False
        ):
            raise ValueError("text towers with class tokens or padding masks are not supported")
        # CLIP and its relatives name the same settings differently.
        self._pool = getattr(self._parts, "text_pool_type", getattr(self._parts, "pool_type", ""))
        self._end = getattr(self._parts, "text_eos_id", getattr(self._parts, "eos_id", None))
        if self._pool not in ("argmax", "eos", "first", "last"):
            raise ValueError(f"text pooled by {self._pool!r} is not supported")

    def ends(self, tokens: Any) -> Any:
        """(m, L) tokens -> (m,) positions that the features are read from."""
        if self._pool == "argmax":
            return tokens.argmax(dim=1)
        if self._pool == "eos":
            return (tokens == self._end).int().argmax(dim=1)
        at = 0 if self._pool == "first" else tokens.shape[1] - 1
        return torch.full((len(tokens),), at, device=tokens.device)

    def embed(self, tokens: Any, ends: Any) -> Any:
        """(m, L) tokens -> (m, L', w) embeddings, cut behind the last end where that is allowed."""
        if self._parts.attn_mask is not None and len(tokens):
            tokens = tokens[:, : int(ends.max()) + 1]
        return self._parts.token_embedding(tokens)

    def run(self, embedded: Any, ends: Any) -> Any:
        """(m, L', w) embeddings -> (m, d) features, as they leave the model."""
        parts, length = self._parts, embedded.shape[1]
        dtype = parts.transformer.get_cast_dtype()
        mask = None if parts.attn_mask is None else parts.attn_mask[:length, :length]
        x = embedded.to(dtype) + parts.positional_embedding[:length].to(dtype)
        x = parts.ln_final(parts.transformer(x, attn_mask=mask))
        x = x[torch.arange(len(x), device=x.device), ends]
        projection = parts.text_projection
        if projection is None:
            return x
        return projection(x) if isinstance(projection, torch.nn.Linear) else x @ projection
