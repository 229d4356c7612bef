"""The embedded data set: icons, drawn at run time from the fonts inside `qtawesome`.

Four families of designers drew the same things: Font Awesome, Material Design Icons, Phosphor
and Remix. A class is a name that at least three of them have, and the family is the distribution
shift: the tiny CLIP saw Font Awesome and Material only. Five domains mirror ImageNet and its four
variants. No font is copied into this package; NOTICE-icons.md names them and their licences.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from soba.datasets.base import ImageSet

QTAWESOME = "1.4.2"  # the fonts define the classes, so the version is part of the data set
_MASK = 128  # pixels of a drawing before it is placed into an image

# Family -> fonts as (font file, character map, endings of the names of this style).
_SOURCE = ("fa6", "fa5", "mdi")
_FONTS = {
    "fa5": ("fontawesome5-solid-webfont-5.15.4.ttf", "fontawesome5-solid-webfont-charmap-5.15.4"),
    "fa6": ("fontawesome6-solid-webfont-6.7.2.ttf", "fontawesome6-solid-webfont-charmap-6.7.2"),
    "mdi": (
        "materialdesignicons6-webfont-6.9.96.ttf",
        "materialdesignicons6-webfont-charmap-6.9.96",
    ),
    "phosphor": ("phosphor-1.3.0.ttf", "phosphor-charmap-1.3.0"),
    "remix": ("remixicon-2.5.0.ttf", "remixicon-charmap-2.5.0"),
}
_PHOSPHOR = ("thin", "light", "bold", "fill", "duotone")


@dataclass(frozen=True)
class Domain:
    """Which drawings a domain has, and how they are coloured."""

    drawings: tuple[str, ...]  # styles, as in `style/name`
    look: str
    mirrors: str  # the set of the OOD benchmark that it stands for


DOMAINS = {
    "source": Domain(_SOURCE, "plain", "ImageNet"),
    "v2": Domain(("remix-fill",), "plain", "ImageNet-V2: the same, drawn anew by others"),
    "sketch": Domain(
        ("phosphor-thin", "phosphor-light", "remix-line"), "pencil", "ImageNet-Sketch"
    ),
    "rendition": Domain(("phosphor-fill", "phosphor-bold"), "colourful", "ImageNet-R"),
    "hard": Domain((), "plain", "ImageNet-A: what a small network gets wrong"),
}
SHIFTED = tuple(name for name in DOMAINS if name != "source")


def icons(
    domain: str,
    per_class: int = 20,
    *,
    seed: int = 0,
    size: int = 96,
    classes: Collection[str] | None = None,
) -> IconSet:
    """One domain as an image set: `per_class` images of each class that the domain draws.

    `classes` are names as the fonts spell them, to take no others.

    Image number i of a class shows drawing i modulo their number. An image depends on its key,
    `seed` and `size` only: asking for more leaves the first ones as they are.

    Examples
    --------
    >>> stream = icons("sketch", per_class=2)
    >>> len(stream) == 2 * len(stream.class_names), stream.image(0).size
    (True, (96, 96))
    """
    if domain not in DOMAINS:
        raise ValueError(f"no icon domain {domain!r}; there are: {', '.join(DOMAINS)}")
    if per_class < 1:
        raise ValueError(f"per_class must be at least 1, not {per_class}")
    by_class: dict[str, list[str]] = {}
    for drawing in drawings_of(domain):
        by_class.setdefault(drawing.partition("/")[2], []).append(drawing)
    names = sorted(name for name in by_class if classes is None or name in classes)
    keys = [f"{by_class[n][i % len(by_class[n])]}/{i}" for n in names for i in range(per_class)]
    return IconSet(
        name=f"icons-{domain}",
        class_names=tuple(readable(name) for name in names),
        keys=tuple(keys),
        labels=np.repeat(np.arange(len(names)), per_class),
        templates=("an icon of a {}.",),
        look=DOMAINS[domain].look,
        seed=seed,
        size=size,
    )


@dataclass(frozen=True, eq=False)
class IconSet(ImageSet):
    """Icons of one domain; drawn when asked for, from `style/name/number` keys."""

    look: str = "plain"
    seed: int = 0
    size: int = 96

    @property
    def recipe(self) -> str:
        """What decides the pixels besides the keys: extraction goes on with the same one only."""
        return f"qtawesome {QTAWESOME}, {self.look}, {self.size} pixels, seed {self.seed}"

    def image(self, index: int) -> Image.Image:
        """The icon as a `size` x `size` RGB image, the same bits every time."""
        key = self.keys[index]
        drawing = key.rpartition("/")[0]
        digest = hashlib.sha256(f"{self.look}/{key}/{self.seed}".encode()).digest()
        rng = np.random.default_rng(np.frombuffer(digest, np.uint32))
        return render(mask(drawing), rng, self.look, self.size)


def readable(name: str) -> str:
    """An icon's name as a prompt would say it: `book-open` is a book open."""
    return name.replace("-", " ")


