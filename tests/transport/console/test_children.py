"""The sessions that work for another one: the tree of them, the calls that wait for them, and the way back."""

import re
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped] # it has no types
from playwright.sync_api import Locator, Page, expect

from tests.transport.console.content import PART
from tests.transport.console.stage import (
    ROWS,
    SCROLL,
    THEMES,
    TOOLS,
    Gateway,
    Watched,
    act,
    garden,
    gateway,
    say,
    show,
    turns,
)

LONGEST_TASK: Final = "Math.round(Math.max(...window.tasks))"
MANY: Final = 1000
RESTS: Final[dict[str, Any]] = {"loop": True, "steps": [{"text": "All is well here.", "delay": 5}]}
LONGEST: Final = 500
"""Milliseconds for which the page may do nothing else, on a machine that has other work."""
WATCH_TASKS: Final = """() => {
  window.tasks = [0];
  const note = (list) => window.tasks.push(...list.getEntries().map((each) => each.duration));
  const watch = new PerformanceObserver(note);
  watch.observe({ entryTypes: ["longtask"] });
}"""


def line(page: Page, title: str) -> Locator:
    """Return the line of a child in the tree."""
    return page.locator(ROWS).filter(has_text=title)


def end(served: Gateway, session_id: str) -> None:
    """End what runs in a session, and below it."""
    served.ask(lambda service: service.interrupt(session_id))


def test_the_children_of_a_session_are_a_tree(served: Gateway, watched: Watched) -> None:
    """A level comes when it is opened, each child has its state as it is now, and leads to its session and back."""
    session_id, page = garden(served), watched.page
    show(page, served, "session", session_id)
    say(page, "How is the garden?")
    expect(page.locator(".head .state")).to_have_text("Waits for 3 children")
    expect(page.locator(".turn .foot")).to_contain_text("Waits for 3 children")
    for title, state in (("The roots", "its child has ended"), ("A tale", "waits for its child")):
        call = page.locator(".tool").filter(has_text=title)
        expect(call.locator(".result")).to_have_text(state)
        expect(call.get_by_role("link", name=f"Child session {title}")).to_be_visible()
    asked: list[str] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda sent: asked.append(str(sent))))
    page.reload()
    page.get_by_role("navigation", name="Parts").get_by_role("link", name="Children 5").click()
    expect(page.get_by_role("status").filter(has_text="5 children")).to_be_visible()
    expect(page.locator(".head .state")).to_have_text("Waits for 3 children")
    states = {
        "The roots": "Completed",
        "All trees": "Waits for 1 child",
        "The hole": "Failed",
        "The time": "To approve",
    }
    for title, state in {**states, "A tale": "Running"}.items():
        expect(line(page, title).locator(".state")).to_have_text(state)
    assert sum('"delegated_by"' in each for each in asked) == 1
    page.get_by_role("button", name="Children of All trees").click()
    expect(line(page, "The oak").locator(".state")).to_have_text("Completed")
    expect(line(page, "The ash")).to_have_attribute("aria-level", "2")
    line(page, "The time").get_by_role("link").click()
    page.get_by_role("button", name="Approve").click()
    expect(turns(page)).to_contain_text("Thank you")
    page.locator(".above").get_by_role("link", name="The garden").click()
    expect(page.get_by_role("heading", name="The garden")).to_be_visible()
    show(page, served, "session", session_id, "children")
    expect(line(page, "The time").locator(".state")).to_have_text("Completed")
    end(served, session_id)
    for title in ("All trees", "A tale"):
        expect(line(page, title).locator(".state")).to_have_text("Interrupted")
    page.get_by_role("button", name="Children of All trees").click()
    line(page, "The ash").get_by_role("link").click()
    expect(page.locator(".above")).to_have_text("Child of All trees, level 2")
    act(page, "Delete…")
    page.get_by_label("to confirm").fill("delete")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    show(page, served, "session", session_id, "children")
    page.get_by_role("button", name="Children of All trees").click()
    expect(line(page, "The oak")).to_be_visible()
    expect(line(page, "The ash")).to_have_count(0)


