"""The text tower of transformers' CLIPModel, from embedded tokens on, for gradients to pass.

It does what `soba.encode._text_tower` does for open_clip: sequences are cut behind their end, the
words that many prompts begin with run once for all, and the last block for the end alone.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from soba.encode._causal_blocks import Block, read, run
from soba.encode._torch_encoder import autocast

# Configurations that were written before transformers read this number have 2, which is no token
# of CLIP's: the end is then the highest token.
_UNKNOWN_END = 2


class HfTextTower:
    """The parts of a `transformers.CLIPModel` that texts pass through."""

    reads_end = cuts = shares_openings = True

    def __init__(self, model: Any, precision: str = "fp32") -> None:
        self._text, self._projection = model.text_model, model.text_projection
        self._precision = precision
        self._end = int(self._text.config.eos_token_id)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context that `read` and `run` are to be called in."""
        return autocast(self._precision, str(self._projection.weight.device))

    def ends(self, tokens: Any) -> Any:
        """(m, L) tokens -> (m,) positions that the features are read from."""
        if self._end == _UNKNOWN_END:
            return tokens.argmax(dim=1)
        return (tokens == self._end).int().argmax(dim=1)

    def embed(self, tokens: Any, ends: Any) -> Any:
        """(m, L) tokens -> (m, L', w) embeddings, cut behind the last end."""
        if len(tokens):
            tokens = tokens[:, : int(ends.max()) + 1]
        return self._text.embeddings.token_embedding(tokens)

    @property
    def size(self) -> int:
        """Numbers in a position's states, over all blocks: what memory goes by."""
        return int(self._text.config.hidden_size * len(self._text.encoder.layers))

    def read(self, openings: Any) -> list[Any]:
        """(b, P, w) embeddings that prompts begin with -> what each block lets the others see."""
        return read(self._blocks(), self._placed(openings, 0), self._mask(0, openings))

    def run(self, embedded: Any, ends: Any, openings: list[Any] | None = None) -> Any:
        """(m, L', w) embeddings -> (m, d) features, as they leave the model.

        With `openings`, rows of what `read` gave, one for each prompt, `embedded` goes on
        behind them; `ends` count from the prompt's beginning all the same.
        """
        begun = 0 if openings is None else openings[0].shape[1]
        x, mask = self._placed(embedded, begun), self._mask(begun, embedded)
        rows = run(self._blocks(), x, ends - begun, mask, openings)
        return self._projection(self._text.final_layer_norm(rows))

    def _blocks(self) -> list[Block]:
        return [_parted(layer) for layer in self._text.encoder.layers]

    def _placed(self, embedded: Any, begun: int) -> Any:
        places = self._text.embeddings.position_embedding.weight
        return embedded.to(places.dtype) + places[begun : begun + embedded.shape[1]]

    def _mask(self, begun: int, embedded: Any) -> Any:
        """(L', begun + L'): each position sees itself and those before it."""
        length = embedded.shape[1]
        seen = torch.ones(length, begun + length, dtype=torch.bool, device=embedded.device)
        return seen.tril(begun)


def _parted(layer: Any) -> Block:
    """A layer of transformers' CLIP, by its parts."""
    attention = layer.self_attn
    return Block(
        norm=layer.layer_norm1,
        queries=attention.q_proj,
        keys_and_values=lambda states: torch.cat(
            [attention.k_proj(states), attention.v_proj(states)], dim=-1
        ),
        leave=attention.out_proj,
        feed=lambda states: layer.mlp(layer.layer_norm2(states)),
        heads=attention.num_heads,
        scale=attention.scale,
    )