@cache
def class_names(families: int = 3) -> tuple[str, ...]:
    """The names that at least so many of the four families draw, as the fonts spell them."""
    awesome = set(_characters("fa5")) | set(_characters("fa6"))
    phosphor = {_base(name, _PHOSPHOR) for name in _characters("phosphor")}
    remix = {n[:-5] for n in _characters("remix") if n.endswith(("-fill", "-line"))}
    drawn = (awesome, set(_characters("mdi")), phosphor, remix)
    names = set().union(*drawn)
    return tuple(sorted(n for n in names if sum(n in family for family in drawn) >= families))


def drawings_of(domain: str) -> tuple[str, ...]:
    """The drawings of a domain as `style/name`, only those that its fonts have."""
    if domain == "hard":
        return hard_drawings()
    styles = DOMAINS[domain].drawings
    return tuple(f"{s}/{n}" for n in class_names() for s in styles if _code(s, n) is not None)


def names_in(style: str) -> tuple[str, ...]:
    """All names that a whole font has: of families whose drawings have one style only."""
    return tuple(_characters(style))


def exists(drawing: str) -> bool:
    """Whether the fonts have a drawing, `style/name`."""
    style, _, name = drawing.partition("/")
    return _code(style, name) is not None


@cache
def hard_drawings() -> tuple[str, ...]:
    """Drawings of families unseen in training that a separate small network gets wrong.

    The list is data: training/hard_icons.py made it.
    """
    text = (Path(__file__).parent / "data" / "icons_hard.txt").read_text()
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


# Drawing --------------------------------------------------------------------------------------


