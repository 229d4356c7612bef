"""Labels as people write them: words, or numbers that stand for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from soba.datasets._facts import as_spoken
from soba.encode.image_files import PathLike, some


def ordered(names: Iterable[str]) -> list[str]:
    """Names in their order; as numbers, where all are.

    Examples
    --------
    >>> ordered(["10", "2"]), ordered(["b", "10", "2"])
    (['2', '10'], ['10', '2', 'b'])
    """
    names = list(names)
    numbers = all(name.isdecimal() for name in names)
    return sorted(names, key=lambda name: (int(name) if numbers else 0, name))


def read_labels(
    table: PathLike, words: Sequence[str], class_names: Sequence[str] | None
) -> tuple[Sequence[str], list[int]]:
    """Class names, and the index of each word of a table among them.

    Words are class names or their indices; without class names, those that occur are the classes.
    """
    if class_names is None:
        order = ordered(set(words))
        index = {word: label for label, word in enumerate(order)}
        return [as_spoken(word) for word in order], [index[word] for word in words]
    once = Counter(class_names)
    index = {name: label for label, name in enumerate(class_names) if once[name] == 1}
    if not set(words) & set(class_names):
        index = {str(label): label for label in range(len(class_names))}
    unknown = sorted(set(words) - set(index))
    if unknown:
        raise ValueError(
            f"{table}: labels that are not exactly one of the {len(class_names)} classes, "
            f"by name or by index: {some(unknown)}"
        )
    return class_names, [index[word] for word in words]
