"""Prompts whose first words are free vectors, run through the text tower of an encoder.

[start][context vectors][class name and the rest of the template][end], as in CoOp. Gradients
reach the context and nothing else. The context runs once for all classes, where the tower is
causal, and class names of a length run together. What would take too much memory at a time goes
through the tower in chunks, each computed again in the backward pass (activation checkpointing),
so memory hardly grows with the number of classes: the official codes need over 16 GB for a
thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from soba.encode.encoder import Encoder
from soba.tune._torch import gradients, torch

_AT_A_TIME = 1024 * 512 * 12  # states: of 1024 tokens in a ViT-B's text tower, half a gigabyte
_ALIKE = 0.75  # of the longest prompt beside it: a shorter one runs apart, rather than be padded


class Prompts:
    """The prompts of some classes, as a function of their context vectors, common or of each.

    Parameters
    ----------
    encoder
        Whose text tower and tokenizer are used; its weights stay as they are.
    class_names, template
        As in "a photo of a {}.".
    context_tokens
        How many context vectors. None: one for each token of the words before the `{}`, with the
        embeddings of these as `initial` context.
    at_a_time
        Tokens; by default as many as keep the memory around half a gigabyte.
    """

    @gradients()  # so that none of the tensors kept is of inference mode
    def __init__(
        self,
        encoder: Encoder,
        class_names: Sequence[str],
        template: str,
        *,
        context_tokens: int | None = None,
        at_a_time: int | None = None,
    ) -> None:
        if encoder.text_tower is None:
            raise ValueError(
                f"{encoder.name}: prompts cannot be tuned on a text tower of its kind, where no "
                "gradients pass; load_encoder(..., gradients=True) asks for one where they do"
            )
        self._encoder = encoder
        self._tower = encoder.text_tower
        opening, _, closing = template.partition("{}")
        if context_tokens is None:
            tokens, self.context_tokens = self._worded(opening, closing, class_names)
        else:
            tokens = self._blank(closing, class_names, context_tokens)
            self.context_tokens = context_tokens
        with torch.no_grad():
            ends = self._tower.ends(tokens)
            embedded = self._tower.embed(tokens, ends)  # (C, L, w)
        self.initial = embedded[0, 1 : 1 + self.context_tokens].float().clone()
        # The longest first, so that prompts of a length are neighbours.
        self._order = ends.argsort(descending=True, stable=True)
        self._ends, self._embedded = ends[self._order], embedded[self._order]
        self._at_a_time = at_a_time or max(1, _AT_A_TIME // self._tower.size)

    @property
    def width(self) -> int:
        """Of a context vector."""
        return int(self._embedded.shape[2])

    def features(self, context: Any) -> Any:
        """Unit text features (C, d) under a context (M, w); (B, C, d) under B of them."""
        contexts = context if context.ndim == 3 else context[None]  # (B, M, w)
        count = len(contexts)
        share = self._tower.shares_openings
        begun = 1 + self.context_tokens if share else 0
        grid = self._parts(count, begun)
        parts = [(rows // count, rows % count, length) for rows, length in grid]
        rows = self._run(contexts, parts, share=share)
        by_class = rows.unflatten(0, (len(self._order), count))  # (C, B, d), in the order of length
        by_class = by_class[self._order.argsort()]
        return by_class.transpose(0, 1) if context.ndim == 3 else by_class[:, 0]

    def features_of_each(self, contexts: Any) -> Any:
        """Unit text features (C, d), each class under its own of the contexts (C, M, w)."""
        parts = [(rows, self._order[rows], length) for rows, length in self._parts(1)]
        return self._run(contexts, parts, share=False)[self._order.argsort()]

    def _run(self, contexts: Any, parts: list[tuple[Any, Any, int]], *, share: bool) -> Any:
        """(m, d) features of m prompts: places in the order of lengths, contexts, their length.

        With `share` each context runs once for all prompts that begin with it.
        """
        starts = self._embedded[:1, :1].expand(len(contexts), 1, self.width)
        tokens = sum(len(which) * length for which, _, length in parts)
        again = tokens > self._at_a_time and torch.is_grad_enabled() and contexts.requires_grad
        with self._tower.autocast():
            openings = torch.cat([starts, contexts.to(starts.dtype)], dim=1)
            read = self._tower.read(openings) if share else None
            encoded = [
                torch.utils.checkpoint.checkpoint(
                    self._encode,
                    openings,
                    read,
                    *part,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
                if again
                else self._encode(openings, read, *part)
                for part in parts
            ]
        return torch.cat(encoded)

    def _parts(self, contexts: int, begun: int = 0) -> Iterator[tuple[Any, int]]:
        """Rows of the (C, B) grid of prompts and contexts to run together, and their length.

        Prompts are alike if what they run themselves is, behind the first `begun` tokens.
        """
        lengths = (self._ends + 1).repeat_interleave(contexts).tolist()
        if not self._tower.cuts:
            lengths = [self._embedded.shape[1]] * len(lengths)
        start = 0
        while start < len(lengths):
            longest = lengths[start]
            stop = min(len(lengths), start + max(1, self._at_a_time // longest))
            while lengths[stop - 1] - begun < _ALIKE * (longest - begun):
                stop -= 1
            yield torch.arange(start, stop, device=self._ends.device), longest
            start = stop

    def _encode(
        self, openings: Any, read: list[Any] | None, which: Any, context: Any, length: int
    ) -> Any:
        rest = self._embedded[which, openings.shape[1] : length]
        if read is None:
            sentences = torch.cat([_rows(openings, context), rest], dim=1)
            encoded = self._tower.run(sentences, self._ends[which])
        else:
            begun = [_rows(seen, context) for seen in read]
            encoded = self._tower.run(rest, self._ends[which], begun)
        return torch.nn.functional.normalize(encoded.float(), dim=-1)

    def _worded(self, opening: str, closing: str, names: Sequence[str]) -> tuple[Any, int]:
        """Tokens of the whole sentences, and how many of them stand for the words before {}."""
        words = opening.strip()
        if not words:
            raise ValueError("the template needs words before its {}: they are what is tuned")
        tokens, _ = self._tokens([f"{opening}{name}{closing}" for name in names])
        (alone,), (end,) = self._tokens([words])
        count = int(end) - 1
        if not bool((tokens[:, 1 : 1 + count] == alone[1 : 1 + count]).all()):
            raise ValueError(f"the tokenizer joins {words!r} with the class names that follow")
        return tokens, count

    def _blank(self, closing: str, names: Sequence[str], count: int) -> Any:
        """Tokens of the class names with `count` places kept free in front of them."""
        tokens, ends = self._tokens([f"{name}{closing}" for name in names])
        length = tokens.shape[1]
        longest = int(ends.argmax())
        if int(ends[longest]) + count >= length:
            raise ValueError(
                f"{count} context vectors and {names[longest]!r} "
                f"do not fit into the {length} tokens of {self._encoder.name}"
            )
        start, rest = tokens[:, :1], tokens[:, 1 : length - count]
        return torch.cat([start, start.expand(-1, count), rest], dim=1)  # it is no end token

    def _tokens(self, texts: Sequence[str]) -> tuple[Any, Any]:
        """(m, L) tokens, and (m,) places of the token that stands behind the words of each.

        An empty text shows how the tokenizer begins and ends: only where a start token comes
        first is the second place that of the first word.
        """
        tokens = torch.as_tensor(self._encoder.tokens([*texts, ""]), device=self._encoder.device)
        start, end = tokens[-1, :2]
        ended = torch.nn.functional.pad((tokens[:, 1:] == end).int(), (0, 1), value=1)
        ends = 1 + ended.argmax(dim=1)  # behind the last place for a text that was cut
        begun = bool((tokens[:, 0] == start).all()) and int(start) != int(end)
        if not begun or (self._tower.reads_end and not ends.equal(self._tower.ends(tokens))):
            raise ValueError(f"{self._encoder.name}: prompts need a tokenizer with a start token")
        return tokens[:-1], ends[:-1]


def _rows(table: Any, index: Any) -> Any:
    """`table[index]`, but threads may sum the gradients of that in any order; these repeat."""
    if len(table) == 1:
        return table.expand(len(index), *table.shape[1:])
    return table.index_select(0, index)
