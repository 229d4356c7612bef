"""A classifier whose stream lives in a database: what was acknowledged is never lost.

Any number of threads and processes feed one stream. Each call is a transaction: lock the stream,
take in what others wrote, learn, append, commit, then answer. Killed at any moment, nothing that
was acknowledged is lost, and what is sent again is not learned twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from soba._answering import answered
from soba.answers import Answer
from soba.classifier import Classifier, Templates, load
from soba.encode.prompts import classifier as text_classifier
from soba.encode.prompts import templates as read_templates
from soba.encode.source import EncoderSource
from soba.serve.creation import create_stream
from soba.serve.databases import Database, Durability, open_database
from soba.serve.guard import WITHOUT_GUARD, Guard, trusted
from soba.serve.learning import Learning
from soba.serve.replica import Replica, View
from soba.serve.store import NoStream, Store, Transaction
from soba.serve.stream_state import REMEMBERED, StreamState, checked_adapter, load_state

if TYPE_CHECKING:  # these need Pillow, which streams of features do without
    from soba.encode.encoder import Encoder
    from soba.encode.features import Encoded

_SAME_TEXT = 1e-4  # machines round text features otherwise; other words are further apart


class Change(NamedTuple):
    """One entry of a stream's history."""

    version: int
    kind: str  # learn, classes, guard, freeze, unfreeze, rollback, reset, import, upgrade
    samples: int
    at: float  # seconds since 1970