def test_the_tree_is_live_and_goes_with_keys(served: Gateway, watched: Watched) -> None:
    """A child that a program makes comes to the top by itself; arrows open and close, Enter leads to the session."""
    page, part = watched.page, served.model("part", PART)
    parent = served.create("hello", model=part, title="by keys", tools=TOOLS)
    show(page, served, "session", parent)
    expect(turns(page)).to_have_count(1)
    page.keyboard.press("d")
    expect(page.get_by_text("this session has delegated no work")).to_be_visible()
    made = [served.ask(partial(_delegate, parent, title)) for title in ("first", "second")]
    expect(page.locator(ROWS).first).to_contain_text("second")
    expect(page.locator(ROWS).nth(1).locator(".state")).to_have_text("Completed")
    served.ask(partial(_delegate, made[0], "below"))
    tree = page.get_by_role("treegrid", name="Children")
    tree.focus()
    page.keyboard.press("ArrowDown")
    expect(line(page, "first")).to_have_class(re.compile("current"))
    for _ in range(2):
        page.keyboard.press("ArrowRight")
        expect(line(page, "below")).to_be_visible()
    expect(line(page, "below")).to_have_class(re.compile("current"))
    page.keyboard.press("ArrowLeft")
    expect(line(page, "first")).to_have_class(re.compile("current"))
    page.keyboard.press("ArrowLeft")
    expect(line(page, "below")).to_have_count(0)
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="second")).to_be_visible()
    page.keyboard.press("d")
    expect(page.get_by_text("this session has delegated no work")).to_be_visible()


def test_the_list_is_narrowed_to_the_children_of_one(served: Gateway, watched: Watched) -> None:
    """Their number, their states and all that the list does, until all sessions are wanted again."""
    page, part = watched.page, served.model("part", PART)
    parent = served.create("hello", model=part, title="narrowed", tools=TOOLS)
    served.ask(partial(_delegate, parent, "only one"))
    show(page, served, "session", parent, "children")
    page.get_by_role("link", name="In the list of sessions").click()
    expect(page.get_by_test_id("count")).to_contain_text(re.compile("^1 of "))
    expect(page.locator(ROWS)).to_contain_text("only one")
    expect(page.get_by_role("status").filter(has_text="Only the children of narrowed")).to_be_visible()
    page.get_by_role("button", name="All sessions").click()
    expect(page.locator(ROWS).filter(has_text="narrowed")).to_be_visible()


