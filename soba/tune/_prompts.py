"""Prompts whose first words are free vectors, run through the text tower of an open_clip model.

[start][context vectors][class name and the rest of the template][end], as in CoOp. Gradients
reach the context and nothing else. Classes go through the tower in chunks, and each chunk is
computed again in the backward pass (activation checkpointing), so memory hardly grows with the
number of classes: the official codes need over 16 GB for a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from soba.encode.openclip import OpenClip
from soba.tune._torch import torch

_TOKENS_AT_A_TIME = 1024  # about half a gigabyte of activations in a ViT-B's text tower


class Prompts:
    """The prompts of some classes, as a function of their common context vectors.

    Parameters
    ----------
    encoder
        Whose text tower and tokenizer are used; its weights stay as they are.
    class_names, template
        As in "a photo of a {}.".
    context_tokens
        How many context vectors. None: one for each token of the words before the `{}`, with the
        embeddings of these as `initial` context.
    chunk
        Prompts at a time; by default as many as keep the memory around half a gigabyte.
    """

    def __init__(
        self,
        encoder: OpenClip,
        class_names: Sequence[str],
        template: str,
        *,
        context_tokens: int | None = None,
        chunk: int | None = None,
    ) -> None:
        if encoder.text_tower is None:
            raise ValueError(f"{encoder.name}: prompts cannot be tuned on a text tower of its kind")
        self._encoder = encoder
        self._tower = encoder.text_tower
        opening, _, closing = template.partition("{}")
        if context_tokens is None:
            tokens, self.context_tokens = self._worded(opening, closing, class_names)
        else:
            tokens = self._blank(closing, class_names, context_tokens)
            self.context_tokens = context_tokens
        self._ends = self._tower.ends(tokens)
        with torch.no_grad():
            self._embedded = self._tower.embed(tokens, self._ends)  # (C, L, w)
        self.initial = self._embedded[0, 1 : 1 + self.context_tokens].float().clone()
        self._chunk = chunk or max(1, _TOKENS_AT_A_TIME // self._embedded.shape[1])

    @property
    def width(self) -> int:
        """Of a context vector."""
        return int(self._embedded.shape[2])

    def features(self, context: Any) -> Any:
        """Unit text features (C, d) under a context (M, w); (B, C, d) under B of them."""
        classes = len(self._embedded)
        lead = context.shape[:-2]
        rows = context.unsqueeze(-3).expand(*lead, classes, *context.shape[-2:])
        rows = rows.reshape(-1, *context.shape[-2:])  # (B C, M, w)
        which = torch.arange(classes, device=context.device).repeat(len(rows) // classes)
        parts = list(zip(rows.split(self._chunk), which.split(self._chunk), strict=True))
        again = len(parts) > 1 and torch.is_grad_enabled() and context.requires_grad
        with self._encoder.autocast():
            encoded = [
                torch.utils.checkpoint.checkpoint(
                    self._encode, *part, use_reentrant=False, preserve_rng_state=False
                )
                if again
                else self._encode(*part)
                for part in parts
            ]
        return torch.cat(encoded).unflatten(0, (*lead, classes))

    def _encode(self, context: Any, which: Any) -> Any:
        embedded, behind = self._embedded[which], 1 + self.context_tokens
        parts = [embedded[:, :1], context.to(embedded.dtype), embedded[:, behind:]]
        rows = self._tower.run(torch.cat(parts, dim=1), self._ends[which])
        return torch.nn.functional.normalize(rows.float(), dim=-1)

    def _worded(self, opening: str, closing: str, names: Sequence[str]) -> tuple[Any, int]:
        """Tokens of the whole sentences, and how many of them stand for the words before {}."""
        words = opening.strip()
        if not words:
            raise ValueError("the template needs words before its {}: they are what is tuned")
        alone = self._encoder.tokens([words])[0]
        count = int(alone.argmax()) - 1
        tokens = self._encoder.tokens([f"{opening}{name}{closing}" for name in names])
        if not bool((tokens[:, 1 : 1 + count] == alone[1 : 1 + count]).all()):
            raise ValueError(f"the tokenizer joins {words!r} with the class names that follow")
        return tokens, count

    def _blank(self, closing: str, names: Sequence[str], count: int) -> Any:
        """Tokens of the class names with `count` places kept free in front of them."""
        tokens = self._encoder.tokens([f"{name}{closing}" for name in names])
        length = tokens.shape[1]
        longest = int(tokens.argmax(dim=1).argmax())
        if int(tokens[longest].argmax()) + count >= length:
            raise ValueError(
                f"{count} context vectors and {names[longest]!r} "
                f"do not fit into the {length} tokens of {self._encoder.name}"
            )
        start, rest = tokens[:, :1], tokens[:, 1 : length - count]
        return torch.cat([start, start.new_zeros(len(names), count), rest], dim=1)
