"""Method names -> adapters for one feature set; what a method lacks is said before any work."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from soba.adapt._few_shot import FewShotAdapter
from soba.adapt.base import Adapter
from soba.encode.encoder import Encoder
from soba.encode.prompts import classifier
from soba.encode.store import FeatureSet
from soba.registry import adapter_class, list_tuners
from soba.tune.classes import map_support

SINGLE = "a photo of a {}."
_SAME_TEXT = 0.02  # features of one sentence may differ by this: half precision, other kernels


@dataclass
class Workshop:
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
    """

    features: FeatureSet
    encoder: Encoder | None = None
    source: FeatureSet | None = None
    trained: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str) -> None:
        """Say what a method needs and what is not here."""
        cls, features = adapter_class(name), self.features
        where = features.source or "the feature set"
        if features.views < cls.least_views:
            held = "one view each" if features.views == 1 else f"{features.views} views each"
            raise ValueError(
                f"{where}: {name} needs views: (n, V, d) features with V of {cls.least_views} at "
                f"least, this file has {held}"
            )
        if cls.per_prompt and features.prompt_features is None:
            raise ValueError(
                f"{where}: {name} needs the text features of each prompt, prompt_features of shape "
                "(P, C, d), and this file has none"
            )
        if issubclass(cls, FewShotAdapter) and self.source is None and features.support is None:
            raise ValueError(
                f"{where}: {name} needs labelled training samples, support_features and "
                "support_labels in the file or --support FILE"
            )
        if issubclass(cls, FewShotAdapter) and self.source is not None:
            self._check_source(name, str(where))
        if name in list_tuners():
            self._check_encoder(name, str(where))

    def make(self, name: str, settings: dict[str, Any]) -> Adapter:
        """A new adapter, fitted where the method is fitted."""
        if name in list_tuners():
            return self._tuner(name, settings)
        cls, features = adapter_class(name), self.features
        text = features.prompt_features if cls.per_prompt else features.text_features
        made = cls(text, scale=features.logit_scale, **settings)
        if isinstance(made, FewShotAdapter):
            made.fit(*self._support(), val=features.val)
        return made

    @property
    def template(self) -> str:
        """The prompt that is tuned: the set's own if it has one only, else CLIP's plain one."""
        prompts = self.features.prompts
        return prompts[0] if prompts is not None and len(prompts) == 1 else SINGLE

    @property
    def generated(self) -> int:
        """How many of the views are a diffusion model's, as the set's view policy says."""
        policy = self.features.view_policy
        return int(json.loads(policy).get("generated", 0)) if policy else 0

    def _tuner(self, name: str, settings: dict[str, Any]) -> Adapter:
        cls: Any = adapter_class(name)
        names = self.features.class_names
        if not issubclass(cls, FewShotAdapter):
            if name == "difftpt":
                settings = {"generated": self.generated} | settings
            made: Adapter = cls(self.encoder, names, self.template, **settings)
            return made
        key = json.dumps([name, self.template, settings], sort_keys=True)
        if key not in self.trained:
            if self.source is not None:
                known, samples = self.source.class_names, self.source.image_features
                labels = self.source.labels
            else:
                known, (samples, labels) = names, self._support()
            learner = cls(self.encoder, known, self.template, **settings)
            self.trained[key] = learner.fit(samples, labels)
        transferred: Adapter = self.trained[key].with_classes(names)
        return transferred

    def _support(self) -> tuple[np.ndarray, np.ndarray]:
        """Labelled samples of this set's classes."""
        if self.source is None:
            assert self.features.support is not None
            return self.features.support
        known, wanted = self.source.class_names, self.features.class_names
        assert known is not None and wanted is not None and self.source.labels is not None
        rows, labels = map_support(self.source.labels, known, wanted)
        return self.source.image_features[rows], labels

    def _check_source(self, name: str, where: str) -> None:
        """Samples of other classes are carried over by name, so there must be names."""
        assert self.source is not None
        given = self.source.source or "the source set"
        if self.source.labels is None:
            raise ValueError(f"{given}: has no labels, so {name} cannot learn from it")
        for place, names in ((given, self.source.class_names), (where, self.features.class_names)):
            if names is None:
                raise ValueError(
                    f"{place}: has no class names, by which labelled samples of another set are "
                    "carried over"
                )

    def _check_encoder(self, name: str, where: str) -> None:
        """The features must be this encoder's; the text features tell."""
        features = self.features
        if self.encoder is None:
            raise ValueError(
                f"{where}: {name} tunes prompts through a text tower: say with --model and "
                "--pretrained which model made the features"
            )
        if features.class_names is None:
            raise ValueError(f"{where}: {name} needs class names, and this file has none")
        if features.prompts is None or self.encoder.width != features.width:
            made = None
        else:
            some = features.class_names[:4]
            made = classifier(
                self.encoder.encode_texts, some, features.prompts, allow_duplicates=True
            )
        if self.encoder.width != features.width or (
            made is not None
            and np.abs(made - features.text_features[: len(made)]).max() > _SAME_TEXT
        ):
            raise ValueError(
                f"{where}: its text features are not those that {self.encoder.name} makes of the "
                f"same prompts, so {name} cannot tune them"
            )
