"""A tokenizer without a vocabulary file: bytes.

CLIP's own has 49,408 tokens, whose embeddings alone would outweigh the tiny CLIP. UTF-8 bytes
make 256, and any word in any script can be spelled. Words are not learned as such: the text
tower has to read them letter by letter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class ByteTokenizer:
    """Sentences -> rows of byte tokens between a start and an end token.

    Parameters
    ----------
    context_length
        Tokens per row. Longer sentences are cut, the end token stays; shorter ones are filled
        with zeros.

    Notes
    -----
    The end token has the highest id, since CLIP reads a sentence's feature where the id is
    largest. Case and extra space do not count.

    Examples
    --------
    >>> ByteTokenizer(6)("A  b")
    array([[256,  97,  32,  98, 257,   0]])
    """

    start = 256
    end = 257
    vocabulary = 258

    def __init__(self, context_length: int = 64) -> None:
        if context_length < 3:
            raise ValueError(f"context_length must be 3 at least, not {context_length}")
        self.context_length = context_length

    def encode(self, text: str) -> list[int]:
        """The bytes of a text, without start and end."""
        return list(" ".join(text.lower().split()).encode())

    def __call__(self, texts: str | Sequence[str]) -> np.ndarray:
        """(m, context_length) int64, a row per text."""
        texts = [texts] if isinstance(texts, str) else texts
        rows = np.zeros((len(texts), self.context_length), np.int64)
        for row, text in zip(rows, texts, strict=True):
            tokens = [self.start, *self.encode(text)[: self.context_length - 2], self.end]
            row[: len(tokens)] = tokens
        return rows
