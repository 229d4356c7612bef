"""Images in, answers out: encoder, class names, prompts and an adapter as one object.

It is what the command, a service and workers share. What it has learned is in one file, the
adapter's state with a note of class names, prompts and encoder: `soba classify --state` and
`Classifier.save` write the same files, and `load` reads them.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from soba._answering import answered, learned
from soba._files import load_checked
from soba.adapt._arrays import Batch
from soba.adapt.base import Adapter
from soba.adapt.soba_plus.transduce import em_fit
from soba.adapt.stream import StreamAdapter
from soba.answers import Answer
from soba.encode.prompts import classifier as text_classifier
from soba.encode.prompts import templates as read_templates
from soba.encode.source import EncoderSource
from soba.registry import check_method, create_adapter, saved_class

if TYPE_CHECKING:  # these need Pillow, which adapters on features do without
    from soba.encode.encoder import Encoder
    from soba.encode.features import Encoded

Templates = str | os.PathLike[str] | Sequence[str]

# How far the features of one sentence lie apart where an encoder had it in batches of other sizes,
# in half precision too; those of two class names are further apart than that.
_SAME_TEXT = 0.03


class Classifier:
    """A zero-shot classifier of images that learns from those it sees.

    Parameters
    ----------
    encoder
        "tiny" (ours, for icons), "ViT-B-16/openai" or another model and weights of open_clip
        (weights that are not on this machine are downloaded), "hf:openai/clip-vit-base-patch16"
        or another CLIP or SigLIP of transformers (likewise), the path of an ONNX model; or what
        `soba.load_encoder` gives, with a device and precision of your choice.
    names
        The classes, as a prompt would say them.
    method
        A stream method (`soba methods` lists them) or "zero-shot"; or an adapter of one, with
        hyper-parameters or samples of its own, whose text features are those of `names` and
        whose logit scale is the encoder's.
    templates
        The prompts: "single", "seven", "eighty", "icon", a data set's name, a file, "a {}.", or a
        list of such sentences. By default "icon" for the tiny CLIP and "single" for all others. An
        empty list: no prompts made the text features of the adapter, they are taken as given.

    Examples
    --------
    >>> from PIL import Image
    >>> clf = Classifier("tiny", ["bell", "cat"])
    >>> [answer] = clf.classify(Image.new("RGB", (64, 64), "white"))
    >>> answer.image, answer.label in ("bell", "cat")
    ('image 0', True)
    """

    def __init__(
        self,
        encoder: str | os.PathLike[str] | Encoder,
        names: Iterable[str],
        *,
        method: str | Adapter = "soba+",
        templates: Templates | None = None,
    ) -> None:
        if not isinstance(method, str | Adapter):
            raise TypeError(f"method must be a name or an adapter, not {method!r}")
        check_method(method if isinstance(method, str) else method.name)
        self.names = _listed(names)
        self._source = EncoderSource.of(encoder)
        self.templates = self._prompts(templates)
        given = isinstance(method, Adapter)
        if isinstance(method, str):
            opened = self._source.open()
            text = text_classifier(opened.encode_texts, self.names, self.templates)
            method = create_adapter(method, text, logit_scale=opened.logit_scale)
        self.adapter = _counting_by_content(method)
        self._check_sizes()
        if given:
            self._check_scale()
            if self.templates:
                self._check_text()

    # Answers ----------------------------------------------------------------------------------

    def classify(
        self,
        images: Any,
        *,
        learn: bool = True,
        batch: int = 64,
        top: int = 3,
        transductive: bool = False,
    ) -> Iterator[Answer]:
        """Answer images in their order; each is learned from, then scored.

        Parameters
        ----------
        images
            A path, folder, pattern, list, tar or Parquet file; a PIL image, array or tensor; or an
            iterable: see `soba.encode.images.list_images`. A folder's come by name.
        learn
            False: only score, with what is known by then.
        batch
            Images that are encoded, and learned from, at a time: those of a batch are when its
            first answer is asked for, and what is not iterated is not. Three batches more are read
            ahead, so take 1 for images that are still to come, such as a camera's.
        top
            Candidates in each answer.
        transductive
            True: encode all images first, then answer each in the light of all the others; learns
            nothing, and what was learned does not enter. Holds all features. SOBA+ only.

        Notes
        -----
        An image that cannot be read is answered with its `error`. One that was learned from
        before, in whatever run and under whatever name, is not learned from again.
        """
        for name, value in (("batch", batch), ("top", top)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if transductive:
            check_method(self.adapter.name, transductive=True)
            return self._transduced(images, batch, min(top, len(self.names)))
        if learn and not self.learns:
            raise ValueError(
                "its samples are numbered by a manifest, and images are known by their content: "
                "classify(..., learn=False)"
            )
        return self._answers(images, learn, batch, min(top, len(self.names)))

    def with_classes(self, names: Iterable[str], *, templates: Templates | None = None) -> Self:
        """A new classifier with the same samples, under other classes (and prompts, if given)."""
        names = _listed(names)
        prompts = self.templates if templates is None else self._prompts(templates)
        text = text_classifier(self.encoder.encode_texts, names, prompts)
        return self._of(self._source, self.adapter.with_text(text), names, prompts)

    def merge(self, *others: Classifier) -> Self:
        """Take in what other classifiers of the same classes have learned from other images."""
        for other in others:
            if not isinstance(other, Classifier):
                raise TypeError(f"a classifier merges with a classifier, not with {other!r}")
            for what, ours, theirs in (
                ("classes", self.names, other.names),
                ("methods", self.adapter.name, other.adapter.name),
                ("encoders", self._source.fingerprint, other._source.fingerprint),
                ("prompts", self.templates, other.templates),
            ):
                if ours != theirs:
                    raise ValueError(f"cannot merge classifiers of different {what}")
        if isinstance(self.adapter, StreamAdapter):  # zero-shot has learned nothing
            self.adapter.merge(*(other.adapter for other in others))  # type: ignore[arg-type]
        return self

    def copy(self) -> Self:
        """An independent classifier in the same state; both use one encoder."""
        return self._of(self._source, self.adapter.copy(), self.names, self.templates)

    # What it is -------------------------------------------------------------------------------

    @property
    def encoder(self) -> Encoder:
        """The encoder, opened if it is not yet."""
        encoder = self._source.open()
        self._check_sizes()
        return encoder

    @property
    def learns(self) -> bool:
        """Whether it can learn from images: not where it was learned from the shards of a run."""
        return not _is_of_a_run(self.adapter)

    def __repr__(self) -> str:
        return f"Classifier({self._source.name!r}, <{len(self.names)} classes>, {self.adapter!r})"

    # State ------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that is known to a file that `soba.load` reads: atomic, checksummed."""
        self.adapter.save(path, note=self._note())

    def __reduce__(self) -> tuple[Any, ...]:
        if self._source.opened_as is None:
            raise pickle.PicklingError(
                "a classifier is pickled with its encoder's name, and this encoder has none: "
                "open it with soba.load_encoder"
            )
        return _of_note, (self.adapter, self._note(), None)

    def _note(self) -> dict[str, Any]:
        return {
            "class_names": list(self.names),
            "encoder": self._source.fingerprint,
            "opened_as": self._source.opened_as,
            "templates": list(self.templates),
        }

    # Inside -----------------------------------------------------------------------------------

    def _answers(self, images: Any, learn: bool, batch: int, top: int) -> Iterator[Answer]:
        for part in self._encoded(images, batch):
            yield from self._answered(part, self._logits(part, learn), top)

    def _transduced(self, images: Any, batch: int, top: int) -> Iterator[Answer]:
        """The answers once all images are encoded; a picture that comes twice counts once."""
        parts = [part.without_images() for part in self._encoded(images, batch)]
        ids = np.array([picture.content_id for part in parts for picture in part.read], np.int64)
        rows = [np.empty((0, self.adapter.dim), np.float32), *(part.features for part in parts)]
        _, first = np.unique(ids, return_index=True)
        text = self.adapter.text_features * np.float32(self.adapter.logit_scale)
        features = np.concatenate(rows)
        model = em_fit(text, features if len(first) == len(ids) else features[np.sort(first)])
        del features, rows  # the parts have them, too
        for part in parts:
            yield from self._answered(part, model.logits(Batch(np, part.features, False)), top)

    def _encoded(self, images: Any, batch: int) -> Iterator[Encoded]:
        from soba.encode.features import encode_stream
        from soba.encode.images import list_images

        return encode_stream(self.encoder, list_images(images), batch=batch)

    def _answered(self, part: Encoded, logits: np.ndarray, top: int) -> list[Answer]:
        """The answers to one batch, in its order."""
        scaled_text = self.adapter.text_features * np.float32(self.adapter.logit_scale)
        return answered(part, logits, scaled_text, self.names, top)

    def _logits(self, part: Encoded, learn: bool) -> np.ndarray:
        if not learn:
            return np.asarray(self.adapter.logits(part.features))
        ids = np.array([picture.content_id for picture in part.read], np.int64)
        return learned(self.adapter, part.features, ids)

    def _prompts(self, templates: Templates | None) -> tuple[str, ...]:
        if templates is None:
            templates = "icon" if self._source.name == "tiny" else "single"
        if isinstance(templates, str | os.PathLike):
            return read_templates(templates)
        return tuple(templates)

    def _check_sizes(self) -> None:
        adapter, encoder = self.adapter, self._source.encoder
        if adapter.n_classes != len(self.names):
            raise ValueError(
                f"{len(self.names)} class names for an adapter of {adapter.n_classes} classes"
            )
        if encoder is not None and encoder.width != adapter.dim:
            raise ValueError(
                f"{encoder.name} gives features of {encoder.width} dimensions, the adapter has "
                f"learned from {adapter.dim}"
            )

    def _check_scale(self) -> None:
        ours, encoder = self.adapter.logit_scale, self.encoder
        if not np.isclose(ours, encoder.logit_scale, rtol=1e-4, atol=0.0):
            raise ValueError(
                f"the adapter has a logit scale of {ours:g}, and {encoder.name} one of "
                f"{encoder.logit_scale:g}: build it with logit_scale=encoder.logit_scale"
            )

    def _check_text(self) -> None:
        encoder, ours = self.encoder, self.adapter.text_features
        text = text_classifier(
            encoder.encode_texts, self.names, self.templates, allow_duplicates=True
        )
        wrong = np.flatnonzero(np.linalg.norm(ours - text, axis=1) > _SAME_TEXT)
        if len(wrong):
            listed = ", ".join(repr(self.names[row]) for row in wrong[:5])
            raise ValueError(
                f"the adapter's text features are not those of these names with these prompts, in "
                f"this order: {len(wrong)} of {len(text)} differ ({listed}"
                f"{', ...' if len(wrong) > 5 else ''})"
            )

    @classmethod
    def _of(
        cls,
        source: EncoderSource,
        adapter: Adapter,
        names: tuple[str, ...],
        templates: tuple[str, ...],
    ) -> Self:
        """A classifier of ready parts, whose encoder need not be open."""
        classifier = object.__new__(cls)
        classifier._source, classifier.adapter = source, _counting_by_content(adapter)
        classifier.names, classifier.templates = names, templates
        classifier._check_sizes()
        return classifier


