"""Method names -> adapters for one feature set; what a method lacks is said before any work."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from soba._files import parse_json
from soba.adapt.base import Adapter, parameter_defaults
from soba.bench.record import digest
from soba.encode.encoder import Encoder
from soba.encode.prompts import classifier
from soba.feature_set import FeatureSet
from soba.registry import adapter_class, card
from soba.tune.classes import map_support, match_classes

SINGLE = "a photo of a {}."
_SAME_TEXT = 0.02  # features of one sentence may differ by this: half precision, other kernels


@dataclass
class MethodFactory:
    """What there is to build adapters from.

    Parameters
    ----------
    features
        The set to be scored.
    encoder
        The model that made the features, for methods that tune prompts through its text tower.
    source
        Labelled samples for few-shot methods, of the same classes or of more: those of the source
        set, ImageNet in the paper. By default the feature set's own support samples.
    trained
        Methods already trained on `source`: shared between feature sets, each is trained once.
    checkpoints
        How the names of files begin that keep a long training epoch by epoch, for a run that is
        killed.
    """

    features: FeatureSet
    encoder: Encoder | None = None
    source: FeatureSet | None = None
    trained: dict[str, Any] = field(default_factory=dict)
    checkpoints: Path | None = None

    def check(self, name: str, settings: dict[str, Any] | None = None) -> None:
        """Say what a method with these settings needs and what is not here; nothing is trained."""
        self.check_features(name, settings)
        self.check_encoder(name, settings)

    def check_features(self, name: str, settings: dict[str, Any] | None = None) -> None:
        """What can be said without an encoder, so that none is loaded in vain."""
        about, features, settings = card(name), self.features, settings or {}
        self._check_views(name, settings)
        if about.per_prompt and features.prompt_features is None:
            raise ValueError(
                f"{self._where}: {name} needs the text features of each prompt, prompt_features of "
                "shape (P, C, d), and this file has none"
            )
        if about.few_shot:
            self._check_samples(name)
        if about.tunes_prompts:
            self._check_prompt(name, settings)
        else:
            self._untrained(name, settings, features)

    def check_encoder(self, name: str, settings: dict[str, Any] | None = None) -> None:
        """The features must be the encoder's, if it is used; their text features tell."""
        features = self.features
        if not card(name).tunes_prompts:
            return
        if self.encoder is None:
            raise ValueError(
                f"{self._where}: {name} tunes prompts through a text tower: say with --model and "
                "--pretrained which model made the features"
            )
        same = self.encoder.width == features.dim
        if same and features.prompts is not None:
            assert features.class_names is not None
            some = features.class_names[:4]
            text = classifier(
                self.encoder.encode_texts, some, features.prompts, allow_duplicates=True
            )
            same = np.abs(text - features.text_features[: len(text)]).max() <= _SAME_TEXT
        if not same:
            raise ValueError(
                f"{self._where}: its text features are not those that {self.encoder.name} makes of "
                f"the same prompts, so {name} cannot tune them"
            )
        settings = settings or {}
        self._untrained(name, settings, features)
        learned = not self._learns_all(name) or self._key(name, settings) in self.trained
        if self.source is not None and not learned:
            self._untrained(name, settings, self.source)

    def make(self, name: str, settings: dict[str, Any]) -> Adapter:
        """A new adapter, fitted where the method is fitted."""
        if self._learns_all(name):
            return self._transferred(name, settings)
        adapter: Any = self._untrained(name, settings, self.features)
        if card(name).few_shot:
            adapter.fit(*self._support(), val=self.features.val)
        assert isinstance(adapter, Adapter)
        return adapter

    def images(self, name: str) -> np.ndarray:
        """The features that a method is given: generated views for those that need them alone."""
        every = self.features.image_features
        return every if card(name).takes_generated_views else _drawn_from_images(self.features)

    @property
    def template(self) -> str:
        """The prompt that is tuned: the set's own if it has one only, else CLIP's plain one."""
        prompts = self.features.prompts
        return prompts[0] if prompts is not None and len(prompts) == 1 else SINGLE

    @property
    def _where(self) -> str:
        return str(self.features.source or "the feature set")

    def _untrained(self, name: str, settings: dict[str, Any], among: FeatureSet) -> Adapter:
        """A new adapter that tells the classes of a set apart, not fitted."""
        cls: Any = adapter_class(name)
        adapter: Adapter
        if card(name).tunes_prompts:
            if card(name).takes_generated_views:
                settings = {"generated": generated_views(among)} | settings
            adapter = cls(self.encoder, among.class_names, self.template, **settings)
        else:
            text = among.prompt_features if cls.card.per_prompt else among.text_features
            adapter = cls(text, logit_scale=among.logit_scale, **settings)
        return adapter

    def _learns_all(self, name: str) -> bool:
        """Whether a method is trained once, on all classes of the source, for all sets."""
        if card(name).tunes_prompts:
            return card(name).few_shot
        # What was learned of all classes can be cut down to those of a set.
        return self.source is not None and hasattr(adapter_class(name), "restricted")

    def _key(self, name: str, settings: dict[str, Any]) -> str:
        """Of what was trained: prompts begin as the template's words, a cache has none."""
        template = self.template if card(name).tunes_prompts else None
        return json.dumps([name, template, settings], sort_keys=True)

    def _transferred(self, name: str, settings: dict[str, Any]) -> Adapter:
        """What was learned on all classes of the source, for the classes of this set."""
        key, features, source = self._key(name, settings), self.features, self.source
        if key not in self.trained:
            among = features if source is None else source
            learner: Any = self._untrained(name, settings, among)
            self.trained[key] = learner.fit(*self._samples(), **self._kept(learner, key))
        trained, transferred = self.trained[key], None
        if card(name).tunes_prompts:
            transferred = trained.with_classes(features.class_names)
        else:
            assert source is not None and source.class_names and features.class_names
            columns = match_classes(features.class_names, source.class_names)
            transferred = trained.restricted(columns).with_text(features.text_features)
            if features.val is not None:
                transferred.search(*features.val)
        assert isinstance(transferred, Adapter)
        return transferred

    def _kept(self, learner: Any, key: str) -> dict[str, Path]:
        """Where a learner that trains for long, and can go on, keeps what it has learned."""
        goes_on = "checkpoint" in inspect.signature(learner.fit).parameters
        if self.checkpoints is None or not goes_on:
            return {}
        code = digest({"key": key, "parameters": learner.params})  # defaults change with versions
        name = f"{self.checkpoints.name}-{code}.safetensors"
        return {"checkpoint": self.checkpoints.with_name(name)}

    def _samples(self) -> tuple[np.ndarray, np.ndarray]:
        """All labelled samples, of the source's classes if there is a source."""
        if self.source is None:
            assert self.features.support is not None
            return self.features.support
        assert self.source.labels is not None
        return _drawn_from_images(self.source), self.source.labels

    def _support(self) -> tuple[np.ndarray, np.ndarray]:
        """Labelled samples of this set's classes."""
        samples, labels = self._samples()
        if self.source is None:
            return samples, labels
        known, wanted = self.source.class_names, self.features.class_names
        assert known is not None and wanted is not None
        rows, labels = map_support(labels, known, wanted)
        return samples[rows], labels

    # Checks -----------------------------------------------------------------------------------

    def _check_views(self, name: str, settings: dict[str, Any]) -> None:
        generated = generated_views(self.features)
        if generated >= self.features.views:
            raise ValueError(
                f"{self._where}: its view policy speaks of {generated} generated views, but there "
                f"are {self.features.views} views in all"
            )
        views = self.features.views
        if card(name).takes_generated_views:
            settings = {"generated": generated} | settings
            if not settings["generated"] and not settings.get("fallback"):
                raise ValueError(
                    f"{self._where}: {name} needs views from a diffusion model, and this file has "
                    "none: add them with `soba embed --generated`, or run without them with "
                    "--fallback"
                )
        else:
            views -= generated
        least = min_views(name, settings)
        if views < least:
            held = "one view each" if views == 1 else f"{views} views each"
            raise ValueError(
                f"{self._where}: {name} needs views: (n, V, d) features with V of {least} at "
                f"least, this file has {held}"
            )

    def _check_samples(self, name: str) -> None:
        """Labelled samples of every class that is learned."""
        features, source = self.features, self.source
        if source is not None:
            labels, names = self._check_source(name, source)
            place = str(source.source or "the source set")
        elif features.support is not None:
            labels, names, place = features.support[1], features.class_names, self._where
        else:
            raise ValueError(
                f"{self._where}: {name} needs labelled training samples, support_features and "
                "support_labels in the file or --support FILE"
            )
        classes = features.n_classes if names is None else len(names)
        missing = np.flatnonzero(np.bincount(labels, minlength=classes) == 0).tolist()
        if missing:
            listed = ", ".join(str(k if names is None else names[k]) for k in missing[:10])
            raise ValueError(
                f"{place}: {name} needs labelled samples of every class, and there are none of "
                f"{len(missing)}: {listed}{', ...' if len(missing) > 10 else ''}"
            )
        searches = not card(name).tunes_prompts
        if searches and features.val is not None and len(features.val[1]) == 0:
            raise ValueError(f"{self._where}: val holds no samples")

    def _check_source(
        self, name: str, source: FeatureSet
    ) -> tuple[np.ndarray, tuple[str, ...] | None]:
        """The labels to learn and the names of their classes, which carry them over."""
        given = str(source.source or "the source set")
        if source.labels is None:
            raise ValueError(f"{given}: has no labels, so {name} cannot learn from it")
        self.features.check_encoder(source)
        known, wanted = source.class_names, self.features.class_names
        if known is None or wanted is None:
            raise ValueError(
                f"{given if known is None else self._where}: has no class names, by which labelled "
                "samples of another set are carried over"
            )
        if card(name).tunes_prompts:  # any classes will do
            return source.labels, known
        try:
            _, mapped = map_support(source.labels, known, wanted)
        except ValueError as error:
            raise ValueError(f"{given}: {name} cannot learn from it: {error}") from error
        return (source.labels, known) if self._learns_all(name) else (mapped, wanted)

    def _check_prompt(self, name: str, settings: dict[str, Any]) -> None:
        """What is tuned are the words before the class name, or vectors in their place."""
        if self.features.class_names is None:
            raise ValueError(f"{self._where}: {name} needs class names, and this file has none")
        if settings.get("context") is None and not self.template.partition("{}")[0].strip():
            raise ValueError(
                f"{self._where}: its prompt {self.template!r} has no words before the {{}}, and "
                f"these are what {name} tunes"
            )


