"""The demo's page: the table, and the pictures people would rather look at."""

from __future__ import annotations

import html
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from soba import _page as page
from soba._page import Picture
from soba.adapt.soba import SOBA
from soba.bench.metrics import softmax
from soba.datasets.icons import DOMAINS, SHIFTED
from soba.report.method_looks import colour_of, line_style, line_styles, title_of
from soba.report.plots import legend_below, legend_height, lines_panel, panel
from soba.studies.demo import Domain, adapt_share, averages, most_gained, stream

_EXAMPLES, _QUEUES, _SCATTER = 14, 4, 7  # pictures of each kind, classes


def write_report(path: Path, domains: list[Domain], seconds: float) -> None:
    """Everything in one file that opens anywhere."""
    best = most_gained(domains)
    parts = [
        _lead(domains, seconds),
        _table(domains),
        _section(
            "What adaptation gains",
            "Points of top-1 over zero-shot CLIP, mean over the orders; whiskers: one standard "
            "deviation.",
            page.panels([Picture(partial(gains, domains), "gain over zero-shot per domain")]),
        ),
        _section(
            "Accuracy over the stream",
            "Share of right answers so far, mean over the orders: the adapter starts as plain CLIP "
            "and learns while it runs.",
            page.panels([over_stream(domain) for domain in domains]),
        ),
        _section(
            f"Put right, and put wrong, on {best.name}",
            "Icons that SOBA+ and zero-shot CLIP answer differently, in one order of the stream. "
            + _why(domains),
            _examples(best),
        ),
        _section(
            f"The feature space of {best.name}, before and after the rotation",
            "Seven classes that are easily confused, each colour one of them, in the plane that "
            "shows most of their spread. Before: CLIP's own features. After: the same features in "
            "the basis of SOBA's within-class covariance, axes scaled by the ridge precision.",
            page.panels(spaces(best)),
        ),
        _section(
            f"The queue of a few classes of {best.name}",
            "What SOBA keeps of a class: the sixteen surest answers of frozen CLIP, surest first. "
            "Green: really of this class. Red: not, and it stays unknown to the adapter.",
            _queues(best),
        ),
    ]
    page.write_page(path, "soba demo", "\n".join(parts))


def _why(domains: list[Domain]) -> str:
    """Which domain the examples are of, for what reason, and what the others gain."""
    domain = most_gained(domains)
    gain = {d.name: d.summary["soba+"]["gain"] for d in domains if d.name in SHIFTED}
    others = [f"{value:+.2f} on {name}" for name, value in gain.items() if name != domain.name]
    return (
        f"These and the pictures below are of {domain.name}, because SOBA+ gains most there of the "
        f"shifted domains ({gain[domain.name]:+.2f} points): there is most to see. On the others "
        f"it gains less: {', '.join(others)}."
    )


def gains(domains: list[Domain], width: float) -> Any:
    """Grouped bars: domain x method. Zero-shot is the line they stand on."""
    methods = [m for m in domains[0].summary if m != "zero-shot"]
    titles = [title_of(method) for method in domains[0].summary]
    below = 0.35 + legend_height(titles, width)
    figure, axes = panel("", (width, 2.6 + below), bottom=below, top=0.1)
    bar = 0.8 / len(methods)
    for k, method in enumerate(methods):
        summaries = [domain.summary[method] for domain in domains]
        axes.bar(
            np.arange(len(domains)) + (k - (len(methods) - 1) / 2) * bar,
            [row["gain"] for row in summaries],
            bar * 0.92,
            yerr=[row["accuracy_std"] for row in summaries],
            error_kw={"elinewidth": 0.8, "ecolor": "#555"},
            color=colour_of(method),
            label=title_of(method),
        )
    axes.axhline(0.0, **line_style("zero-shot") | {"linestyle": "-"})
    axes.set_xticks(range(len(domains)), [domain.name for domain in domains])
    axes.set_ylabel("gain, points")
    axes.grid(visible=False)
    legend_below(figure, axes, width)
    return figure


