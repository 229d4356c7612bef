"""The docs site: it builds strictly, its links resolve, and nothing comes from other hosts."""

import logging
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest
import yaml
from conftest import ROOT

# What a browser fetches by itself; <a href> waits for a click, and so does <link rel="canonical">.
FETCHED = {"src", "srcset", "data", "poster", "action"}
LINKED = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "preconnect",
    "dns-prefetch",
    "manifest",
}


class Page(HTMLParser):
    """The places a page links to, those a browser fetches, and the anchors that it has."""

    def __init__(self, path):
        super().__init__()
        self.links, self.fetched, self.anchors = set(), set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        named = {name: value or "" for name, value in attributes}
        self.anchors |= {named[key] for key in ("id", "name") if key in named}
        self.fetched |= {value for name, value in named.items() if name in FETCHED and tag != "a"}
        self.fetched |= set(re.findall(r"url\((.*?)\)", named.get("style", "")))
        if tag == "a" and "href" in named:
            self.links.add(named["href"])
        if tag == "link" and set(named.get("rel", "").split()) & LINKED:
            self.fetched.add(named["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, from a copy, so that neither caches nor pages are left in the repository."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "soba").symlink_to(ROOT / "soba")
    program = Path(sys.executable).with_name("zensical")
    built = subprocess.run(
        [program, "build", "--strict"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    said = re.sub(r"\x1b\[[0-9;]*m", "", built.stdout + built.stderr)
    assert built.returncode == 0, said
    assert "No issues found" in said and "griffe" not in said and "WARNING" not in said, said
    return folder / "out" / "site"


@pytest.fixture(scope="module")
def pages(site):
    return {str(path.relative_to(site)): Page(path) for path in site.rglob("*.html")}


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r"[\w/]+\.md", str(yaml.safe_load(text)["nav"])))
    docs = ROOT / "docs"
    assert listed == {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}


def test_internal_links_resolve(pages, site):
    checked = 0
    for name, page in pages.items():
        if name == "404.html":  # its links are of the root of whatever host serves it
            continue
        for link in page.links:
            if urlparse(link).scheme:
                continue
            target, anchor = urldefrag(urljoin(f"/{name}", link))
            path = unquote(target).lstrip("/") or "index.html"
            assert (site / path).is_file(), f"{name} links to {link}"
            if anchor and path in pages and not anchor.startswith("__"):
                assert unquote(anchor) in pages[path].anchors, f"{name} links to {link}"
            checked += 1
    assert checked > 500


def test_nothing_comes_from_other_hosts(pages, site):
    for name, page in pages.items():
        outside = {place for place in page.fetched if re.match(r"(https?:)?//", place)}
        assert not outside, f"{name} fetches {outside}"
        # The theme's script would fetch what draws these from another host.
        html = (site / name).read_text(encoding="utf-8")
        assert not re.search(r'class="(mermaid|glightbox|pyodide)', html), name
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"""(?:url\(|@import)\s*["']?(?:https?:)?//[^)"']*""", text), path


def test_the_reference_has_what_soba_exports(pages):
    import soba

    anchors = set().union(*(page.anchors for page in pages.values()))
    missing = {name for name in soba.__all__ if f"soba.{name}" not in anchors}
    assert missing <= {"Client"} and "soba.client.Client" in anchors, missing


def test_docstrings_parse_without_a_warning():
    """Headings of numpydoc that griffe knows; a paragraph under Parameters is no parameter."""
    import griffe

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("griffe")
    logger.addHandler(handler)
    try:
        package = griffe.load("soba", search_paths=[ROOT], docstring_parser="numpy")
        said.clear()
        parsed = sum(_parse(package))
    finally:
        logger.removeHandler(handler)
    assert parsed > 500
    assert not said, said


def _parse(thing):
    """1 for each docstring of a module, class or function, once it is parsed."""
    if thing.docstring:
        _ = thing.docstring.parsed
        yield 1
    for member in thing.members.values():
        if not member.is_alias:
            yield from _parse(member)
