"""The screen of the store and the nodes, and the list's filters for those who see more than one node or tenant."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped] # it has no types
from playwright.sync_api import Page, expect

from tests.transport.console.stage import ROWS, STANDARD, THEMES, Gateway, Watched, gateway, say, turns
from tests.transport.http.tokens import SCOPES, listed

OFTEN: Final = '[storage]\nlease = "1.5s"\n'
"""A node hears that it is to drain when it renews its leases."""


CUT: Final = """() => {
    const pen = document.createElement("canvas").getContext("2d");
    const wide = (each) => {
        pen.font = getComputedStyle(each).font;
        return pen.measureText(each.selectedOptions[0].text).width + 32;
    };
    const filters = document.querySelector(".filters");
    const [tabs, ...others] = filters.children;
    return [...filters.querySelectorAll("select")].filter((each) => wide(each) > each.offsetWidth)
        .concat(tabs.scrollWidth > tabs.clientWidth ? [tabs] : []).map((each) => each.ariaLabel)
        .concat(others.some((each) => each.offsetWidth > innerWidth / 2) && innerWidth > 1000 ? ["a line alone"] : []);
}"""
"""Returns the names of the filters whose words are cut off."""


def sign_in(page: Page, served: Gateway, token: str) -> None:
    """Open the console with a token."""
    page.goto(served.url)
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("status")).to_have_text("Connected")


def accessible(page: Page) -> None:
    """Check that axe finds nothing on a screen in either theme, and that it is no wider than the window."""
    for theme, rules in THEMES.items():
        page.emulate_media(color_scheme=theme)
        found = Axe().run(page, options={"runOnly": rules}).response["violations"]
        assert [(each["id"], each["nodes"][0]["failureSummary"]) for each in found] == [], theme
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@contextmanager
def two_nodes(folder: Path, tokens: Path) -> Iterator[tuple[Gateway, Gateway]]:
    """Run two nodes on one store."""
    flags = ("--model", "echo", "--token-file", str(tokens), "--node-name")
    with (
        gateway(folder, *flags, "first", settings=OFTEN) as first,
        gateway(folder, *flags, "second", settings=OFTEN) as second,
    ):
        yield first, second


@pytest.mark.time_limit(60)
def test_a_node_is_drained_by_its_name(folder: Path, watched: Watched) -> None:
    """Both nodes are shown with their sessions; the one whose name was typed ends, and its session goes on."""
    page, tokens = watched.page, folder / "tokens.toml"
    watched.allowed += ["HTTP Authentication failed"]
    operator = listed(tokens, scopes=(*SCOPES, "tenant:admin"))
    reader = listed(tokens, name="reader", scopes=("session:read", "metrics:read"))
    with two_nodes(folder, tokens) as (first, second):
        first.token = second.token = operator
        first.create("one", title="at the first")
        second.create("one", title="at the second")
        sign_in(page, first, operator)
        expect(page.locator(ROWS)).to_have_count(2)
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(CUT) == [], width
        page.keyboard.press("h")
        nodes = page.locator("[data-node]")
        expect(nodes).to_have_count(2)
        expect(page.locator("[data-node=second]")).to_contain_text("serving0 of")
        page.set_viewport_size({"width": 390, "height": 800})
        accessible(page)
        assert page.get_by_role("region", name="Table of the nodes").evaluate(
            "box => box.scrollWidth <= box.clientWidth"
        )
        page.set_viewport_size({"width": 1280, "height": 800})
        page.locator("[data-node=second]").get_by_role("link").click()
        expect(page.locator(ROWS)).to_have_count(1)
        expect(page.locator(ROWS)).to_contain_text("at the second")
        page.get_by_label("Node").select_option("")
        expect(page.locator(ROWS)).to_have_count(2)
        page.keyboard.press("h")
        page.get_by_role("button", name="Drain second…").press("Enter")
        confirm = page.get_by_role("button", name="Drain", exact=True)
        for typed in ("", "first", "secon"):
            page.get_by_label("to confirm").fill(typed)
            expect(confirm).to_be_disabled()
        page.get_by_label("to confirm").fill("second")
        page.keyboard.press("Enter")
        expect(page.get_by_text("second is asked to drain")).to_be_visible()
        expect(nodes).to_have_count(1)
        page.keyboard.press("s")
        page.get_by_label("Text").fill("at the second")
        page.locator(ROWS).get_by_role("link", name="at the second").click()
        say(page, "Go on")
        expect(turns(page)).to_have_count(2)
        expect(turns(page).last).to_contain_text("Go on")
        expect(turns(page).last).to_have_class("turn done")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").fill(reader)
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="Load")).to_be_visible()  # the others move when it comes
        page.get_by_role("link", name="Store and nodes").click()
        expect(nodes).to_have_count(1)
        expect(page.get_by_role("button", name="Drain")).to_have_count(0)
        page.goto("about:blank")  # before its gateway ends


def test_the_store_is_examined(served: Gateway, watched: Watched) -> None:
    """The button shows the sizes, the leases and what is wrong; there is nothing about nodes that there are not."""
    page = watched.page
    served.create("one", title="whole")
    damaged = served.create("one", title="damaged")
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{served.url}#/health")
    expect(page.locator("[data-node]")).to_have_count(1)
    expect(page.get_by_text("No process of these is a node")).to_be_visible()
    expect(page.get_by_text("files (SQLite)")).to_be_visible()
    page.get_by_role("button", name="Examine the store").click()
    expect(page.get_by_text("healthy", exact=True)).to_be_visible()
    for name in ("Log beside it", "Left on the disk", "Rows of events", "Files of messages"):
        expect(page.get_by_text(name)).to_be_visible()
    expect(page.get_by_role("region", name="Table of the leases")).to_contain_text("alive")
    db = apsw.Connection(str(served.folder / "store" / "sessions.sqlite3"))
    db.execute("DELETE FROM messages WHERE session = (SELECT key FROM sessions WHERE session_id = ?)", (damaged,))
    db.close()
    page.get_by_role("button", name="Examine again").press("Enter")
    expect(page.get_by_text("1 session: messages are missing")).to_be_visible()
    expect(page.get_by_text("1 problem", exact=True)).to_be_visible()
    accessible(page)


def test_an_operator_works_in_the_tenant_of_others(folder: Path, watched: Watched) -> None:
    """The list is that of the tenant, live and with its actions, until the operator goes back; the audit notes it."""
    page, tokens = watched.page, folder / "tokens.toml"
    watched.allowed += ["HTTP Authentication failed"]
    operator = listed(tokens, scopes=(*SCOPES, "tenant:admin"))
    theirs = listed(tokens, tenant="acme", name="ann")
    blind = listed(tokens, name="blind", scopes=("session:read",))
    with gateway(folder, "--model", "echo", "--token-file", str(tokens)) as served:
        for token, title in ((operator, "of ours"), (theirs, "of theirs")):
            served.token = token
            served.create("one", title=title)
        sign_in(page, served, operator)
        expect(page.locator(ROWS)).to_contain_text("of ours")
        tenant = page.get_by_label("Tenant")
        tenant.select_option("Another tenant…")
        page.get_by_label("Tenant", exact=True).last.fill("not a tenant")
        page.keyboard.press("Enter")
        expect(page.get_by_text("A tenant has 1 to 64 letters")).to_be_visible()
        page.get_by_label("Tenant", exact=True).last.fill("acme")
        page.keyboard.press("Enter")
        expect(page.get_by_test_id("tenant")).to_contain_text("Tenant acme")
        expect(page.locator(ROWS)).to_have_count(1)
        expect(page.locator(ROWS)).to_contain_text("of theirs")
        page.locator(ROWS).get_by_role("link").click()
        say(page, "Hello from the operator")
        expect(turns(page)).to_have_count(2)
        expect(turns(page).last).to_have_class("turn done")
        page.reload()
        expect(turns(page)).to_have_count(2)
        assert Axe().run(page, options={"runOnly": STANDARD}).response["violations"] == []
        page.get_by_role("button", name="Back to my own tenant").click()
        expect(page.locator(ROWS)).to_have_count(1)
        expect(page.locator(ROWS)).to_contain_text("of ours")
        expect(page.get_by_test_id("tenant")).to_have_count(0)
        tenant.focus()
        expect(tenant.get_by_role("option", name="Tenant acme")).to_be_attached()
        noted = served.ask(lambda service: service.audit(action="read"))
        assert {each.who for each in noted.entries} == {"default/ci"}
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").fill(blind)
        page.keyboard.press("Enter")
        expect(tenant).to_have_count(0)
        expect(page.get_by_role("link", name="Approvals")).to_be_visible()  # it moves the links behind it
        page.get_by_role("link", name="Store and nodes").click()
        expect(page.get_by_text("needs the scope metrics:read")).to_be_visible()
        page.goto("about:blank")  # before its gateway ends
