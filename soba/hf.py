"""A drop-in for transformers' zero-shot image classification that adapts as it goes.

The same call and the same answers, with another first line::

    from soba.hf import pipeline  # was: from transformers import pipeline

    classifier = pipeline("zero-shot-image-classification", model="openai/clip-vit-base-patch16")
    classifier("cat.jpg", candidate_labels=["cat", "dog"])  # [{"score": ..., "label": "cat"}, ...]

Labels are encoded once and not for every image, and each label set is a stream of its own: what it
was asked about makes its next answers better.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from soba._answering import learned
from soba.classifier import Classifier
from soba.encode.encoder import HF, Encoder, load_encoder
from soba.registry import check_method, create_adapter

if TYPE_CHECKING:  # it needs Pillow
    from PIL import Image

TASK = "zero-shot-image-classification"
TEMPLATE = "This is a photo of {}."  # transformers' own
_TOGETHER = 64  # images of a list that are encoded at a time
_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "auto": "fp32"}

Scores = list[dict[str, Any]]  # {"score": ..., "label": ...}, the best first


def pipeline(
    task: str = TASK,
    model: str | os.PathLike[str] | Encoder | None = None,
    *,
    device: Any = None,
    dtype: Any = None,
    learn: bool = True,
    method: str = "soba+",
    batch_size: int | None = None,
    max_label_sets: int = 8,
) -> ZeroShotImageClassification:
    """As `transformers.pipeline`, for this one task.

    Parameters
    ----------
    model
        A name on the Hugging Face hub, a folder, or any encoder of `soba.load_encoder`.
    device
        A name ("cuda:1"), a number (-1 is the CPU) or a torch device; by default the best there is.
    dtype
        Of the weights: torch.float16, "bfloat16"; float32 by default.
    learn, method, batch_size, max_label_sets
        As of `ZeroShotImageClassification`.

    Examples
    --------
    >>> import soba
    >>> classifier = pipeline("zero-shot-image-classification", soba.load_encoder("tiny"))
    >>> from PIL import Image
    >>> answer = classifier(Image.new("RGB", (64, 64), "white"), candidate_labels=["bell", "cat"])
    >>> sorted(entry["label"] for entry in answer)
    ['bell', 'cat']
    """
    if task != TASK:
        raise ValueError(f"the task {task!r} is not soba's, which has {TASK!r} alone")
    if model is None:
        raise ValueError("no model: say one, as openai/clip-vit-base-patch16")
    if not isinstance(model, Encoder):
        name = os.fspath(model)
        model = load_encoder(
            name if name.startswith(HF) else f"{HF}{name}",
            device=_device(device),
            precision=_precision(dtype),
        )
    elif device is not None or dtype is not None:
        raise ValueError("device and dtype are those of the encoder: leave them out")
    return ZeroShotImageClassification(
        model, learn=learn, method=method, batch_size=batch_size, max_label_sets=max_label_sets
    )


class ZeroShotImageClassification:
    """Images and candidate labels in, scores out, as transformers gives them.

    Parameters
    ----------
    encoder
        Any of `soba.load_encoder`; `pipeline` opens one by name.
    learn
        Whether images are learned from, unless a call says otherwise.
    method
        A stream method, or "zero-shot".
    batch_size
        Images that are encoded at a time: by default 64 of a list, and 1 of a generator, whose
        next image may be long in coming.
    max_label_sets
        So many label sets are kept, with what was learned under them; the one that was asked for
        least recently is forgotten first.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        learn: bool = True,
        method: str = "soba+",
        batch_size: int | None = None,
        max_label_sets: int = 8,
    ) -> None:
        check_method(method)
        for name, value in (("batch_size", batch_size), ("max_label_sets", max_label_sets)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.encoder = encoder
        self.learn = learn
        self.method = method
        self.batch_size = batch_size
        self.max_label_sets = max_label_sets
        self._classifiers: OrderedDict[tuple[str, ...], Classifier] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(
        self,
        image: Any,
        candidate_labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        timeout: float | None = None,
        learn: bool | None = None,
        top_k: int | None = None,
    ) -> Any:
        """The labels with their scores, the best first: a list of {"score": ..., "label": ...}.

        Of a list of images a list of such lists; of a generator, one after the other.

        Parameters
        ----------
        image
            A path, an address, an image in base64, or a PIL image; or a list or generator of these.
        candidate_labels, hypothesis_template
            What to tell apart, and the sentence each label is put into.
        timeout
            Seconds to wait for an image from an address.
        learn
            False: only score, with what was learned by then; a pipeline that has learned nothing
            gives transformers' own answers.
        top_k
            Only so many of the labels.

        Notes
        -----
        CLIP's scores add up to 1. SigLIP's do not: each is the chance that its label fits. What is
        learned there moves the labels against each other and leaves alone how well they fit
        together.
        """
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {top_k}")
        classifier = self.classifier(candidate_labels, hypothesis_template)
        learns = self.learn if learn is None else learn
        is_stream = isinstance(image, Iterator)
        images = image if is_stream or isinstance(image, list) else [image]
        together = self.batch_size or (1 if is_stream else _TOGETHER)
        answers = self._answers(images, classifier, together, learns, timeout, top_k)
        if is_stream:
            return answers
        return list(answers) if isinstance(image, list) else next(answers)

    def classifier(
        self, candidate_labels: Sequence[str], hypothesis_template: str = TEMPLATE
    ) -> Classifier:
        """The classifier that learns under these labels, to look into, or to save."""
        if isinstance(candidate_labels, str):
            raise TypeError("candidate_labels must be a list of labels, not one string")
        labels = tuple(candidate_labels)
        if not labels:
            raise ValueError("no candidate_labels: there is nothing to tell apart")
        sentences = tuple(hypothesis_template.format(label) for label in labels)
        with self._lock:
            if sentences not in self._classifiers:
                text = self.encoder.encode_texts(sentences)
                adapter = create_adapter(self.method, text, logit_scale=self.encoder.logit_scale)
                # Its own templates would say labels otherwise than transformers does.
                classifier = Classifier(self.encoder, labels, method=adapter, templates=())
                self._classifiers[sentences] = classifier
            self._classifiers.move_to_end(sentences)
            while len(self._classifiers) > self.max_label_sets:
                self._classifiers.popitem(last=False)
            return self._classifiers[sentences]

    def _answers(
        self,
        images: Iterable[Any],
        classifier: Classifier,
        together: int,
        learn: bool,
        timeout: float | None,
        top_k: int | None,
    ) -> Iterator[Scores]:
        rest = iter(images)
        while pictures := [_open(image, timeout) for image in islice(rest, together)]:
            pixels = np.stack([self.encoder.preprocess(picture) for picture in pictures])
            features = self.encoder.encode_pixels(pixels)
            adapter = classifier.adapter
            logits = (
                learned(adapter, features, _ids(pictures)) if learn else adapter.logits(features)
            )
            for scores in self._scores(features, logits, classifier):
                best = np.argsort(-scores, kind="stable")[:top_k]
                yield [{"score": float(scores[k]), "label": classifier.names[k]} for k in best]

    def _scores(
        self, features: np.ndarray, logits: np.ndarray, classifier: Classifier
    ) -> np.ndarray:
        """(n, C) scores of adapted logits, between 0 and 1."""
        shares = logits - _log_sum(logits)
        scores: np.ndarray
        if self.encoder.sigmoid:
            text = classifier.adapter.text_features.astype(np.float64)
            plain = features @ (text * classifier.adapter.logit_scale).T
            # How well the labels fit together is SigLIP's; how they share it is what was learned.
            fits = shares + _log_sum(plain) + self.encoder.logit_bias
            scores = 1 / (1 + np.exp(-fits))
        else:
            scores = np.exp(shares)
        return scores


def _open(image: Any, timeout: float | None) -> Image.Image:
    """The image in RGB, turned as its camera was; what cannot be read raises, as there."""
    from PIL import Image, ImageOps

    from soba.encode.preprocess import to_rgb

    if isinstance(image, str | os.PathLike) and os.path.isfile(image):
        image = Image.open(image)
    elif isinstance(image, str):
        from transformers.image_utils import load_image

        image = load_image(image, timeout=timeout)
    elif not isinstance(image, Image.Image):
        raise TypeError(f"an image is a path, an address or a PIL image, not {image!r:.80}")
    return to_rgb(ImageOps.exif_transpose(image))


def _ids(pictures: list[Image.Image]) -> np.ndarray:
    """What the pictures are known by: the same one is learned from once."""
    from soba.encode.pictures import MemoryPicture

    listed = [MemoryPicture("", picture) for picture in pictures]
    for picture in listed:
        picture.open()
    return np.array([picture.content_id for picture in listed], np.int64)


def _log_sum(logits: np.ndarray) -> np.ndarray:
    """(n, C) -> (n, 1): the logarithm of the sum of exponentials."""
    top = logits.max(axis=1, keepdims=True)
    sums: np.ndarray = top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return sums


def _device(device: Any) -> str:
    """The name of a device that may be said by its number, as transformers does."""
    if device is None:
        return "auto"
    if isinstance(device, int):
        return "cpu" if device < 0 else f"cuda:{device}"
    return str(device)


def _precision(dtype: Any) -> str:
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in _PRECISIONS:
        raise ValueError(f"dtype must be one of {', '.join(_PRECISIONS)}, not {dtype}")
    return _PRECISIONS[name]
