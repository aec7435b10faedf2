"""The console below a path, behind nginx and haproxy."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.reverse_proxies import PREFIX, Program, documented, started
from tests.transport.console.stage import Watched, gateway, say, turns

PUBLIC = f'[serve]\npublic_url = "https://example.org{PREFIX}"\n'


@pytest.mark.parametrize(("program", "settings"), [("nginx", PUBLIC), ("nginx", ""), ("haproxy", PUBLIC)])
def test_the_console_below_a_path(program: Program, settings: str, folder: Path, watched: Watched) -> None:
    """The root leads to the page, which finds its files and its WebSocket; nginx needs no setting of the gateway."""
    page = watched.page
    with (
        gateway(folder, "--model", "echo", settings=settings) as served,
        started(program, documented(program), served.port) as front,
    ):
        session_id = served.create("one")
        page.goto(f"http://127.0.0.1:{front}{PREFIX}/")
        page.wait_for_url(f"http://127.0.0.1:{front}{PREFIX}/console/**")
        page.goto(f"http://127.0.0.1:{front}{PREFIX}/console/#/session/{session_id}")
        expect(turns(page)).to_contain_text("one")
        say(page, "still there?")
        expect(turns(page).last).to_contain_text("still there?")
        page.close()
