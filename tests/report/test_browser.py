"""The report in a real browser: every picture there, nothing sticking out of a phone's screen."""

import pytest
from report_records import OOD, grid, record, write

from soba.report.page import write_report
from soba.report.read import read_results
from soba.studies import ablate


@pytest.fixture
def page_file(tmp_path):
    methods = ["zero-shot", "ncm", "soba", "soba+", "tda"]
    records = grid(methods, OOD, seeds=3)
    crossed = ["aircraft", "caltech101", "cars", "dtd", "eurosat", "flowers102", "food101", "pets"]
    records += grid(methods, crossed, seeds=2, benchmark="cross", model="RN50")
    records.append(record("gda", accuracy=75.0, tuned_on="test labels"))
    folder = write(tmp_path / "results", records)
    (folder / "records" / ("half-" * 30 + ".json")).write_text("{")
    (folder / "ablations").mkdir()
    for name in ("alpha", "classifier"):
        settings = ablate.ABLATIONS[name].settings
        rows = [
            ablate.Row(name, "made-up", s.line, s.label, seed, 60.0 + k + seed, 5.0, 0.1)
            for k, s in enumerate(settings)
            for seed in (0, 1)
        ]
        ablate.write_csv(folder / "ablations" / f"{name}.csv", rows)
    path = tmp_path / "report.html"
    write_report(path, read_results(folder))
    return path


_FIRST_ROWS = """all => all.map(panels => {
    const boxes = [...panels.children].map(child => child.getBoundingClientRect());
    const row = boxes.filter(box => box.top === boxes[0].top);
    return [Math.max(...row.map(box => box.right)), panels.getBoundingClientRect().right];
})"""


def test_renders_on_a_desk_and_on_a_phone(browser, page_file):
    for width in (1280, 390):
        page = browser.new_page(viewport={"width": width, "height": 900})
        problems, requests = [], []
        page.on("console", lambda m, p=problems: p.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error, p=problems: p.append(str(error)))
        page.on("request", lambda r, q=requests: q.append(r.url))
        page.goto(page_file.as_uri())
        images = page.eval_on_selector_all(
            "img", "all => all.map(i => [i.alt, i.complete, i.naturalWidth, i.clientWidth])"
        )
        assert len(images) >= 1 + 5 + 8 + 2 + 2 + 2
        assert [i for i in images if not (i[1] and i[2] > 0 and i[3] > 200)] == []
        scroll = page.evaluate("document.documentElement.scrollWidth")
        assert scroll <= width, f"the page is {scroll} wide at {width}"
        tables = page.eval_on_selector_all("table", "all => all.map(t => !!t.closest('.wide'))")
        assert tables and all(tables)
        red = page.eval_on_selector("td .bad", "e => getComputedStyle(e).color")
        assert red == "rgb(192, 57, 43)"
        # In the first row of every section the last picture ends where the page does.
        ends = page.eval_on_selector_all(".panels", _FIRST_ROWS)
        assert len(ends) == 5 and all(abs(first - edge) < 2 for first, edge in ends), ends
        # Whatever is drawn at all widths of a screen is shown at the one that fits.
        radar = next(image[2:] for image in images if image[0].startswith("radar"))
        assert 1.4 < radar[0] / radar[1] < 2, radar
        bold = page.eval_on_selector_all(
            "td, td *",
            "all => all.filter(e => getComputedStyle(e).fontWeight >= 600).map(e => e.className)",
        )
        assert set(bold) == {"best"}
        assert problems == []
        assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
        page.close()
