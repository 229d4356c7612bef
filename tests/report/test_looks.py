"""Colours that mean the same everywhere and can be told apart; pictures that can be read."""

import itertools
import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.pyplot import close
from matplotlib.text import Text
from report_records import OOD, grid
from run_cli import soba_command

import soba
from soba._page import NARROW
from soba.bench.evaluate import evaluate
from soba.registry import card
from soba.report import ablation_plots
from soba.report import charts as report_plots
from soba.report import demo_page as demo_report
from soba.report.method_looks import _SPARE, colour_of, line_styles, title_of
from soba.report.tables import tables
from soba.studies import ablate
from soba.studies.demo import METHODS, Domain
from soba.testing import example_stream

IMAGES, LABELS, TEXT = example_stream(n=160, classes=5, width=12)
NAMES = ("football", "lifebuoy", "lightbulb", "calendar check", "wheelchair")
SET = soba.FeatureSet(IMAGES, TEXT, 20.0, LABELS, class_names=NAMES)
PHONE = 390 - 2 * 16  # pixels: a phone's screen less the page's margins

# How linear RGB looks to eyes without one kind of cones: Machado, Oliveira and Fernandes 2009.
EYES = {
    "usual": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def linear(colour):
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast_to_white(colour):
    return 1.05 / (0.05 + linear(colour) @ [0.2126, 0.7152, 0.0722])


def lab(rgb):
    """CIELAB of linear RGB, where equal distances look about equal."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def least_distance(one, other):
    """To the eyes that find them most alike; 2 is just visible side by side."""
    return min(
        np.linalg.norm(lab(np.array(eye) @ linear(one)) - lab(np.array(eye) @ linear(other)))
        for eye in EYES.values()
    )


def test_every_method_has_a_title_and_a_colour_of_its_own():
    known = soba.list_methods()
    assert all(card(name).title and card(name).colour for name in known)
    assert len({colour_of(name) for name in known}) == len(known)
    assert len({title_of(name) for name in known}) == len(known)


def test_colours_are_seen_on_white_and_told_apart_by_all_eyes():
    colours = {name: colour_of(name) for name in soba.list_methods()}
    for colour in (*colours.values(), *_SPARE):
        assert contrast_to_white(colour) >= 3, colour
    for one, other in itertools.combinations(colours, 2):
        assert least_distance(colours[one], colours[other]) > 10, (one, other)
    for one, other in itertools.combinations(METHODS, 2):
        assert least_distance(colours[one], colours[other]) > 30, (one, other)


def test_a_strangers_method_has_one_colour_and_its_own_name():
    assert colour_of("mine") == colour_of("mine") and colour_of("mine") in _SPARE
    assert len({colour_of(f"method {k}") for k in range(50)}) == len(_SPARE)
    assert title_of("mine") == "mine"


def test_rows_of_one_method_share_its_colour_and_differ_in_dashes():
    styles = line_styles({"SOBA": "soba", "SOBA (64 views)": "soba", "TDA": "tda"})
    assert styles["SOBA"]["color"] == styles["SOBA (64 views)"]["color"] == colour_of("soba")
    assert styles["SOBA"]["linestyle"] != styles["SOBA (64 views)"]["linestyle"]
    assert styles["TDA"]["linestyle"] == styles["SOBA"]["linestyle"]


@pytest.fixture(scope="module")
def domains():
    records = evaluate(SET, METHODS, orders=2)
    return [Domain(name, None, [], SET, {}, records) for name in ("source", "sketch")]


@pytest.fixture(scope="module")
def pictures(domains):
    """Name -> a function of the width that draws it."""
    [table] = tables(grid([*METHODS, "mine"], OOD, seeds=2))
    long = {
        f"{label} (tuned on the validation split of imagenet, 64 views, AugMix)": records
        for label, records in table.fair.items()
    }
    drawings = {
        "radar": lambda w: report_plots.radar(table, w),
        "stream": lambda w: report_plots.over_stream(table.fair, "a", w),
        "coverage": lambda w: report_plots.over_coverage(table.fair, "a", w),
        "calibration": lambda w: report_plots.calibration(table.fair, "a", w),
        "long labels": lambda w: report_plots.over_stream(long, "a", w),
        "gains": lambda w: demo_report.gains(domains, w),
        "so far": demo_report.over_stream(domains[0]).draw,
    }
    for name in ("capacity", "classifier"):
        points = ablate.summarise(ablate.ablate(name, SET, orders=2))["features"]
        drawings[name] = lambda w, name=name, points=points: ablation_plots.figure(
            name, "a", points, w
        )
    before, after = demo_report.spaces(domains[0])
    return drawings | {"before": before.draw, "after": after.draw}


def coloured(figure):
    """Label -> colour of its line or bar."""
    [axes] = figure.axes
    colours = {}
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        handle = handle[0] if isinstance(handle, tuple) else handle
        is_line = hasattr(handle, "get_color")
        colours[label] = to_hex(handle.get_color() if is_line else handle.get_facecolor())
    if not colours:  # named at its axis
        ticks = [tick.get_text() for tick in axes.get_yticklabels()]
        bars = (patch for patch in axes.patches)
        colours = {tick: to_hex(bar.get_facecolor()) for tick, bar in zip(ticks, bars, strict=True)}
    return colours


LINES = ("radar", "stream", "coverage", "so far", "capacity")


@pytest.mark.parametrize("name", [*LINES, "gains", "calibration"])
def test_a_method_has_one_colour_in_every_picture(pictures, name):
    names = {title_of(method): method for method in (*METHODS, "mine")}
    figure = pictures[name](NARROW)
    colours = coloured(figure)
    close(figure)
    assert len(colours) >= 3 and "zero-shot" in colours
    assert colours == {label: colour_of(names[label]) for label in colours}


def test_the_dots_of_an_ablation_have_their_methods_colours(pictures):
    figure = pictures["classifier"](NARROW)
    drawn = {to_hex(line.get_color()) for line in figure.axes[0].lines}
    close(figure)
    assert drawn == {colour_of(method) for method in ("zero-shot", "ncm", "soba")}


def test_a_curve_of_eval_has_the_same_colours(tmp_path):
    SET.save(tmp_path / "some.safetensors")
    curve = tmp_path / "curve.svg"
    soba_command("eval", tmp_path / "some.safetensors", "--orders", 1, "--curve", curve)
    strokes = set(re.findall(r"stroke: (#[0-9a-f]{6})", curve.read_text()))
    assert {colour_of(method) for method in METHODS} <= strokes


@pytest.mark.parametrize("name", [*LINES, "gains"])
def test_zero_shot_lies_on_top(pictures, name):
    figure = pictures[name](NARROW)
    [axes] = figure.axes
    [control] = [line for line in axes.lines if line.get_label() == "zero-shot"]
    others = [artist for artist in (*axes.lines, *axes.patches) if artist is not control]
    close(figure)
    assert others and control.get_zorder() > max(artist.get_zorder() for artist in others)


@pytest.mark.parametrize("width", [NARROW, 11.1])
@pytest.mark.parametrize(
    "name", [*LINES, "long labels", "gains", "calibration", "classifier", "before", "after"]
)
def test_text_is_readable_and_whole(pictures, name, width):
    figure = pictures[name](width)
    figure.canvas.draw()  # lays out what is not laid out by hand
    used = figure.get_tightbbox()  # inches; ticks beyond the axes' limits are not counted
    sizes = [t.get_fontsize() for t in figure.findobj(Text) if t.get_text() and t.get_visible()]
    close(figure)
    height = figure.get_figheight()
    assert figure.get_figwidth() == width
    assert used.x0 >= 0 and used.x1 <= width and used.y0 >= 0 and used.y1 <= height, used
    assert min(sizes) / 72 * PHONE / NARROW > 11  # pixels, on a phone