def load(
    path: str | os.PathLike[str],
    *,
    encoder: str | os.PathLike[str] | Encoder | None = None,
    expect: Mapping[str, Any] | None = None,
) -> Classifier | Adapter:
    """What was saved in a file: a classifier, or an adapter of any method.

    Parameters
    ----------
    encoder
        In place of the one that a classifier was saved with; it must be the same by its
        fingerprint. Methods that tune prompts need the model they were learned with.
    expect
        Hyper-parameters by name, and "text_features", that must be what is in the file.

    Notes
    -----
    A classifier's encoder is opened at the first image, and never downloaded.
    """
    arrays, meta = load_checked(path)
    cls = saved_class(meta, path)
    note = meta.get("note")
    state = {"meta": meta, "arrays": arrays}
    if not isinstance(note, dict) or not {"class_names", "encoder"} <= note.keys():
        needs = {}
        if encoder is not None and cls.card.tunes_prompts:
            if isinstance(encoder, str | os.PathLike):
                raise TypeError(
                    f"{path}: {cls.card.name} needs the encoder itself: "
                    "encoder=soba.load_encoder(name, gradients=True)"
                )
            needs = {"encoder": encoder}
        return cls._loaded(path, state, expect or {}, needs)
    adapter = cls._loaded(path, state, expect or {}, {})
    try:
        return _of_note(adapter, note, encoder)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _of_note(
    adapter: Adapter, note: Mapping[str, Any], encoder: str | os.PathLike[str] | Encoder | None
) -> Classifier:
    """The classifier that was saved, or pickled, with an adapter and this note."""
    names, prompts = (_checked_words(note, key) for key in ("class_names", "templates"))
    source = EncoderSource(str(note["encoder"]), opened_as=note.get("opened_as"))
    if encoder is not None:
        source = source.replaced_by(encoder)
    check_method(adapter.name)
    return Classifier._of(source, adapter, names, prompts)


def _counting_by_content(adapter: Adapter) -> Adapter:
    """An image is known by its content; samples that are known by other ids are refused."""
    if isinstance(adapter, StreamAdapter):  # zero-shot knows no samples
        if adapter.id_space == "count":
            raise ValueError("its samples have no ids, so an image may be learned twice")
        if not _is_of_a_run(adapter):
            adapter.id_space = "content"
    return adapter


def _is_of_a_run(adapter: Adapter) -> bool:
    """Whether its samples are numbered by a manifest: see `soba.scale.manifest`."""
    return (getattr(adapter, "id_space", None) or "").startswith("manifest ")


def _listed(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError("names must be a list of class names, not one string")
    return tuple(names)


def _checked_words(note: Mapping[str, Any], key: str) -> tuple[str, ...]:
    words = note.get(key)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{key} is missing from what was noted with the state")
    return tuple(words)
