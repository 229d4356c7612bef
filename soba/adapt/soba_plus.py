"""SOBA+: the rotated prototypes of SOBA with the evidence behind them weighed; the default.

Ours, on the paper's queue and rotation, with a uniform sample of the stream beside it. SOBA's fixed
weight does harm where a class has few samples, or none, or where CLIP is nearly right; here the
weight is estimated, and what is not known falls back to CLIP. Class k is a Gaussian N(mu_k, S) in
image space with a prior from its text (`_mixture.py`), fitted by EM over queue and sample under a
class prior of its own (`_evidence.py`). With G_k(f) its score:

    logits_k = (z_k + s(f) e_k (G_k(f) - t(f))) / temperature

- e_k, evidence: the root of the share of a full queue that class k has. A class nothing is known
  of keeps CLIP's logit, and a known one is measured against t(f). Known are the classes with a fair
  share of the best evidence.
- t(f) is max G(f) over the known classes: the one that the Gaussians hold likeliest stands beside
  the unknown ones, which are neither preferred nor pushed aside. For an image that fits none as
  well as nearly all of the sample do, it is more, and all known classes lose.
- s(f) = weight * familiar(f) * spread^typical(f)
- weight goes with CLIP's doubt on the uniform sample: where CLIP is nearly sure there is little to
  gain and much to lose, unless CLIP and the Gaussians agree more often than CLIP is sure.
- spread compares whom the Gaussians and CLIP answer with on the uniform sample: a shifted CLIP
  sends images to a few hub classes, and where the Gaussians spread them again they are usually
  right. It is the ratio of the two perplexities, among known classes, to a power; and it counts
  where CLIP is surer than the Gaussians bear out, since a shifted CLIP does not know that it is.
- familiar and typical compare max G(f) with the uniform sample's: an image unlike all that was seen
  belongs to a class that has not come yet, and the Gaussians know nothing of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt._arrays import Array, Batch, ClipScores, read_batch, softmax, to_host
from soba.adapt._evidence import SURE, Evidence, candidate_type
from soba.adapt._mixture import LEAST_MASS
from soba.adapt._schedule import Pace, Refresh
from soba.adapt._surprise import FEW_CLASSES, Surprised
from soba.adapt._weighing import reference, strength, weighed, weighed_by
from soba.adapt.base import whole
from soba.adapt.card import Card
from soba.adapt.queue import EntropyQueue
from soba.adapt.queue_adapter import PrototypeAdapter
from soba.adapt.sample import UniformSample
from soba.adapt.stream import TWIN_TOLERANCE
from soba.adapt.transduction import transduce

GAPS = 24  # refreshes within a horizon, at least
GROWTH, GROWTH_OF_MANY = 25, 60  # percent from one refresh to the next


class SOBAPlus(PrototypeAdapter):
    """SOBA with its evidence weighed: the default, built to do no harm.

    Parameters
    ----------
    capacity
        Samples kept per pseudo-class; None keeps all.
    refresh, total
        When the statistics refresh. By default at a fixed rate of growth, from early on, and ahead
        of that where a class comes more often than chance would have it (`_surprise.py`).
    max_gap
        Refresh at least every so many samples, for streams that go on for long.
    sample_size, sample_key
        How many samples are kept by chance, whatever CLIP says of them; and the key of the hash
        that decides which. Where strangers choose the ids, give a key that they do not know.
    horizon
        Forget samples older than this many, so that an old domain does not rule forever; None:
        never. The queue then keeps two generations of half a horizon each, and drops the older
        one when the younger is complete: between half a horizon and a whole one counts.

    Notes
    -----
    Until the first refresh, and while fewer than two classes have samples or no class has
    scatter, the answer is CLIP's.

    O(C d) a sample; O(n d^2 + d^3 + C d^2) a refresh over n queued samples, and O(C d) for each
    that was drawn; (C * capacity + sample_size) * d floats, twice that with a horizon.

    Examples
    --------
    >>> from soba.testing import example_stream
    >>> stream, labels, text = example_stream(n=400)
    >>> adapter = SOBAPlus(text, logit_scale=20.0)
    >>> zero_shot = (stream @ text.T).argmax(axis=1)
    >>> adapted = adapter.adapt(stream).argmax(axis=1)
    >>> int((zero_shot == labels).sum()), int((adapted == labels).sum())
    (375, 396)
    """

    _young: int
    _known: np.ndarray  # (C,) sizes of the queues at the last refresh
    _refreshed: int  # samples learned until then; 0: there was none
    card: ClassVar[Card] = Card("soba+", title="SOBA+", colour="#0a44cc", provenance="ours")

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        capacity: int | None = 16,
        refresh: Refresh = "growth",
        total: int | None = None,
        max_gap: int | None = None,
        sample_size: int = 512,
        sample_key: int = 0,
        horizon: int | None = None,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.capacity = capacity
        self.refresh_rule, self.total, self.max_gap = refresh, total, max_gap
        self.sample_size = whole(sample_size, "sample_size", least=1)
        self.sample_key = whole(sample_key, "sample_key", least=0)
        self.horizon = None if horizon is None else whole(horizon, "horizon", least=2)
        self._reset()

    def explain(self, feature: Array) -> Explanation:
        """Where the answer for one sample (d,) comes from, class by class; changes nothing."""
        batch = read_batch(feature, self.dim)
        if len(batch) != 1:
            raise ValueError(f"explain takes one sample, not {len(batch)}")
        features, logits = (np.asarray(to_host(a), np.float64) for a in self._clip_logits(batch))
        statistics, nothing = self.statistics_, np.zeros(self.n_classes)
        if statistics is None:
            probabilities = softmax(np, logits)[0]
            return Explanation(
                logits[0], nothing, nothing, nothing, nothing, 0.0, 0.0, 1.0, probabilities
            )
        slope, kappa = statistics["model"]
        x = features[0] - statistics["centre"]
        scores = features[0] @ statistics["prototypes"].T + statistics["bias"]
        best = (scores + statistics["unknown"]).max()
        weight = float(strength(np, best, statistics["weighing"]))
        evidence = weight * statistics["evidence"]
        known = statistics["mass"] > LEAST_MASS
        text = self.text_features - self.text_features[known].mean(axis=0)
        worth = slope * kappa / (statistics["mass"] + kappa)
        from_text = evidence * worth * (text @ (statistics["inverse"] @ x))
        from_samples = evidence * (statistics["prototypes"] @ x) - from_text
        against = evidence * (scores - reference(np, best, statistics["weighing"]))
        correction = against - from_text - from_samples
        temperature = float(statistics["temperature"][0])
        total = (logits[0] + against) / temperature
        return Explanation(
            clip=logits[0],
            text=from_text,
            queue=from_samples,
            correction=correction,
            samples=statistics["mass"],
            text_worth=float(kappa),
            weight=weight,
            temperature=temperature,
            probabilities=softmax(np, total),
            expected_accuracy=ExpectedAccuracy.of(statistics),
        )

    def expected_accuracy(self) -> ExpectedAccuracy | None:
        """How often CLIP alone, and the adapted classifier, are expected to be right; no labels.

        The mean adapted probability, over the uniform sample, of what each of them answers. None
        before the first refresh. docs/soba_plus.md has how far off this is on real data.
        """
        statistics = self._view().statistics_
        return None if statistics is None else ExpectedAccuracy.of(statistics)

    def transduce(self, features: Array, *, rounds: int = 20, out: Array | None = None) -> Array:
        """Logits (n, C) of a whole set at once, where the order means nothing; changes nothing.

        `rounds` of EM at most, fewer where nothing moves any more; 0 gives CLIP's logits. What was
        learned from streams does not enter. Features may be memory-mapped: they are read in blocks,
        once a round and once to score, and only the logits are as long as they; `out`, an array
        (n, C) that takes these, may be memory-mapped as well. `soba.adapt.transduction` has
        the formulas. O(n C d) a round, as much as three of zero-shot.

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
        # say which of their samples were the last.
        if self.horizon is not None:
            raise ValueError(
                f"cannot merge adapters with a horizon ({self.horizon}): shards have no common "
                "time, so which of their samples to forget is not known; merge without a horizon"
            )

    def _reset(self) -> None:
        super()._reset()
        self._young = 0  # samples learned from in the younger generation
        self._known, self._refreshed = self.queue.sizes.copy(), 0

    def _learn(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        if self.horizon is None:
            self._learn_some(clip, ids, rows)
            return
        while len(rows):
            room = self.horizon // 2 - self._young
            self._learn_some(clip, ids, rows[:room])
            self._young += len(rows[:room])
            if self._young == self.horizon // 2:  # complete: the older generation is forgotten
                self._queues = {"queue": self._empty_queue(self.capacity), "older": self.queue}
                self._samples = {
                    "sample": self._empty_sample(),
                    "older_sample": self._samples["sample"],
                }
                self._young = 0
            rows = rows[room:]

    def _learn_some(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        super()._learn(clip, ids, rows)
        if len(rows):
            self._draw("sample", clip, ids, rows)

    def _take_over(self, other: Self) -> None:
        super()._take_over(other)
        self._young = other._young
        if other._refreshed == 0:
            self._refreshed = 0

    def _meta(self) -> dict[str, Any]:
        return super()._meta() | {"young": self._young, "refreshed": self._refreshed}

    def _arrays(self) -> dict[str, np.ndarray]:
        return super()._arrays() | {"known": self._known}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        super()._restore(arrays, meta)
        self._young = whole(meta["young"], "young", least=0)
        if self._young >= (1 if self.horizon is None else self.horizon // 2):
            raise ValueError(f"young is {self._young} where the horizon is {self.horizon}")
        # Files from before there were surprises: as if the last refresh had been now.
        refreshed = 0 if self.statistics_ is None else self.n_seen
        self._refreshed = whole(meta.get("refreshed", refreshed), "refreshed", least=0)
        self._known = arrays.get("known", self.queue.sizes).copy()
        most = self.n_seen if self.capacity is None else self.capacity
        if (
            self._refreshed > self.n_seen
            or self._known.shape != (self.n_classes,)
            or self._known.dtype.kind != "i"
            or not ((self._known >= 0) & (self._known <= most)).all()
        ):
            raise ValueError("what the last refresh knew does not fit the samples")

    def _check_extra(self, extra: np.ndarray) -> None:
        options = np.ascontiguousarray(extra).view(candidate_type(self.n_classes))["class"]
        if not ((options >= 0) & (options < self.n_classes)).all():
            raise ValueError("the stored queue names classes that do not exist")

    def _try_out(self) -> Array:
        if self.explain(self.text_features[0]).temperature <= 0.0:
            raise ValueError("a temperature that is not positive")
        return super()._try_out()

    def _settle(self) -> None:
        super()._settle()
        self._known, self._refreshed = self.queue.sizes.astype(np.int64), self.n_seen

    def _pace(self) -> Pace:
        # A schedule that somebody asked for is kept, and with a horizon queues empty on the way.
        if self.refresh_rule != "growth" or self.horizon is not None:
            return super()._pace()
        return Surprised(
            self._schedule,
            self.n_seen,
            self._due,
            sizes=self.queue.sizes,
            capacity=self.queue.capacity,
            known=self._known,
            refreshed=self._refreshed,
        )

    @property
    def _growth(self) -> dict[str, int | None]:
        # Early, since a wrong weight does little harm while the queue is empty; often, since in a
        # stream sorted by class the statistics know nothing of the class that comes.
        percent = GROWTH if self.n_classes <= FEW_CLASSES else GROWTH_OF_MANY
        growth: dict[str, int | None] = {"first": max(16, self.n_classes // 2), "percent": percent}
        if self.horizon is not None:  # forgetting shows at a refresh
            gap = max(1, self.horizon // GAPS)
            growth["max_gap"] = gap if self.max_gap is None else min(gap, self.max_gap)
        return growth

    def _empty_queue(self, capacity: int | None) -> EntropyQueue:
        return EntropyQueue(
            self.n_classes,
            self.dim,
            capacity,
            extra_width=candidate_type(self.n_classes).itemsize,
            twin_tolerance=TWIN_TOLERANCE,
        )

    def _empty_queues(self) -> dict[str, EntropyQueue]:
        generations = ("queue",) if self.horizon is None else ("queue", "older")
        return {name: self._empty_queue(self.capacity) for name in generations}

    def _empty_sample(self) -> UniformSample:
        return UniformSample(self.dim, self.sample_size, key=self.sample_key)

    def _empty_samples(self) -> dict[str, UniformSample]:
        generations = ("sample",) if self.horizon is None else ("sample", "older_sample")
        return {name: self._empty_sample() for name in generations}

    def _extra(self, clip: ClipScores, rows: np.ndarray) -> np.ndarray:
        """CLIP's likeliest classes for a sample, its label first, and their log-probabilities."""
        kept = np.zeros(len(rows), candidate_type(self.n_classes))
        if len(rows) == 1 and clip.confidences[rows[0]] >= SURE:  # most rows of a stream
            kept["class"][0, 0] = clip.labels[rows[0]]
            kept["log_prob"][0, 0] = math.log(clip.confidences[rows[0]])
            return kept.view(np.uint8).reshape(1, -1)
        label, confidence = clip.labels[rows], clip.confidences[rows]
        kept["class"][:, 0] = label
        kept["log_prob"][:, 0] = np.log(confidence)
        unsure = np.flatnonzero(confidence < SURE)  # the others stay where they are
        if len(unsure):
            logits = to_host(clip.logits[rows[unsure]]).astype(np.float32, copy=False)
            at, best = np.arange(len(unsure)), label[unsure]
            total = logits[at, best] - np.log(confidence[unsure]).astype(np.float32)
            for column in range(1, kept["class"].shape[1]):
                logits[at, best] = -np.inf
                best = logits.argmax(axis=1)
                kept["class"][unsure, column] = best
                kept["log_prob"][unsure, column] = logits[at, best] - total
        return kept.view(np.uint8).reshape(len(rows), kept.dtype.itemsize)

    def _statistics(self) -> dict[str, np.ndarray] | None:
        queue, sample = self.queue, self._samples["sample"]
        if self.horizon is not None:
            queue, sample = self._queues["older"].copy(), self._samples["older_sample"].copy()
            queue.merge(self.queue.members())
            sample.merge(self._samples["sample"].items())
        if len(queue) == 0:
            return None
        evidence = Evidence(queue, sample.items(), self.text_features, self.logit_scale)
        fitted = evidence.fit()
        if fitted is None:
            return None
        model, covariance = fitted
        return {
            "prototypes": model.weights,
            "bias": model.bias,
            "centre": model.centre,
            "mass": model.mass,
            "model": np.array([model.slope, model.kappa]),
            "inverse": covariance.inverse,
        } | weighed_by(evidence, model.mass, model.score(evidence.drawn))

    def _score(self, batch: Batch, features: Array) -> Array:
        scores = self._linear(batch, features)
        scores += self._statistic("bias", batch)
        evidence, unknown = (self._statistic(name, batch) for name in ("evidence", "unknown"))
        assert self.statistics_ is not None
        return weighed(batch.xp, scores, evidence, unknown, self.statistics_["weighing"])


@dataclass(frozen=True)
class ExpectedAccuracy:
    """Shares of images that are expected to be answered right, estimated without labels."""

    zero_shot: float
    adapted: float

    @classmethod
    def of(cls, statistics: dict[str, np.ndarray]) -> Self:
        return cls(*map(float, statistics["expected"]))


@dataclass(frozen=True)
class Explanation:
    """Where an answer comes from: logits = (clip + text + queue + correction) / temperature.

    The first five and the probabilities are arrays over the classes.
    """

    clip: np.ndarray  # CLIP's logits
    text: np.ndarray  # what the text adds as the prior of a class mean, in image space
    queue: np.ndarray  # what the class's own samples in the queue add
    correction: np.ndarray  # bias: the length of the mean, and how well it is known
    samples: np.ndarray  # n_k, samples behind each class, shared out by their probability
    text_worth: float  # kappa, how many samples the text of a class is worth
    weight: float  # s(f): nats of the Gaussians for this image against one of CLIP's
    temperature: float
    probabilities: np.ndarray
    expected_accuracy: ExpectedAccuracy | None = None  # of all answers; None: no refresh yet

    @property
    def logits(self) -> np.ndarray:
        """What the adapter's `logits` gives."""
        summed: np.ndarray = self.clip + self.text + self.queue + self.correction
        return summed / self.temperature