def over_stream(
    domain: Domain, methods: tuple[str, ...] = ("zero-shot", SOBA.card.name, "soba+")
) -> Picture:
    """Running accuracy on one domain, mean over orders."""
    labels = domain.features.labels
    assert labels is not None
    orders = domain.summary["zero-shot"]["orders"]
    seen = np.arange(1, len(labels) + 1)
    # Before a twentieth the share of right answers is all noise; more points hide the dashes.
    points = slice(max(1, len(labels) // 20), None, max(1, len(labels) // 100))
    lines = {}
    for method in methods:
        right = []
        for seed in range(max(orders, 1)):
            order, logits, _ = stream(domain, method, seed)
            right.append(logits.argmax(axis=1) == labels[order])
        so_far = np.cumsum(np.mean(right, axis=0)) / seen
        lines[title_of(method)] = (100 * seen[points] / len(labels), 100 * so_far[points])

    def draw(width: float) -> Any:
        return lines_panel(
            lines,
            line_styles({title_of(method): method for method in methods}),
            width=width,
            title=domain.name,
            x_label="% of the stream",
            y_label="top-1 % so far",
        )

    return Picture(draw, f"accuracy over the stream, {domain.name}")


def spaces(domain: Domain) -> list[Picture]:
    """Features of some confusable classes, as CLIP has them and in SOBA's scaled basis."""
    features = domain.features
    labels = features.labels
    assert labels is not None and features.class_names is not None
    _, _, adapter = stream(domain, SOBA.card.name)
    confusable = _confusable(domain)
    rows = np.isin(labels, confusable)
    before = np.asarray(features.image_features[rows], np.float64)
    values, basis = adapter.eigenvalues_, adapter.basis_  # type: ignore[attr-defined]
    ridge = values.sum() / len(adapter.queue)  # type: ignore[attr-defined]
    after = (before - before.mean(axis=0)) @ basis / np.sqrt(values + ridge)
    names = {label: features.class_names[label] for label in confusable}
    return [
        Picture(partial(_scatter, points, labels[rows], names, title), f"features {title}")
        for title, points in (("before", before), ("after", after))
    ]


def _scatter(
    points: np.ndarray, labels: np.ndarray, names: dict[int, str], title: str, width: float
) -> Any:
    flat = _plane(points, labels)
    below = 0.15 + legend_height(names.values(), width)
    figure, axes = panel(
        f"{title}: spread within / between {_ratio(flat, labels):.2f}",
        (width, 0.75 * width + below),
        left=0.1,
        bottom=below,
    )
    for (label, name), marker in zip(names.items(), "osD^vPX", strict=False):
        axes.scatter(*flat[labels == label].T, s=16, marker=marker, label=name)
    axes.set_xticks([])
    axes.set_yticks([])
    legend_below(figure, axes, width)
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
        mirrored = DOMAINS[domain.name].mirrors.partition(":")[0]
        scores = _ranked([summary[method]["accuracy_mean"] for method in methods])
        spread = [f" <small>&plusmn;{summary[m]['accuracy_std']:.2f}</small>" for m in methods[1:]]
        rows.append(
            [
                f"{domain.name} <small>as {mirrored}</small>",
                *map(str.__add__, scores, ["", *spread]),
                f"{len(domain.images.class_names)}",
                f"{len(domain.images):,}",
            ]
        )
    mean = averages(domains)
    rows.append(["mean of shifted", *_ranked([mean[method] for method in methods]), "", ""])
    gain = {m: mean[m] - mean["zero-shot"] for m in methods}
    marked_gains = [
        "" if m == "zero-shot" else f'<span class="{"good" if g >= 0 else "bad"}">{g:+.2f}</span>'
        for m, g in gain.items()
    ]
    rows.append(["gain over zero-shot", *marked_gains, "", ""])
    orders = domains[0].summary["zero-shot"]["orders"]
    headings = ["domain", *map(title_of, methods), "classes", "images"]
    kinds = [*("" for _ in domains), "total", ""]
    return _section(
        "Top-1 accuracy, %",
        f"Mean and standard deviation over {orders} shuffled orders of each domain's stream. The "
        "best of each row is <b>bold</b>, the second <span class='second'>underlined</span>.",
        page.table(headings, rows, kinds=kinds),
    )


def _ranked(scores: list[float]) -> list[str]:
    """Best and second marked, as they are printed: equal digits, equal rank."""
    printed = [f"{score:.2f}" for score in scores]
    ranks = sorted(set(printed), key=float, reverse=True)
    style = dict(zip(ranks, ("best", "second"), strict=False))
    return [f'<span class="{style.get(text, "")}">{text}</span>' for text in printed]


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
        rows_of_kind = np.flatnonzero(rows)
        surest = rows_of_kind[np.argsort(-chance[rows_of_kind], kind="stable")][:_EXAMPLES]
        cards = "".join(
            f'<figure class="card">{page.thumbnail(domain.pictures[order[i]], alt=names[truth[i]])}'
            f"<figcaption><b class='{'good' if adapted[i] == truth[i] else 'bad'}'>"
            f"{html.escape(names[adapted[i]])}</b> {chance[i]:.0%}<br>"
            f"<small>CLIP: {html.escape(names[clip[i]])}</small></figcaption></figure>"
            for i in surest
        )
        parts.append(f"<h3>{title}: {len(rows_of_kind)}</h3><div class='grid'>{cards}</div>")
    return "".join(parts)


def _queues(domain: Domain) -> str:
    labels, names = domain.features.labels, domain.features.class_names
    assert labels is not None and names is not None
    _, _, adapter = stream(domain, SOBA.card.name)
    items = adapter.queue.items()  # type: ignore[attr-defined]
    parts = []
    for label in _instructive(items.labels, items.ids, labels):
        members = items.ids[items.labels == label]
        thumbnails = "".join(
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
            f'<div class="strip">{thumbnails}</div>'
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
    group = [seed]
    while len(group) < min(_SCATTER, classes):
        near = mixed[group].max(axis=0)
        near[group] = -1.0
        group.append(int(near.argmax()))
    return group


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