@lru_cache(maxsize=8192)
def mask(drawing: str) -> Image.Image:
    """A drawing, `style/name`, as a centred grey mask that fills its square."""
    style, _, name = drawing.partition("/")
    code = _code(style, name)
    if code is None:
        raise ValueError(f"no drawing {drawing!r} in qtawesome {QTAWESOME}")
    font = _font(style.partition("-")[0])
    left, top, right, bottom = font.getbbox(chr(code))
    square = Image.new("L", (_MASK, _MASK))
    scale = _MASK / max(right - left, bottom - top, 1)
    sized = font.font_variant(size=max(8, int(font.size * scale)))
    left, top, right, bottom = sized.getbbox(chr(code))
    glyph = Image.new("L", (max(1, int(right - left)), max(1, int(bottom - top))))
    ImageDraw.Draw(glyph).text((-left, -top), chr(code), fill=255, font=sized)
    glyph.thumbnail((_MASK, _MASK))
    square.paste(glyph, ((_MASK - glyph.width) // 2, (_MASK - glyph.height) // 2))
    return square


def render(shape: Image.Image, rng: np.random.Generator, look: str, size: int) -> Image.Image:
    """A mask -> an image: placed, coloured, on a background, with noise."""
    alpha = _placed(shape, rng, size)[..., None]  # (size, size, 1) in [0, 1]
    if look == "pencil":
        paper = rng.uniform(0.82, 1.0) + 0.03 * _noise(rng, (size, size, 1))
        ink = _colour(rng.uniform(0.0, 0.35) + rng.uniform(0.0, 0.06, 3))
        image = paper * (1.0 - alpha) + ink * alpha
        grain = 0.05
    else:
        ink, ground = _colours(rng, look)
        image = _background(rng, ground, look, size) * (1.0 - alpha)
        image = image + _fill(rng, ink, look, size) * alpha
        grain = 0.08
    image += np.float32(rng.uniform(0.0, grain)) * _noise(rng, image.shape)
    np.clip(image, 0.0, 1.0, out=image)
    return Image.fromarray((image * np.float32(255.0)).astype(np.uint8), "RGB")


def _noise(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _colour(values: np.ndarray) -> np.ndarray:
    """Everything is computed in float32: half the time, and no eye sees the difference."""
    return values.astype(np.float32)


def _placed(shape: Image.Image, rng: np.random.Generator, size: int) -> np.ndarray:
    """Turned up to 25 degrees, 55 to 95 % of the frame, moved, sometimes blurred."""
    angle = np.deg2rad(rng.uniform(-25.0, 25.0))
    zoom = shape.width / (size * rng.uniform(0.55, 0.95))
    squeeze = rng.uniform(0.85, 1.15)
    shift = rng.uniform(-0.1, 0.1, 2) * size
    cos, sin = np.cos(angle) * zoom, np.sin(angle) * zoom
    linear = np.array([[cos * squeeze, sin], [-sin * squeeze, cos]])
    offset = shape.width / 2 - linear @ (size / 2 + shift)
    placed = shape.transform(
        (size, size),
        Image.Transform.AFFINE,
        (*linear[0], offset[0], *linear[1], offset[1]),
        resample=Image.Resampling.BILINEAR,
    )
    blur = rng.uniform(0.0, 1.0)
    if rng.random() < 0.3:
        placed = placed.filter(ImageFilter.GaussianBlur(blur * size / 64))
    return np.asarray(placed, np.float32) / np.float32(255.0)


def _colours(rng: np.random.Generator, look: str) -> tuple[np.ndarray, np.ndarray]:
    """Foreground and background, far enough apart to be seen."""
    while True:
        pair = rng.uniform(0.0, 1.0, (2, 3))
        brightness = pair.mean(axis=1)
        if abs(brightness[0] - brightness[1]) > 0.3:
            break
    if look == "plain":  # towards grey: most icons are one sober colour on another
        pair = 0.4 * pair + 0.6 * brightness[:, None]
    ink, ground = _colour(pair)
    return ink, ground


def _background(rng: np.random.Generator, colour: np.ndarray, look: str, size: int) -> np.ndarray:
    """One colour, a gradient, or soft blotches."""
    kind = rng.integers(3)
    strength = 0.25 if look == "plain" else 0.5
    if kind == 0:
        return np.broadcast_to(colour, (size, size, 3))
    if kind == 1:
        return _shaded(colour, _gradient(rng, size), rng.uniform(-strength, strength, 3))
    blotches = Image.fromarray((0.5 * _noise(rng, (8, 8))).clip(-1.0, 1.0), "F")
    smooth = np.asarray(blotches.resize((size, size), Image.Resampling.BICUBIC))
    return _shaded(colour, smooth[..., None], rng.uniform(-strength, strength, 3))


def _fill(rng: np.random.Generator, ink: np.ndarray, look: str, size: int) -> np.ndarray:
    """The icon's own colour; renditions run through a gradient of hues."""
    if look == "plain":
        return np.broadcast_to(ink, (size, size, 3))
    return _shaded(ink, _gradient(rng, size), rng.uniform(-0.8, 0.8, 3))


def _shaded(colour: np.ndarray, pattern: np.ndarray, change: np.ndarray) -> np.ndarray:
    shaded: np.ndarray = colour + pattern * _colour(change)
    return shaded


def _gradient(rng: np.random.Generator, size: int) -> np.ndarray:
    angle = rng.uniform(0.0, 2.0 * np.pi)
    steps = np.linspace(-0.5, 0.5, size)
    return _colour(np.cos(angle) * steps[:, None] + np.sin(angle) * steps)[..., None]


# Fonts ----------------------------------------------------------------------------------------


def _code(style: str, name: str) -> int | None:
    """The character of a drawing in its font, if the font has it."""
    family, _, weight = style.partition("-")
    if family == "phosphor" and weight == "regular":
        weight = ""
    return _characters(family).get(f"{name}-{weight}" if weight else name)


def _base(name: str, endings: tuple[str, ...]) -> str:
    stem, _, ending = name.rpartition("-")
    return stem if ending in endings else name


@cache
def _characters(family: str) -> dict[str, int]:
    table = json.loads((_folder() / f"{_FONTS[family][1]}.json").read_text())
    return {name: int(code, 16) for name, code in table.items()}


@cache
def _font(family: str) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(_folder() / _FONTS[family][0]), _MASK)


@cache
def _folder() -> Path:
    """Where qtawesome keeps its fonts. It is never imported: that would need Qt."""
    spec = importlib.util.find_spec("qtawesome")
    if spec is None or spec.origin is None:
        raise ImportError("the icons need: pip install 'soba-tta[demo]'")
    folder = Path(spec.origin).parent / "fonts"
    if not (folder / _FONTS["mdi"][0]).is_file():
        raise ImportError(f"the icons need qtawesome=={QTAWESOME}: its fonts define the classes")
    return folder