def test_the_tree_is_accessible(served: Gateway, watched: Watched) -> None:
    """Axe finds nothing against WCAG 2.2 AA on a phone, nor among the colours of the dark theme."""
    session_id, page, axe = garden(served), watched.page, Axe()
    page.set_viewport_size({"width": 390, "height": 800})
    show(page, served, "session", session_id)
    say(page, "How is the garden?")
    for words, parts in (("Child session The roots", ()), ("To approve", ("children",))):
        show(page, served, "session", session_id, *parts)
        expect(page.get_by_text(words).first).to_be_visible()
        if parts:
            page.get_by_role("button", name="Children of The hole").click()
            page.get_by_role("button", name="Children of All trees").click()
            expect(page.get_by_text("It has no children.")).to_be_visible()
            expect(line(page, "The oak")).to_be_visible()
        for theme, rules in THEMES.items():
            page.emulate_media(color_scheme=theme)
            found = axe.run(page, options={"runOnly": rules}).response["violations"]
            assert [(each["id"], each["nodes"][0]["failureSummary"]) for each in found] == [], (parts, theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, parts
    end(served, session_id)


def test_states_after_a_gateway_was_killed(folder: Path, watched: Watched) -> None:
    """The tree goes on, and a child that waits for a decision is still among those to approve."""
    page = watched.page
    watched.allowed += ["ERR_CONNECTION_REFUSED"]
    with gateway(folder, "--builtins") as served:
        session_id = garden(served)
        show(page, served, "session", session_id)
        say(page, "How is the garden?")
        expect(page.locator(".head .state")).to_have_text("Waits for 3 children")
        page.get_by_role("link", name="Children 5").click()
        expect(line(page, "The time").locator(".state")).to_have_text("To approve")
        served.kill()
        expect(page.get_by_test_id("status")).to_have_text("Disconnected")
        served.start()
        expect(page.get_by_test_id("status")).to_have_text("Connected")
        for child in served.ask(lambda it: it.list(delegated_by=session_id)).sessions:
            served.ask(partial(_load, child.session_id))
        served.ask(partial(_delegate, session_id, "made later"))
        expect(page.locator(ROWS).first).to_contain_text("made later")
        for title, state in (("The time", "To approve"), ("All trees", "Waits for 1 child"), ("A tale", "Running")):
            expect(line(page, title).locator(".state")).to_have_text(state)
        page.goto("about:blank")  # before its gateway ends


def test_a_level_comes_page_by_page(served: Gateway, watched: Watched) -> None:
    """The hundred children that changed last come first, and the others when they are asked for."""
    page, part = watched.page, served.model("part", PART)
    parent = served.create("hello", model=part, title="paged", tools=TOOLS)
    served.ask(partial(_delegate_many, parent, 130, None))
    show(page, served, "session", parent, "children")
    expect(page.get_by_role("status").filter(has_text="The 100 children that changed last")).to_be_visible()
    page.get_by_role("treegrid").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text=re.compile("^130 children$"))).to_be_visible()
    expect(page.get_by_role("button", name="Show more")).to_have_count(0)
    page.keyboard.press("End")
    expect(page.locator(f"{ROWS}.current")).to_have_attribute("aria-rowindex", "131")
    assert page.locator(ROWS).count() < 60


@pytest.mark.soak
@pytest.mark.time_limit(240)
def test_a_thousand_children_do_not_hold_up_the_page(folder: Path, watched: Watched) -> None:
    """While they are made, run and end, and while all of them are shown."""
    page = watched.page
    with gateway(folder, "--builtins") as served:
        part, rests = served.model("part", PART), served.model("seen", RESTS)
        parent = served.create("hello", model=part, title="a thousand", tools=TOOLS)
        show(page, served, "session", parent, "children")
        expect(page.get_by_text("this session has delegated no work")).to_be_visible()
        page.evaluate(WATCH_TASKS)
        served.ask(partial(_delegate_many, parent, MANY, rests))
        expect(page.get_by_role("status").filter(has_text="1,000 children")).to_be_visible()
        expect(page.get_by_text("1,000 completed")).to_be_visible(timeout=90_000)
        times = [page.evaluate(LONGEST_TASK)]
        page.reload()
        page.evaluate(WATCH_TASKS)
        page.get_by_role("treegrid").focus()
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        expect(page.get_by_text("1,000 completed")).to_be_visible()
        frames = page.get_by_role("treegrid").evaluate(SCROLL)
        times.append(page.evaluate(LONGEST_TASK))
        page.goto("about:blank")  # before its gateway ends
    print(f"{MANY} children held up the page for {times} ms at most, and were scrolled with {frames} frames a second")  # noqa: T201
    assert max(times) <= LONGEST


async def _delegate(parent: str, title: str, service: Any) -> str:
    made: str = await service.delegate(parent, title, title=title)
    return made


async def _load(session_id: str, service: Any) -> None:
    await service.resume(session_id)


async def _delegate_many(parent: str, number: int, model: str | None, service: Any) -> None:
    async def some(first: int) -> None:
        for at in range(first, number, 10):
            await service.delegate(parent, f"part {at}", model=model)

    async with trio.open_nursery() as nursery:
        for first in range(10):
            nursery.start_soon(some, first)
