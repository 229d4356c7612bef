"""The documented numbers are measured ones, and what stands bold is the best."""

import re

import pytest
from conftest import ROOT

import soba
from soba.studies.ablate import ablate, summarise

COLUMN = {"clip_rn50": 0, "clip_vitb32": 1}


def documented(section):
    """Label -> the means of its row in a section's table."""
    text = (
        (ROOT / "docs" / "ablations.md").read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    )
    rows = re.findall(r"^\| ([^|]*?)(?: \(.*?\))? \|(.*)\|$", text, re.MULTILINE)
    numbers = {label: re.findall(r"(\d+\.\d+)\** ", cells + " ") for label, cells in rows}
    return {label: list(map(float, means)) for label, means in numbers.items() if means}


def test_the_documented_capacities(whurs19):
    [points] = summarise(ablate("capacity", soba.FeatureSet.load(whurs19))).values()
    table = documented("Capacity")
    soba_points = [point for point in points if point.line == "soba"]
    assert len(soba_points) == 7
    for point in soba_points:
        # A sample or two may fall the other way on another machine.
        assert table[point.setting][COLUMN[whurs19.stem]] == pytest.approx(point.mean, abs=0.1)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def tables(text):
    """(headings, rows) of every Markdown table."""
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        head, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        ]
        yield head, rows


def check_bold(cells):
    """The best of these cells is bold, and nothing else of them."""
    cells = [cell for cell in cells if re.match(r"\**[+-]?\d", cell)]
    value = {cell: float(cell.strip("*").split("*")[0].split()[0]) for cell in cells}
    best = max(value.values())
    assert [cell for cell in cells if "**" in cell] == [c for c in cells if value[c] == best]


def test_bold_is_the_best_of_its_row_and_nothing_else():
    for path in PAGES:
        for head, rows in tables(path.read_text()):
            # Those two mark the best of a column, and say so.
            if "**" not in str(rows) or path.stem in ("ablations", "rivals"):
                continue
            assert not any("**" in row[0] for row in rows)
            gains = "scenario" in head  # beside zero-shot's accuracy, what the others add to it
            for row in rows:
                last = next(k for k, name in enumerate(head) if name.startswith("SOBA+"))
                check_bold(row[3 if gains else 1 : last + 1])
                assert "**" not in str(row[last + 1 :])


def test_bold_is_the_best_top_1_of_its_column_in_the_ablations():
    text = (ROOT / "docs" / "ablations.md").read_text()
    assert "the best top-1 of each column is bold" in " ".join(text.split())
    for head, rows in tables(text):
        other = next((k for k, n in enumerate(head) if re.search("calib|second|†", n)), len(head))
        for place, column in enumerate(zip(*rows, strict=True)):
            if 0 < place < other:
                check_bold(column)
            else:
                assert "**" not in str(column)


def test_where_soba_plus_shines_it_says_what_it_was_chosen_on():
    """Its form was chosen on the files of WHU-RS19: where its figures stand, that is said."""
    for path in PAGES:
        text = path.read_text()
        for head, rows in tables(text):
            if "WHU-RS19" in text and "**" in str(rows) and any("SOBA+" in name for name in head):
                assert all(name.endswith(r"\*") for name in head if "SOBA+" in name), path
                assert re.search(r"\\\* .*SOBA\+.*chosen\s+on these", text), path


def first_number(cell):
    """The figure of a cell, without its deviation and without bold."""
    return re.match(r"[+-]?[\d.]+", cell.strip("*"))[0]


def table_with(page, heading):
    """Row name -> column -> figure, of all tables of a page that have a column of this name."""
    found = {}
    for head, rows in tables((ROOT / "docs" / page).read_text()):
        if heading in head:
            for name, *cells in rows:
                found[name.removesuffix(", top-1")] = dict(zip(head[1:], cells, strict=True))
    return found


@pytest.mark.parametrize(
    ("page", "heading", "columns"),
    [
        ("rivals.md", "whurs19 RN50", {}),
        ("all_methods.md", "gain", {"top-1": "shifted", "ms an image": "ms/image"}),
    ],
)
def test_which_method_when_quotes_the_other_pages(page, heading, columns):
    quoted, measured = table_with("which_method.md", heading), table_with(page, heading)
    assert len(quoted) > 8
    for name, row in quoted.items():
        for column, cell in row.items():
            if column != "needs":
                theirs = measured[name][columns.get(column, column)]
                assert first_number(cell) == first_number(theirs), (name, column)


def test_the_front_page_shows_the_readme_s_table():
    readme, front = (ROOT / "README.md").read_text(), (ROOT / "docs" / "index.md").read_text()
    assert next(tables(readme)) == next(tables(front))


def test_the_readme_fits_on_two_screens_and_its_links_resolve():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 90
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert link.startswith("https://") or (ROOT / link).is_file(), link
