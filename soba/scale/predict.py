"""Feature files -> answers under a state or a model, a file of answers for each shard."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from soba._files import parse_json
from soba.adapt._arrays import read_batch, softmax
from soba.adapt.scheduled import ScheduledAdapter
from soba.adapt.soba_plus.transduce import block_rows
from soba.registry import saved_class
from soba.scale.answer_files import AnswerBlock, read_answer_file, write_answer_file
from soba.scale.folder import ShardFolder
from soba.scale.learn import state_digest, state_meta
from soba.scale.manifest import claim
from soba.scale.transduce import KIND, load_model, model_logits

ABOUT = "answers.json"

Scorer = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Predicted:
    """What came of one shard."""

    number: int
    rows: int
    changed: int  # answered otherwise than by zero-shot
    broken: int
    was_there: bool


class Predictor:
    """Answers the images of a run; the state is read once, for all its shards.

    Parameters
    ----------
    folder
        Of the run.
    state
        What was merged, or what `soba learn --transductive` wrote; of the same encoder, classes
        and prompts.
    answers
        The folder of the answers, which are all under one state.
    top
        Candidates in each answer.
    """

    def __init__(
        self,
        folder: ShardFolder,
        state: str | os.PathLike[str],
        answers: str | os.PathLike[str],
        top: int = 3,
    ) -> None:
        self.folder, self.answers = folder, Path(answers)
        self.top = min(top, len(folder.manifest.class_names))
        self.about = {
            "state": state_digest(state),
            "id_space": folder.manifest.id_space,
            "top": self.top,
        }
        self._scaled_text = folder.text_features * np.float32(folder.manifest.logit_scale)
        self._score = scorer(folder, state)
        self._claim()

    def answer_file(self, number: int) -> Path:
        """Where the answers of a shard are, or will be."""
        return self.answers / f"answers-{number:05d}.parquet"

    def __call__(self, number: int) -> Predicted:
        """Write the answers of a shard, unless they are there."""
        shard, target = self.folder.features(number), self.answer_file(number)
        was_there, changed = target.exists(), 0
        if was_there:
            about, changed = read_answer_file(target)
            self._refuse_other(target, about)
        else:

            def blocks() -> Iterator[AnswerBlock]:
                nonlocal changed
                for block in self._blocks(number):
                    changed += int((block.top[:, 0] != block.zero_shot).sum())
                    yield block

            names = self.folder.manifest.class_names
            write_answer_file(target, blocks(), shard.broken, names, self.about)
        return Predicted(number, len(shard), changed, len(shard.broken), was_there)

    def _blocks(self, number: int) -> Iterator[AnswerBlock]:
        for block in self.folder.blocks(number, block_rows(len(self._scaled_text))):
            shares = softmax(np, self._score(block.features))
            top = _best(shares, self.top)
            unit = read_batch(block.features, block.features.shape[1]).x
            plain = softmax(np, unit @ self._scaled_text.T)
            guess = plain.argmax(axis=1)
            yield AnswerBlock(
                block.keys,
                block.ids,
                top,
                np.take_along_axis(shares, top, axis=1),
                guess,
                plain[np.arange(len(guess)), guess],
            )

    def _claim(self) -> None:
        """All who write into this folder answer under one state."""
        self.answers.mkdir(parents=True, exist_ok=True)
        file = self.answers / ABOUT
        claim(file, lambda temporary: temporary.write_text(json.dumps(self.about) + "\n"))
        try:
            there = parse_json(file.read_bytes())
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
        self._refuse_other(file, there)

    def _refuse_other(self, file: Path, there: object) -> None:
        if there != self.about:
            raise ValueError(
                f"{file}: is of other answers ({json.dumps(there)}) than these "
                f"({json.dumps(self.about)}); take another folder"
            )


def scorer(folder: ShardFolder, state: str | os.PathLike[str]) -> Scorer:
    """(n, d) features -> (n, C) logits under a state or model of the same classes and encoder."""
    meta, ours = state_meta(state), folder.note()
    note = meta.get("note")
    if not isinstance(note, dict):
        raise ValueError(f"{state}: does not say of which classes and encoder it is")
    for key, what in (
        ("encoder", "encoder"),
        ("class_names", "classes"),
        ("templates", "prompts"),
    ):
        if note.get(key) != ours[key]:
            raise ValueError(f"{state}: was learned with other {what} than {folder.path} has")
    if meta.get("model") == KIND:
        model = load_model(state)
        return lambda features: model_logits(model, features)
    adapter = saved_class(meta, state).load(state)
    if isinstance(adapter, ScheduledAdapter) and adapter.statistics_ is None:
        adapter.refresh()  # the state of one worker, which nobody has merged
    return lambda features: np.asarray(adapter.logits(features))


def _best(shares: np.ndarray, count: int) -> np.ndarray:
    """(n, k) the likeliest classes, best first; the first of equals."""
    if count * 4 >= shares.shape[1]:
        return _ranked(shares, count)
    some = np.sort(np.argpartition(-shares, count, axis=1)[:, :count], axis=1)
    order = _ranked(np.take_along_axis(shares, some, axis=1), count)
    best: np.ndarray = np.take_along_axis(some, order, axis=1)
    # Where classes beyond the last are as likely as it, the partition has taken any of them.
    last = np.take_along_axis(shares, best[:, -1:], axis=1)
    tied = np.count_nonzero(shares >= last, axis=1) > count
    best[tied] = _ranked(shares[tied], count)
    return best


def _ranked(shares: np.ndarray, count: int) -> np.ndarray:
    ranked: np.ndarray = np.argsort(-shares, axis=1, kind="stable")
    return ranked[:, :count]