def generated_views(features: FeatureSet) -> int:
    """How many of the views, the last ones, are a diffusion model's, as the view policy says."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):  # a stranger's own words
        return int(parse_json(features.view_policy or "{}").get("generated", 0))
    return 0


def min_views(method: str, settings: dict[str, Any] | None = None) -> int:
    """How many views a method needs.

    TPT and its kin learn from a share of the views, and that must be one view at least.

    Examples
    --------
    >>> min_views("zero"), min_views("ncm")
    (2, 1)
    """
    cls = adapter_class(method)
    parameters = parameter_defaults(cls) | (settings or {})
    beside_generated = 2  # the image and a crop of it
    least = max(cls.card.min_views, int(parameters.get("generated", -1)) + beside_generated)
    if cls.card.min_views == 1 or "selection" not in parameters:
        return least
    share: float = parameters["selection"]
    similar: float = parameters.get("similar", 1.0)  # the share that DiffTPT's first filter keeps
    if not 0 < share <= 1 or not 0 < similar <= 1:
        return least  # not to be counted: the constructor says why
    near = int(1 + (1 / share - 1) / similar)  # but for the rounding
    counts = itertools.count(max(least, near - 1))
    return next(n for n in counts if int(share * (1 + int(similar * (n - 1)))) >= 1)


def _drawn_from_images(features: FeatureSet) -> np.ndarray:
    """The features without those of generated views."""
    every, generated = features.image_features, generated_views(features)
    if not generated:
        return every
    kept = every[:, :-generated]
    return kept[:, 0] if kept.shape[1] == 1 else kept
