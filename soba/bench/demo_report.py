"""The demo's page: the table, and the pictures people would rather look at."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np

from soba.bench import page
from soba.bench.demo import Domain, adapt_share, averages, stream
from soba.bench.metrics import softmax
from soba.bench.plots import pyplot
from soba.datasets.icons import DOMAINS, SHIFTED

TITLES = {"zero-shot": "zero-shot", "ncm": "NCM", "tda": "TDA", "soba": "SOBA", "soba+": "SOBA+"}
COLOURS = {
    "zero-shot": "#8a94a3",
    "ncm": "#b08bd0",
    "tda": "#e0a030",
    "soba": "#4aa3a2",
    "soba+": "#2463ab",
}
_EXAMPLES, _QUEUES, _SCATTER = 14, 4, 7  # pictures of each kind, classes


def write_report(path: Path, domains: list[Domain], seconds: float) -> None:
    """Everything in one file that opens anywhere."""
    best = _most_gained(domains)
    parts = [
        _lead(domains, seconds),
        _table(domains),
        _section(
            "What adaptation gains",
            "Points of top-1 over zero-shot CLIP, mean over the orders; whiskers: one standard "
            "deviation.",
            page.drawing(gains(domains), "gain over zero-shot per domain and method"),
        ),
        _section(
            "Accuracy over the stream",
            "Share of right answers so far, mean over the orders: the adapter starts as plain CLIP "
            "and learns while it runs.",
            page.drawing(over_stream(domains), "accuracy over the stream, per domain"),
        ),
        _section(
            f"Put right, and put wrong, on {best.name}",
            "Icons that SOBA+ and zero-shot CLIP answer differently, in one order of the stream.",
            _examples(best),
        ),
        _section(
            "The feature space, before and after the rotation",
            "Seven classes that are easily confused, each colour one of them, in the plane that "
            "shows most of their spread. Left: CLIP's own features. Right: the same features in "
            "the basis of SOBA's within-class covariance, axes scaled by the ridge precision.",
            page.drawing(spaces(best), "two scatter plots of the same features"),
        ),
        _section(
            "The queue of a few classes",
            "What SOBA keeps of a class: the sixteen surest answers of frozen CLIP, surest first. "
            "Green: really of this class. Red: not, and it stays unknown to the adapter.",
            _queues(best),
        ),
    ]
    page.write_page(path, "soba demo", "\n".join(parts))


def gains(domains: list[Domain]) -> Any:
    """Grouped bars: domain x method."""
    plt = pyplot()
    methods = [m for m in domains[0].summary if m != "zero-shot"]
    figure, axes = plt.subplots(figsize=(9.0, 3.4))
    width = 0.8 / len(methods)
    for k, method in enumerate(methods):
        rows = [domain.summary[method] for domain in domains]
        axes.bar(
            np.arange(len(domains)) + (k - (len(methods) - 1) / 2) * width,
            [row["gain"] for row in rows],
            width * 0.92,
            yerr=[row["accuracy_std"] for row in rows],
            error_kw={"elinewidth": 0.8, "ecolor": "#555"},
            color=COLOURS.get(method),
            label=TITLES.get(method, method),
        )
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(domains)), [domain.name for domain in domains])
    axes.set_ylabel("gain, points")
    axes.legend(frameon=False, ncols=len(methods))
    _bare(axes)
    return figure


def over_stream(
    domains: list[Domain], methods: tuple[str, ...] = ("zero-shot", "soba", "soba+")
) -> Any:
    """One panel a domain: running accuracy, mean over orders."""
    plt = pyplot()
    figure, panels = plt.subplots(1, len(domains), figsize=(2.7 * len(domains), 2.7), sharey=False)
    for axes, domain in zip(np.atleast_1d(panels), domains, strict=True):
        labels = domain.features.labels
        assert labels is not None
        orders = domain.summary["zero-shot"]["orders"]
        first = max(1, len(labels) // 20)  # before that the share of right answers is all noise
        for method in methods:
            right = []
            for seed in range(max(orders, 1)):
                order, logits, _ = stream(domain, method, seed)
                right.append(logits.argmax(axis=1) == labels[order])
            seen = np.arange(1, len(labels) + 1)
            so_far = np.cumsum(np.mean(right, axis=0)) / seen
            axes.plot(
                100 * seen[first:] / len(labels),
                100 * so_far[first:],
                color=COLOURS[method],
                label=TITLES[method],
                linewidth=1.4,
            )
        axes.set_title(domain.name, fontsize=10)
        axes.set_xlabel("% of the stream")
        axes.grid(alpha=0.25)
        _bare(axes)
    np.atleast_1d(panels)[0].set_ylabel("top-1 %")
    np.atleast_1d(panels)[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def spaces(domain: Domain) -> Any:
    """Features of some confusable classes, as CLIP has them and in SOBA's scaled basis."""
    plt = pyplot()
    features = domain.features
    labels = features.labels
    assert labels is not None and features.class_names is not None
    _, _, adapter = stream(domain, "soba")
    chosen = _confusable(domain)
    rows = np.isin(labels, chosen)
    before = np.asarray(features.image_features[rows], np.float64)
    values, basis = adapter.eigenvalues_, adapter.basis_  # type: ignore[attr-defined]
    ridge = values.sum() / len(adapter.queue)  # type: ignore[attr-defined]
    after = (before - before.mean(axis=0)) @ basis / np.sqrt(values + ridge)
    figure, panels = plt.subplots(1, 2, figsize=(9.6, 4.2))
    for axes, points, title in zip(panels, (before, after), ("before", "after"), strict=True):
        flat = _plane(points, labels[rows])
        for k, label in enumerate(chosen):
            own = labels[rows] == label
            axes.scatter(
                *flat[own].T, s=16, color=plt.cm.tab10(k), label=features.class_names[label]
            )
        axes.set_title(
            f"{title}: spread within / between {_ratio(flat, labels[rows]):.2f}", fontsize=10
        )
        axes.set_xticks([])
        axes.set_yticks([])
    panels[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    return figure


def _lead(domains: list[Domain], seconds: float) -> str:
    mean = averages(domains)
    images = sum(len(domain.images) for domain in domains)
    gain = mean["soba+"] - mean["zero-shot"]
    encode = sum(domain.seconds["encode"] for domain in domains)
    numbers = [
        (f"{gain:+.2f}", "points of top-1 over zero-shot, mean of the four shifted domains"),
        (f"{images:,}", f"icons drawn and encoded, {images / encode:.0f} images/s"),
        (f"{100 * adapt_share(domains):.1f} %", "of the encoding time is what SOBA+ costs"),
        (f"{seconds:.0f} s", "for everything on this page"),
    ]
    cards = "".join(f'<div class="number"><b>{n}</b>{what}</div>' for n, what in numbers)
    return (
        "<h1>A zero-shot classifier that gets better while it runs</h1>"
        '<p class="soft">Icons of four families of designers; the tiny CLIP was trained on Font '
        "Awesome and Material Design Icons only. No labels and no training from here on: each "
        "method sees the icons one after the other and learns from what it saw. Labels are used "
        f"to count right answers, nothing else.</p><div class='cards'>{cards}</div>"
    )


def _table(domains: list[Domain]) -> str:
    methods = list(domains[0].summary)
    rows = []
    for domain in domains:
        summary = domain.summary
        ranked = sorted({row["accuracy_mean"] for row in summary.values()}, reverse=True)
        mirrored = DOMAINS[domain.name].mirrors.partition(":")[0]
        cells = [f"{domain.name} <small>as {mirrored}</small>"]
        cells += [f"{len(domain.images.class_names)}", f"{len(domain.images):,}"]
        for method in methods:
            value = summary[method]["accuracy_mean"]
            style = {0: "best", 1: "second"}.get(ranked.index(value), "")
            spread = f" <small>&plusmn;{summary[method]['accuracy_std']:.2f}</small>"
            if method == "zero-shot":
                spread = ""
            cells.append(f'<span class="{style}">{value:.2f}</span>{spread}')
        rows.append(cells)
    mean = averages(domains)
    rows.append(["mean of the shifted domains", "", "", *(f"{mean[m]:.2f}" for m in methods)])
    gain = {m: mean[m] - mean["zero-shot"] for m in methods}
    shown = [
        "" if m == "zero-shot" else f'<span class="{"good" if g >= 0 else "bad"}">{g:+.2f}</span>'
        for m, g in gain.items()
    ]
    rows.append(["gain over zero-shot", "", "", *shown])
    orders = domains[0].summary["zero-shot"]["orders"]
    headings = ["domain", "classes", "images", *(TITLES.get(m, m) for m in methods)]
    return _section(
        "Top-1 accuracy, %",
        f"Mean and standard deviation over {orders} shuffled orders of each domain's stream.",
        page.table(headings, rows, total=True),
    )


def _examples(domain: Domain) -> str:
    labels, names = domain.features.labels, domain.features.class_names
    assert labels is not None and names is not None
    order, logits, _ = stream(domain, "soba+")
    _, plain, _ = stream(domain, "zero-shot")
    adapted, clip = logits.argmax(axis=1), plain.argmax(axis=1)
    chance = softmax(logits).max(axis=1)
    truth = labels[order]
    right, wrong = (adapted == truth) & (clip != truth), (adapted != truth) & (clip == truth)
    parts = []
    for title, rows in (("Put right", right), ("Put wrong", wrong)):
        found = np.flatnonzero(rows)
        shown = found[np.argsort(-chance[found], kind="stable")][:_EXAMPLES]
        cards = "".join(
            f'<figure class="card">{page.thumbnail(domain.pictures[order[i]], alt=names[truth[i]])}'
            f"<figcaption><b class='{'good' if adapted[i] == truth[i] else 'bad'}'>"
            f"{html.escape(names[adapted[i]])}</b> {chance[i]:.0%}<br>"
            f"<small>CLIP: {html.escape(names[clip[i]])}</small></figcaption></figure>"
            for i in shown
        )
        parts.append(f"<h3>{title}: {len(found)}</h3><div class='grid'>{cards}</div>")
    return "".join(parts)


def _queues(domain: Domain) -> str:
    labels, names = domain.features.labels, domain.features.class_names
    assert labels is not None and names is not None
    _, _, adapter = stream(domain, "soba")
    items = adapter.queue.items()  # type: ignore[attr-defined]
    parts = []
    for label in _instructive(items.labels, items.ids, labels):
        members = items.ids[items.labels == label]
        shown = "".join(
            page.thumbnail(
                domain.pictures[i],
                72,
                alt=names[labels[i]],
                kind="right" if labels[i] == label else "wrong",
            )
            for i in members
        )
        good = int((labels[members] == label).sum())
        parts.append(
            f"<h3>{html.escape(names[label])} <small>{good} of {len(members)} right</small></h3>"
            f'<div class="strip">{shown}</div>'
        )
    return "".join(parts)


def _instructive(classes: np.ndarray, ids: np.ndarray, labels: np.ndarray) -> list[int]:
    """Full queues that are mostly right with a few strangers: what pseudo-labels are like."""
    share = {
        int(c): float((labels[ids[classes == c]] == c).mean())
        for c in np.unique(classes)
        if (classes == c).sum() >= 8
    }
    return sorted(share, key=lambda c: (abs(share[c] - 0.75), c))[:_QUEUES]


def _most_gained(domains: list[Domain]) -> Domain:
    shifted = [domain for domain in domains if domain.name in SHIFTED]
    return max(shifted, key=lambda domain: domain.summary["soba+"]["gain"])


def _confusable(domain: Domain) -> list[int]:
    """A class that CLIP often mixes up, and those it is mixed up with."""
    labels = domain.features.labels
    assert labels is not None
    order, logits, _ = stream(domain, "zero-shot")
    shares = softmax(logits)
    classes = shares.shape[1]
    mixed = np.zeros((classes, classes))
    np.add.at(mixed, labels[order], shares)
    mixed += mixed.T
    np.fill_diagonal(mixed, 0.0)
    seed = int(mixed.max(axis=1).argmax())
    chosen = [seed]
    while len(chosen) < min(_SCATTER, classes):
        near = mixed[chosen].max(axis=0)
        near[chosen] = -1.0
        chosen.append(int(near.argmax()))
    return chosen


def _plane(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The plane of the class means' largest spread."""
    centred = points - points.mean(axis=0)
    means = np.stack([centred[labels == label].mean(axis=0) for label in np.unique(labels)])
    _, _, axes = np.linalg.svd(means, full_matrices=False)
    flat: np.ndarray = centred @ axes[:2].T
    return flat


def _ratio(flat: np.ndarray, labels: np.ndarray) -> float:
    """Spread within classes over spread between their means, in the plane shown."""
    means = np.stack([flat[labels == label].mean(axis=0) for label in np.unique(labels)])
    index = np.unique(labels, return_inverse=True)[1]
    return float(
        np.sqrt(((flat - means[index]) ** 2).mean() / ((means - means.mean(0)) ** 2).mean())
    )


def _section(title: str, text: str, content: str) -> str:
    return f"<h2>{title}</h2><p class='soft'>{text}</p>{content}"


def _bare(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
