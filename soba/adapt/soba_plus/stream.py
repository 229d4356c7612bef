"""SOBA+, the default: one Gaussian model of the classes beside CLIP, for streams and whole sets.

Ours. SOBA's fixed weight does harm where a class has few images, or none, or where CLIP is nearly
right. SOBA+ weighs what the images say by the evidence for it and by CLIP's own doubt
(`answer.py`), and what is not known falls back to CLIP. It keeps a uniform sample of the stream and
nothing else; all that answers is a function of that sample (`fit.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt._arrays import Array, Batch, ClipScores, read_batch, softmax, to_host
from soba.adapt._schedule import Refresh
from soba.adapt.base import whole
from soba.adapt.card import Card
from soba.adapt.queue import EntropyQueue
from soba.adapt.sample import Sampled, UniformSample
from soba.adapt.scheduled import ScheduledAdapter
from soba.adapt.soba_plus.answer import WEIGHT, agreement, overconfidence, pool
from soba.adapt.soba_plus.copies import copy_weights
from soba.adapt.soba_plus.fit import FITTED, ROUNDS, Candidates, fit
from soba.adapt.soba_plus.prior import FIRST, GROWTH
from soba.adapt.soba_plus.transduce import transduce

GAPS = 24  # refreshes within a horizon, at least
KEPT = 16  # images kept for each class of the list
LEAST_KEPT, MOST_KEPT = 512, 65_536
JUDGED = 512  # images of the sample by which accuracies are estimated


class SOBAPlus(ScheduledAdapter):
    """CLIP, and beside it Gaussians of the images seen: the default, built to do no harm.

    Parameters
    ----------
    refresh, total
        When the model is fitted anew. By default each time a quarter more has been seen.
    max_gap
        Refresh at least every so many images, for streams that go on for long.
    sample_size, sample_key
        How many images are kept, drawn by chance from all that were seen; by default 16 for each
        class, 512 at least and 65,536 at most (but 2 for each class). The key is that of the hash
        which draws them: where strangers choose the ids, give one that they do not know.
    horizon
        Forget images older than this many, so that an old domain does not rule forever; None:
        never. The sample then has two generations of half a horizon each, and drops the older
        one when the younger is complete: between half a horizon and a whole one counts.

    Notes
    -----
    Until the first refresh, and while no class has scatter, the answer is CLIP's.

    O(C d) an image; a refresh takes O(d^3 + C d^2) and O(d) for each of 16 candidate classes of
    4,096 images at most; sample_size * d floats, twice that with a horizon.

    Examples
    --------
    >>> from soba.testing import example_stream
    >>> stream, labels, text = example_stream(n=400)
    >>> adapter = SOBAPlus(text, logit_scale=20.0)
    >>> zero_shot = (stream @ text.T).argmax(axis=1)
    >>> adapted = adapter.adapt(stream).argmax(axis=1)
    >>> int((zero_shot == labels).sum()), int((adapted == labels).sum())
    (375, 398)
    """

    card: ClassVar[Card] = Card("soba+", title="SOBA+", colour="#0a44cc", provenance="ours")

    _young: int

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        refresh: Refresh = "growth",
        total: int | None = None,
        max_gap: int | None = None,
        sample_size: int | None = None,
        sample_key: int = 0,
        horizon: int | None = None,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.refresh_rule, self.total, self.max_gap = refresh, total, max_gap
        self.sample_size = None if sample_size is None else whole(sample_size, "sample_size")
        self.sample_key = whole(sample_key, "sample_key", least=0)
        self.horizon = None if horizon is None else whole(horizon, "horizon", least=2)
        self._reset()

    @property
    def sample(self) -> Sampled:
        """The images that are kept, by the hash of their ids."""
        return self._sampled()

    def _sampled(self, first: int | None = None) -> Sampled:
        kept = self._samples["sample"]
        if self.horizon is not None:
            kept = self._samples["older_sample"].copy()
            kept.merge(self._samples["sample"].held())
        return kept.items(first)

    def explain(self, feature: Array) -> Explanation:
        """Where the answer for one image (d,) comes from, class by class; changes nothing."""
        batch = read_batch(feature, self.dim)
        if len(batch) != 1:
            raise ValueError(f"explain takes one sample, not {len(batch)}")
        view = self._view()
        clip, known = view._clip(batch), view.statistics_
        logits, doubt = to_host(clip.logits)[0].astype(np.float64), float(clip.entropies[0])
        nothing = np.zeros(self.n_classes)
        if known is None:
            return Explanation(logits, nothing, nothing, doubt, 1.0, nothing, nothing, 0.0, None)
        scores = to_host(clip.features)[0] @ known["weights"].T + known["bias"]
        overconfident, average = known["pool"].tolist()
        weight = WEIGHT * overconfident * doubt
        shares = np.array([1.0, weight]) / (1.0 + weight * average)
        return Explanation(
            clip=shares[0] * logits,
            images=shares[1] * known["evidence"] * np.log(softmax(np, scores)),
            prior=shares[1] * known["prior"],
            doubt=doubt,
            overconfidence=overconfident,
            evidence=known["evidence"],
            mass=known["mass"],
            text_worth=float(known["text_worth"][0]),
            expected_accuracy=view.expected_accuracy(),
        )

    def examples(self, per_class: int = 8) -> list[dict[int, float]]:
        """Of each class the images of the sample that it explains best: id -> probability.

        They are answered with it, and the likeliest comes first. Of a large sample, its first 4,096
        images by hash are looked at.
        """
        with self._lock:
            view, kept = self.view(), self._sampled(FITTED)
        found: list[dict[int, float]] = [{} for _ in range(self.n_classes)]
        step = max(64, (1 << 20) // self.n_classes)
        for at in range(0, len(kept.ids), step):
            chances = view.probabilities(kept.features[at : at + step])
            answers = chances.argmax(axis=1).tolist(), chances.max(axis=1).tolist()
            for id_, label, chance in zip(kept.ids[at : at + step].tolist(), *answers, strict=True):
                found[label][id_] = chance
        best = [sorted(each.items(), key=lambda item: (-item[1], item[0])) for each in found]
        return [dict(items[:per_class]) for items in best]

    def expected_accuracy(self) -> ExpectedAccuracy | None:
        """How often CLIP alone, and the adapted classifier, are expected to be right; no labels.

        The mean adapted probability, over a part of the sample, of what each of them answers. None
        before the first refresh. docs/soba_plus.md has how far off this is on real data.
        """
        known = self._view().statistics_
        return None if known is None else ExpectedAccuracy(*map(float, known["expected"]))

    def transduce(
        self, features: Array, *, rounds: int = ROUNDS, out: Array | None = None
    ) -> Array:
        """Logits (n, C) of a whole set at once, where the order means nothing; changes nothing.

        What was learned from streams does not enter. `rounds` are those of EM; 0 gives CLIP's
        logits. Features may be memory-mapped: they are read in blocks, once a fit and once to
        score, and only the logits are as long as they; `out`, an array (n, C) that takes these, may
        be memory-mapped as well. O(n C d) a round, as much as three of zero-shot.

        Examples
        --------
        >>> from soba.testing import example_stream
        >>> images, labels, text = example_stream(n=400)
        >>> logits = SOBAPlus(text, logit_scale=20.0).transduce(images)
        >>> zero_shot = (images @ text.T).argmax(axis=1)
        >>> int((zero_shot == labels).sum()), int((logits.argmax(axis=1) == labels).sum())
        (375, 399)
        """
        return transduce(self._scaled_text, features, rounds, out)

    def _check_merges(self) -> None:
        # A generation is a number of arrivals, and shards have no common time: two of them cannot
        # say which of their images were the last.
        if self.horizon is not None:
            raise ValueError(
                f"cannot merge adapters with a horizon ({self.horizon}): shards have no common "
                "time, so which of their samples to forget is not known; merge without a horizon"
            )

    def _reset(self) -> None:
        super()._reset()
        self._young = 0  # images learned from in the younger generation

    def _learn(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        while len(rows):
            some = rows if self.horizon is None else rows[: self.horizon // 2 - self._young]
            self._draw("sample", clip, ids, some)
            self._count(ids[some])
            rows = rows[len(some) :]
            if self.horizon is not None:
                self._young += len(some)
                if self._young == self.horizon // 2:  # complete: the older one is forgotten
                    self._samples = self._empty_samples() | {
                        "older_sample": self._samples["sample"]
                    }
                    self._young = 0

    def _take_over(self, other: Self) -> None:
        super()._take_over(other)
        self._young = other._young

    def _meta(self) -> dict[str, Any]:
        return super()._meta() | {"young": self._young}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        super()._restore(arrays, meta)
        self._young = whole(meta["young"], "young", least=0)
        if self._young >= (1 if self.horizon is None else self.horizon // 2):
            raise ValueError(f"young is {self._young} where the horizon is {self.horizon}")

    @property
    def _growth(self) -> dict[str, int | None]:
        # Early, since little evidence does little; often, since in a stream sorted by class the
        # model knows nothing of the class that comes.
        growth: dict[str, int | None] = {
            "first": max(FIRST, self.n_classes // 2),
            "percent": GROWTH,
        }
        if self.horizon is not None:  # forgetting shows at a refresh
            gap = max(1, self.horizon // GAPS)
            growth["max_gap"] = gap if self.max_gap is None else min(gap, self.max_gap)
        return growth

    def _empty_queues(self) -> dict[str, EntropyQueue]:
        return {}

    def _empty_samples(self) -> dict[str, UniformSample]:
        usual = max(LEAST_KEPT, min(KEPT * self.n_classes, MOST_KEPT), 2 * self.n_classes)
        generations = ("sample",) if self.horizon is None else ("sample", "older_sample")
        return {
            name: UniformSample(self.dim, self.sample_size or usual, key=self.sample_key)
            for name in generations
        }

    def _statistics(self) -> dict[str, np.ndarray] | None:
        sample = self._sampled(FITTED)
        if len(sample.ids) == 0:
            return None
        said = Candidates.of(sample.features, self._scaled_text)
        weights = copy_weights(sample.features, self.sample_key)
        fitted = fit(sample, self.text_features, said, weights)
        if fitted is None:
            return None
        model, prior = fitted
        statistics = {
            "weights": model.weights,
            "bias": model.bias,
            "evidence": model.evidence,
            "prior": prior,
            "mass": model.mass,
            "text_worth": np.array([model.text_worth]),
            "pool": np.array([1.0, model.average_evidence]),
        }
        self._judge(sample.first(JUDGED).features, weights[:JUDGED], statistics)
        return statistics

    def _clip_to_score(self, batch: Batch) -> ClipScores:
        return self._clip(batch)

    def _add_block(self, batch: Batch, clip: ClipScores, rows: slice) -> None:
        features = clip.features[rows, :]
        scores = features @ self._statistic("weights", batch).T
        scores += self._statistic("bias", batch)
        evidence, prior = (self._statistic(name, batch) for name in ("evidence", "prior"))
        doubt = batch.xp.asarray(clip.entropies[rows], dtype=scores.dtype, device=batch.device)
        assert self.statistics_ is not None
        summary = self.statistics_["pool"]
        pool(batch.xp, clip.logits[rows, :], scores, doubt, evidence, prior, summary)

    def _judge(
        self, rows: np.ndarray, counts: np.ndarray, statistics: dict[str, np.ndarray]
    ) -> None:
        """Put in how overconfident CLIP is on some rows, and which accuracies are expected there.

        The mean adapted probability of what CLIP answers, and of what is answered now.
        """
        clip = self._clip(Batch(np, rows, False))
        scores = rows @ statistics["weights"].T + statistics["bias"]
        evidence, prior, summary = (statistics[name] for name in ("evidence", "prior", "pool"))
        told, clip_shares = softmax(np, scores + prior), softmax(np, clip.logits)
        summary[0] = overconfidence(*agreement(np, clip_shares, told, counts), summary[1])
        pool(np, clip.logits, scores, clip.entropies, evidence, prior, summary)
        adapted = softmax(np, clip.logits)
        zero_shot = adapted[np.arange(len(rows)), clip.labels].mean()
        statistics["expected"] = np.array([zero_shot, adapted.max(axis=1).mean()])


@dataclass(frozen=True)
class ExpectedAccuracy:
    """Shares of images that are expected to be answered right, estimated without labels."""

    zero_shot: float
    adapted: float


@dataclass(frozen=True)
class Explanation:
    """Where an answer comes from: logits = clip + images + prior, arrays over the classes."""

    clip: np.ndarray  # CLIP's logits
    images: np.ndarray  # what the Gaussians add, made of images and of the text
    prior: np.ndarray  # what is added for classes that come more often than others
    doubt: float  # H, CLIP's entropy in nats: all that is added is in proportion to it
    overconfidence: float  # a, from 1: so much more is added
    evidence: np.ndarray  # e_k, from 0 to 1
    mass: np.ndarray  # n_k, images behind each class, shared out by their probability
    text_worth: float  # kappa, how many images the text of a class is worth
    expected_accuracy: ExpectedAccuracy | None  # of all answers; None: no refresh yet

    @property
    def logits(self) -> np.ndarray:
        """What the adapter's `logits` gives."""
        summed: np.ndarray = self.clip + self.images + self.prior
        return summed

    @property
    def probabilities(self) -> np.ndarray:
        """What the adapter's `probabilities` gives."""
        shares: np.ndarray = softmax(np, self.logits)
        return shares