class DurableStream:
    """A stream of images, or of features, whose state is in a database.

    Parameters
    ----------
    store
        `sqlite:///FILE` or `postgresql://USER@HOST/NAME`, or a `Database`.
    name
        Of the stream: there may be many in one database.
    classifier
        What a new stream goes on from. If there is a stream of that name, it goes on, and the
        classifier must have its encoder, method and classes. May be left out then; the encoder is
        opened by its name at the first image.
    durability
        "full": what was acknowledged survives a power cut. "normal": it survives a kill of the
        process; a power cut may cost the last seconds, and leaves the stream whole. "off": only
        the process may die, not the machine.
    remember
        How many ids are known, the last ones and those of the samples that are kept: one that
        comes again is scored, and not learned from again. Of a new stream. Ids that a classifier
        brings, here or by `import_state`, are the oldest of them.
    change_classes
        Take the samples of a stream with other classes over to those of the classifier.
    encoder
        Without a classifier: the encoder itself, where it is at hand, so that streams share it.

    Examples
    --------
    >>> import tempfile, soba
    >>> from PIL import Image
    >>> clf = soba.Classifier("tiny", ["bell", "cat"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with DurableStream(f"sqlite:///{folder}/cats.db", "cats", clf) as stream:
    ...         [answer] = stream.classify(Image.new("RGB", (64, 64), "white"))
    ...     with DurableStream(f"sqlite:///{folder}/cats.db", "cats") as stream:
    ...         stream.n_seen, stream.history()[0].kind
    (1, 'learn')
    """

    def __init__(
        self,
        store: str | Database,
        name: str,
        classifier: Classifier | None = None,
        *,
        durability: Durability = "full",
        remember: int = REMEMBERED,
        change_classes: bool = False,
        encoder: Encoder | None = None,
    ) -> None:
        if isinstance(remember, bool) or not isinstance(remember, int) or remember < 1:
            raise ValueError(f"remember must be a whole number of at least 1, not {remember!r}")
        if not isinstance(name, str) or not name or "\0" in name:
            raise ValueError(f"a stream needs a name, not {name!r}")
        if isinstance(store, str):
            store = open_database(store, durability=durability)
        self.name = name
        self._store = Store(store)
        self._where = f"{store.name}: stream {name!r}"
        try:
            self._begin(classifier, remember)
            self._replica = Replica(self._store, name)
            if classifier is None:
                opened = self._replica.read(lambda state: state.encoder)
                self._source = EncoderSource(opened["encoder"], encoder, opened["opened_as"])
            else:
                self._source = classifier._source
                self._agree(classifier, change_classes)
        except BaseException:
            self.close()
            raise

    # Answers ----------------------------------------------------------------------------------

    def classify(
        self,
        images: Any,
        *,
        ids: Iterable[str | int] | None = None,
        learn: bool = True,
        batch: int = 64,
        top: int = 3,
    ) -> Iterator[Answer]:
        """Answer images in their order, as `Classifier.classify` does.

        Every batch is in the database before its first answer comes. `ids` are what the client
        calls the images, one each; by default an image is known by its content. A frozen stream
        answers without learning.
        """
        for what, value in (("batch", batch), ("top", top)):
            if value < 1:
                raise ValueError(f"{what} must be at least 1, not {value}")
        names = None if ids is None else iter(ids)
        return self._answers(images, names, learn, batch, top)

    def adapt(self, features: Any, *, ids: Iterable[str | int] | None = None) -> np.ndarray:
        """Learn from features (n, d) and score them: (n, C) logits, when all is in the database.

        A sample is known by what `ids` call it, a string or a number, or else by its values: a
        known one is scored and not learned from again. An id that is known and comes with another
        sample is refused. A frozen stream scores only. A call is one
        transaction, and others wait for it: bring thousands of samples at a time, not millions.
        """
        learning = self._learned(features, ids, required=False)
        logits: np.ndarray = learning.logits[0] if learning.single else learning.logits
        return logits

    def learn(self, features: Any, *, ids: Iterable[str | int] | None = None) -> int:
        """Learn from features (n, d); how many samples were new. A frozen stream refuses."""
        return self._learned(features, ids, required=True).learned

    def view(self) -> View:
        """The stream as this process knows it: needs no database, and changes no more.

        Examples
        --------
        >>> import soba, tempfile
        >>> clf = soba.Classifier("tiny", ["bell", "cat"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with DurableStream(f"sqlite:///{folder}/db", "cats", clf) as stream:
        ...         view = stream.view()
        >>> view.version, view.predictor.predict(clf.adapter.text_features).tolist()
        (0, [0, 1])
        """
        return self._replica.view

    def sync(self) -> int:
        """Take in what other processes wrote; the version that this one is at then."""
        return self._replica.sync().version

    # Changes ----------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Answer without learning, in all processes, until `unfreeze`."""
        self._replica.set("freeze", lambda state: {"frozen": True, "frozen_by": "operator"})

    def unfreeze(self) -> None:
        """Learn again. Raises `GuardFailed` while a guard finds the stream worse than CLIP:
        roll back first, or remove the guard."""
        self._replica.set("unfreeze", trusted)

    def set_guard(self, features: Any, labels: Iterable[str]) -> None:
        """Labelled samples (n, d) that are scored whenever statistics refresh: see `guard.py`.

        If they are answered worse than by zero-shot, more often than chance would have it, the
        stream freezes and answers by zero-shot, in all processes.
        """
        guard = Guard.checked(features, labels, self.view())
        self._replica.set("guard", guard.installed)

    def remove_guard(self) -> None:
        """No guard any more; a stream that it froze answers adapted again, and stays frozen."""
        self._replica.set("guard", lambda state: WITHOUT_GUARD)

    def rollback(self, version: int) -> None:
        """Go back to what was known at a version: a snapshot's, or one that the log still reaches.

        Samples that were learned since stay known by their ids, as far as these are remembered, so
        that who sends them again does not bring them back: also those from before a `reset`
        or an `import_state` that is gone back behind, and those that an import brought.
        Whether the stream is frozen stays as it is.
        """

        def restored(transaction: Transaction, state: StreamState) -> StreamState:
            if not 0 <= version <= state.version:
                raise ValueError(f"{self._where} has versions 0 to {state.version}, not {version}")
            return load_state(transaction, version).knowing(state)

        self._replica.replace("rollback", restored)

    def reset(self) -> None:
        """Forget all samples and their ids; classes and settings stay."""
        self._replica.replace("reset", lambda transaction, state: state.emptied())

    def change_classes(self, names: Iterable[str], *, templates: Templates | None = None) -> None:
        """The same samples under other classes, in all processes: they are scored anew."""
        names = tuple(names)
        prompts = self.view().templates if templates is None else _prompts(templates)
        text = text_classifier(self._source.open().encode_texts, names, prompts)
        self._take_classes(names, prompts, text)

    def import_state(self, classifier: Classifier | str | os.PathLike[str]) -> None:
        """Go on from what a classifier, or the file of one, has learned; what was there goes."""
        if not isinstance(classifier, Classifier):
            path, loaded = classifier, load(classifier)
            if not isinstance(loaded, Classifier):
                raise ValueError(f"{path}: holds an adapter, and no class names")
            classifier = loaded
        self._check_encoder(classifier, self._source.fingerprint)
        adapter, note = checked_adapter(classifier.adapter).copy(), classifier._note()

        def imported(transaction: Transaction, state: StreamState) -> StreamState:
            new = StreamState.begun(adapter, note, state.recent.remember)
            return new.replaced(settings=state.settings, past=state.left_behind())

        self._replica.replace("import", imported)

    # What it is -------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The classes, as this process knows them."""
        return self.view().names

    @property
    def n_seen(self) -> int:
        """How many samples the stream has learned from, as this process knows it."""
        return self.view().n_seen

    @property
    def version(self) -> int:
        """The entry of the log that this process has come to."""
        return self.view().version

    @property
    def frozen(self) -> bool:
        """Whether the stream answers without learning."""
        return self.view().frozen

    def history(self, limit: int = 100) -> list[Change]:
        """The last changes, newest first; those that are of samples go when the log is trimmed."""
        return [Change(*row) for row in self._store.history(self.name, limit)]

    def snapshots(self) -> list[int]:
        """The versions whose states are kept for `rollback`, newest first."""
        return self._store.snapshots(self.name)

    def to_classifier(self) -> Classifier:
        """An independent classifier in the state of this moment, to save or to go on with."""
        return self._replica.read(
            lambda state: Classifier._of(
                self._source, state.adapter.copy(), state.names, state.templates
            )
        )

    def __repr__(self) -> str:
        return f"DurableStream({self._store.database.name!r}, {self.name!r})"

    def close(self) -> None:
        """Let go of the database; another call opens it again."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Inside -----------------------------------------------------------------------------------

    def _begin(self, classifier: Classifier | None, remember: int) -> None:
        """Make the stream, if there is none; what there is must be of the same encoder."""
        header = self._store.header(self.name)
        if classifier is None:
            if header is None:
                known = ", ".join(self._store.names()) or "none"
                raise NoStream(
                    f"{self._where} is not there (there are: {known}); give a classifier"
                )
            return
        if header is None:
            create_stream(self._store, self.name, classifier, remember)
            header = self._store.header(self.name)  # somebody else may have been faster
        assert header is not None
        self._check_encoder(classifier, header.encoder)

    def _check_encoder(self, classifier: Classifier, ours: str) -> None:
        theirs = classifier._source.fingerprint
        if theirs != ours:
            raise ValueError(
                f"{self._where}: learned with encoder {ours}, not {theirs}: features of different "
                "encoders do not mix"
            )

    def _agree(self, classifier: Classifier, change_classes: bool) -> None:
        """Raise if a classifier is not of this stream; or give the stream its classes."""
        theirs, names = classifier.adapter, classifier.names
        ours = self._replica.read(lambda state: state.adapter)
        if (theirs.name, theirs.params) != (ours.name, ours.params):
            raise ValueError(f"{self._where}: learned by {ours!r}, not by {theirs!r}")
        same_text = theirs.text_features.shape == ours.text_features.shape and np.allclose(
            theirs.text_features, ours.text_features, rtol=0.0, atol=_SAME_TEXT
        )
        if names == self.names and same_text:
            return
        if not change_classes:
            what = "with other prompts" if names == self.names else f"for {_some(self.names)}"
            raise ValueError(
                f"{self._where}: learned {what}, where this classifier has {_some(names)}; "
                "change_classes=True (--change-classes) takes the samples over, another name "
                "begins anew"
            )
        self._take_classes(names, classifier.templates, theirs._given_text)

    def _take_classes(
        self, names: tuple[str, ...], templates: tuple[str, ...], text: np.ndarray
    ) -> None:
        def taken(transaction: Transaction, state: StreamState) -> StreamState:
            adapter = state.adapter.with_text(text)
            return state.replaced(adapter=adapter, names=names, templates=templates)

        self._replica.replace("classes", taken)

    def _learned(self, features: Any, ids: Any, *, required: bool) -> Learning:
        dim = self.view().scaled_text.shape[1]
        learning = Learning.of(features, ids, dim, required=required)
        self._replica.learn(learning)
        return learning

    def _answers(
        self, images: Any, names: Iterator[str | int] | None, learn: bool, batch: int, top: int
    ) -> Iterator[Answer]:
        from soba.encode.features import encode_stream
        from soba.encode.images import list_images

        for part in encode_stream(self._source.open(), list_images(images), batch=batch):
            called = None if names is None else list(islice(names, part.stop - part.start))
            if called is not None and len(called) < part.stop - part.start:
                raise ValueError(f"image {part.start + len(called)} has no id")
            yield from self._answered(part, called, learn, top)

    def _answered(
        self, part: Encoded, called: list[str | int] | None, learn: bool, top: int
    ) -> list[Answer]:
        """The answers to one batch, when what it taught is in the database."""
        if learn:
            learning = Learning.of_images(part, called)
            self._replica.learn(learning)
            view, logits = learning.view, learning.logits
        else:
            view = self._replica.sync()
            logits = np.asarray(view.predictor.logits(part.features))
        return answered(part, logits, view.scaled_text, view.names, min(top, len(view.names)))


def _prompts(templates: Templates) -> tuple[str, ...]:
    if isinstance(templates, str | os.PathLike):
        return read_templates(templates)
    return tuple(templates)


def _some(names: tuple[str, ...]) -> str:
    listed = ", ".join(names[:5])
    return listed if len(names) <= 5 else f"{listed}, ... ({len(names)})"
