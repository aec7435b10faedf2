"""The site of the documentation: each page is in its navigation, and its search finds words."""

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import expect

from tests.conftest import ROOT
from tests.transport.console.stage import browser

SETTINGS = ROOT / "docs" / "site" / "mkdocs.yml"


def pages(nav: Any) -> Iterator[str]:
    """Yield the pages of a navigation."""
    for entry in nav:
        for where in [entry] if isinstance(entry, str) else entry.values():
            if isinstance(where, str):
                yield where
            else:
                yield from pages(where)


def test_each_page_is_in_the_navigation() -> None:
    """And once; the building of the site looks at the links in them."""
    found = list(pages(yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))["nav"]))
    there = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(found) == sorted({*there, "CONTRIBUTING.md", "CHANGELOG.md"})


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder for a body."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.soak
def test_the_search_finds_a_page(tmp_path: Path) -> None:
    """In a browser; nothing is fetched from elsewhere."""
    command = (sys.executable, "-m", "mkdocs", "build", "--quiet", "-f", str(SETTINGS), "-d", str(tmp_path))
    subprocess.run(command, check=True, env={"NO_MKDOCS_2_WARNING": "1"})
    with served(tmp_path) as url, browser() as chromium:
        page = chromium.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}/index.html")
        expect(page.locator(".md-search-result__meta")).to_have_text("Type to start searching")  # it is ready
        page.keyboard.press("/")
        page.keyboard.type("traceparent")
        result = page.locator(".md-search-result__link").first
        result.wait_for()
        assert "traces.html" in (result.get_attribute("href") or "")
    assert [each for each in asked if not each.startswith(url)] == []
