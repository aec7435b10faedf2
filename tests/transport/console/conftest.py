"""One browser and one gateway for all tests of a module, and for each a page whose browser complains of nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.transport.console.stage import Gateway, Watched, browser, gateway


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    """Run a browser."""
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, opened: Browser) -> Iterator[Gateway]:  # noqa: ARG001 - or skip
    """Run a gateway whose sessions have the built-in tools; the models of `local` are on no list, and not called."""
    local = '[providers.local]\nbase_url = "http://127.0.0.1:9/v1"\n'
    with gateway(tmp_path_factory.mktemp("console"), "--builtins", "--model", "echo", settings=local) as running:
        yield running


@pytest.fixture
def watched(opened: Browser) -> Iterator[Watched]:
    """Open a page; afterwards nothing may have been complained of."""
    context = opened.new_context(viewport={"width": 1280, "height": 800})
    watched = Watched(context.new_page())
    yield watched
    context.close()
    assert watched.problems == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder for a gateway of the test's own."""
    return tmp_path
