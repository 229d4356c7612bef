"""The text tower of an open_clip model, from embedded tokens on, and no further than it must run.

open_clip runs all 77 positions of every prompt. Under a causal mask nothing behind the end token
can reach it, and the feature is read there: sequences are cut after it, a dozen positions for a
usual prompt. Nor can anything behind the words that many prompts begin with reach these: they run
once for all, and the last block for the end alone (`_causal_blocks`). Same features up to rounding,
several times faster. Taking embeddings in place of tokens is what prompt tuning needs.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from soba.encode._causal_blocks import Block, read, run
from soba.encode._torch_encoder import autocast

_PARTS = ("transformer", "token_embedding", "positional_embedding", "ln_final", "text_projection")


class TextTower:
    """The parts of `open_clip.CLIP`, which holds them itself, or of the `text` of other models."""

    def __init__(self, model: Any, precision: str = "fp32") -> None:
        self._parts = getattr(model, "text", model)
        self._precision = precision
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
        if self._pool == "first" and self.cuts:
            raise ValueError("text is read at its start, where a causal mask lets no word through")

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context that `read` and `run` are to be called in."""
        return autocast(self._precision, str(self._parts.positional_embedding.device))

    def ends(self, tokens: Any) -> Any:
        """(m, L) tokens -> (m,) positions that the features are read from."""
        if self._pool == "argmax":
            return tokens.argmax(dim=1)
        if self._pool == "eos":
            return (tokens == self._end).int().argmax(dim=1)
        at = 0 if self._pool == "first" else tokens.shape[1] - 1
        return torch.full((len(tokens),), at, device=tokens.device)

    @property
    def reads_end(self) -> bool:
        """Whether features are read at the end token, not at a fixed place."""
        return self._pool in ("argmax", "eos")

    def embed(self, tokens: Any, ends: Any) -> Any:
        """(m, L) tokens -> (m, L', w) embeddings, cut behind the last end where that is allowed."""
        if self.cuts and len(tokens):
            tokens = tokens[:, : int(ends.max()) + 1]
        return self._parts.token_embedding(tokens)

    @property
    def cuts(self) -> bool:
        """Whether a prompt may be cut behind its end."""
        return self._parts.attn_mask is not None

    @property
    def size(self) -> int:
        """Numbers in a position's states, over all blocks: what memory goes by."""
        return int(self._parts.transformer.width * self._parts.transformer.layers)

    @property
    def shares_openings(self) -> bool:
        """Whether `read` works here: causal, of plain blocks."""
        blocks = self._parts.transformer.resblocks
        return (
            self._parts.attn_mask is not None
            and all(type(block).__name__ == "ResidualAttentionBlock" for block in blocks)
            and self._parts.transformer.batch_first
        )

    def read(self, openings: Any) -> list[Any]:
        """(b, P, w) embeddings that prompts begin with -> what each block lets the others see."""
        return read(self._blocks(), self._placed(openings, 0), self._mask(0, openings.shape[1]))

    def run(self, embedded: Any, ends: Any, openings: list[Any] | None = None) -> Any:
        """(m, L', w) embeddings -> (m, d) features, as they leave the model.

        With `openings`, rows of what `read` gave, one for each prompt, `embedded` goes on
        behind them; `ends` count from the prompt's beginning all the same.
        """
        if not self.shares_openings:
            mask = None if self._parts.attn_mask is None else self._mask(0, embedded.shape[1])
            x = self._parts.transformer(self._placed(embedded, 0), attn_mask=mask)
            return self._projected(x[torch.arange(len(x), device=x.device), ends])
        begun = 0 if openings is None else openings[0].shape[1]
        x, mask = self._placed(embedded, begun), self._mask(begun, embedded.shape[1])
        return self._projected(run(self._blocks(), x, ends - begun, mask.to(x.dtype), openings))

    def _blocks(self) -> list[Block]:
        return [_parted(block) for block in self._parts.transformer.resblocks]

    def _placed(self, embedded: Any, begun: int) -> Any:
        dtype = self._parts.transformer.get_cast_dtype()
        places = self._parts.positional_embedding[begun : begun + embedded.shape[1]]
        return embedded.to(dtype) + places.to(dtype)

    def _mask(self, begun: int, length: int) -> Any:
        return self._parts.attn_mask[begun : begun + length, : begun + length]

    def _projected(self, rows: Any) -> Any:
        rows = self._parts.ln_final(rows)
        projection = self._parts.text_projection
        if projection is None:
            return rows
        return projection(rows) if isinstance(projection, torch.nn.Linear) else rows @ projection


def _parted(block: Any) -> Block:
    """A plain block of open_clip, by its parts."""
    attention, width = block.attn, block.attn.embed_dim

    def projected(states: Any, part: slice) -> Any:
        weight, bias = attention.in_proj_weight, attention.in_proj_bias
        return torch.nn.functional.linear(states, weight[part], bias[part])

    return Block(
        norm=block.ln_1,
        queries=lambda states: projected(states, slice(width)),
        keys_and_values=lambda states: projected(states, slice(width, None)),
        leave=lambda attended: block.ls_1(attention.out_proj(attended)),
        feed=lambda states: block.ls_2(block.mlp(block.ln_2(states))),
        heads=attention.num_heads,
    )
