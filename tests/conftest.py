"""Shared fixtures, and the rule that nothing is skipped unseen."""

from __future__ import annotations

import os
import shutil

# Small products gain nothing from threads, and spinning threads slow a busy machine down.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test fails by the clock: a busy machine is slow to draw examples, and to run them.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# Scripts of former versions, which import what was there then.
collect_ignore_glob = ["fixtures/*"]

ROOT = Path(__file__).parent.parent
REAL_DATA = Path(os.environ.get("SOBA_REAL_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture(params=["clip_rn50", "clip_vitb32"])
def whurs19(request):
    """Path of real CLIP features."""
    path = REAL_DATA / "whurs19" / f"{request.param}.npz"
    if not path.is_file():
        pytest.skip(f"no real features at {path}; set SOBA_REAL_DATA")
    return path


@pytest.fixture(scope="session")
def icon_folder(tmp_path_factory):
    """Five class folders of four icons each; not to be written to."""
    from soba.datasets.icons import icons

    folder = tmp_path_factory.mktemp("shared") / "icons"
    drawn = icons("source", per_class=4)
    for index, key in enumerate(drawn.keys[:20]):
        path = folder / drawn.class_names[drawn.labels[index]] / f"{key.replace('/', '-')}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.image(index).save(path)
    return folder


@pytest.fixture(scope="session")
def icon_stream(tmp_path_factory):
    """A flat folder of 48 icons of four classes, shuffled; not to be written to."""
    import numpy as np

    from soba.datasets.icons import icons

    folder = tmp_path_factory.mktemp("shared") / "stream"
    folder.mkdir()
    drawn = icons("source", per_class=12)
    for place, index in enumerate(np.random.default_rng(0).permutation(48)):
        name = drawn.class_names[drawn.labels[index]]
        drawn.image(int(index)).save(folder / f"{place:02d} {name}.png")
    return folder


@pytest.fixture
def store():
    """A folder that only fsspec can reach."""
    from archives import Store

    store = Store()
    yield store
    store.clear()


@pytest.fixture(scope="session")
def farm():
    """Where servers are started."""
    from server_farm import ServerFarm

    farm = ServerFarm()
    yield farm
    farm.close()


@pytest.fixture
def browser():
    """Chromium, driven by playwright."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium on this machine")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("no playwright in this environment")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--headless"]
        )
        yield chromium
        chromium.close()


def pytest_collection_modifyitems(config, items):
    if os.environ.get("SOBA_LONG") == "1":
        for item in items:
            if "long" in item.keywords:
                item.add_marker(pytest.mark.timeout(0))
        return
    items[:] = [item for item in items if "long" not in item.keywords]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("SOBA_NO_SKIP") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped where SOBA_NO_SKIP=1: {report.longrepr[-1]}"


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        reasons = sorted({str(report.longrepr[-1]) for report in skipped})
        terminalreporter.write_line(f"{len(skipped)} tests skipped: {'; '.join(reasons)}")
