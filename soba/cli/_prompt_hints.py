"""The prompt check in the terminal, as `soba check` and `soba inspect` print it."""

from __future__ import annotations

from collections.abc import Sequence

from soba.cli._common import counted, out, shown
from soba.studies.prompts import PromptHints, RankedTemplate

_MOST = 10


def say_hints(
    hints: PromptHints, templates: Sequence[RankedTemplate], names: Sequence[str]
) -> None:
    """What the images say of names and templates; the ten most suspicious of each kind."""
    _say(
        f"prompt check on {counted(hints.images, 'image')}: hints, not proof; the adapted answers "
        "stand in for labels"
    )
    lines = []
    for hint in hints.contradicted:
        name, rival = names[hint.label], names[hint.rival]
        nearer = f"; the name is nearer to the images of {rival}" if hint.nearer_rival else ""
        called = f"CLIP alone calls {hint.called_so:.0%} of its {hint.images} images so"
        mostly = "" if hint.nearer_rival else f", others {rival}"
        lines.append(f"{name}: {called}{mostly}{nearer}")
    _listed("names that the images contradict", lines)
    pairs = [f"{names[p.first]} | {names[p.second]}: {p.cosine:.2f}" for p in hints.alike]
    _listed("pairs of names that are nearer to each other than to all others", pairs)
    _listed("classes that no image is answered with", [names[label] for label in hints.unused])
    if templates:
        _listed(
            "templates by how often CLIP says with each alone what the adapted classifier says",
            [f"{each.agreement:.1%} {each.template}" for each in templates],
        )
        last = templates[-1]
        if len(templates) > _MOST:
            _say(f"  the last: {last.agreement:.1%} {last.template}")


def _listed(title: str, lines: Sequence[str]) -> None:
    if not lines:
        _say(f"{title}: none")
        return
    _say(f"{title}: {len(lines)}")
    for line in lines[:_MOST]:
        _say(f"  {line}")
    if len(lines) > _MOST:
        _say(f"  ... and {len(lines) - _MOST} more")


def _say(line: str) -> None:
    out.print(shown(line), soft_wrap=True, highlight=False)
