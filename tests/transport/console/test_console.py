"""The console in a browser, against a gateway in a process of its own, with models that play scripts."""

import json
import re
import statistics
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped] # it has no types
from playwright.sync_api import Page, Request, WebSocketRoute, expect

from tests.transport.console.content import ASKING, BUSY, GUIDE, NASTY, NASTY_TEXT, SLOW
from tests.transport.console.stage import (
    ROWS,
    SCROLL,
    STANDARD,
    THEMES,
    Gateway,
    Watched,
    act,
    deliver,
    gateway,
    say,
    show,
    turns,
)
from tests.transport.http.tokens import listed
from warren.conversation.categories import Gates
from warren.reports.metrics import LoadSample

FIRST: Final = 2_000
"""Events that the page asks for before it draws a session."""
MANY: Final = 10_000
MOST_REQUESTS: Final = 30
MOST: Final = 80 * 1024
"""Requests and bytes, without their headers, until the first rows are there."""
FIRST_ROW: Final = """new MutationObserver((_, observer) => {
    if (!document.querySelector("%s")) return;
    observer.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => { window.firstRow = performance.now(); }));
}).observe(document, { childList: true, subtree: true });""" % ROWS.replace('"', "'")  # noqa: UP031 - braces
"""Notes when the first row is on the screen."""
FIRST_TIMES: Final = """[performance.getEntriesByName("first-contentful-paint")[0].startTime, window.firstRow]"""
DRAWN: Final = """window.drawn = {};
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    const title = this.canvas.closest(".card")?.querySelector("h2").firstChild.textContent;
    if (!String(text).includes(":")) (window.drawn[title] ??= []).push(text);
    return draw.call(this, text, ...place);
};"""
"""Notes the words of the axes of values, by chart."""


def test_a_session_is_begun_and_its_turn_streams(served: Gateway, watched: Watched) -> None:
    """The form makes a session and runs its first turn: reasoning, a tool with its result, and Markdown appear."""
    page = watched.page
    show(page, served)
    page.get_by_role("button", name="New session").first.click()
    page.get_by_label("First prompt").fill("Plan a burrow")
    page.get_by_label("Model", exact=True).last.fill(served.model("begun", GUIDE))
    page.get_by_text("More: title").click()
    page.get_by_label("Labels").last.fill("team=begun")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="Plan a burrow")).to_be_visible()
    expect(page.get_by_text("A plan for the afternoon")).to_be_visible()
    expect(page.locator(".tool .result")).to_contain_text("done in")
    expect(page.locator(".markdown table")).to_be_visible()
    expect(page.locator(".reasoning p")).to_be_hidden()
    page.locator(".reasoning summary").click()
    expect(page.locator(".reasoning p")).to_contain_text("The user wants a plan")
    say(page, "And the earth?")
    expect(turns(page)).to_have_count(2)
    expect(turns(page).last).to_contain_text("Carry it behind the hedge")
    expect(page.locator(".facts")).to_contain_text("team=begun")
    page.get_by_role("link", name="Context").click()
    expect(page.get_by_text("the window of scripted:begun.json is not known")).to_be_visible()
    expect(page.locator(".said").filter(has_text="And the earth?")).to_be_visible()
    page.get_by_role("link", name="Events").click()
    expect(page.locator(".events summary").first).to_contain_text("run_completed")


def test_calls_are_approved_and_denied_in_place(served: Gateway, watched: Watched) -> None:
    """A call that waits shows its buttons; the answer goes to the model, with the reason."""
    session_id = served.create(
        None, model=served.model("asks", ASKING), approvals=Gates(builtins="ask"), title="What time?"
    )
    page = watched.page
    show(page, served, "session", session_id)
    say(page, "What time is it?")
    expect(page.locator(".head .state")).to_have_text("Waits for approval")
    expect(page.locator(".turn .foot")).to_contain_text("Waits for approval, after")
    expect(page.locator(".turn .foot")).not_to_contain_text("Working")
    show(page, served)
    page.get_by_role("button", name="To approve").click()
    expect(page.locator(ROWS)).to_contain_text("What time?")
    page.go_back()
    page.get_by_role("button", name="Approve").click()
    expect(turns(page).first).to_contain_text("Thank you")
    expect(page.locator(".tool .result").first).to_contain_text("done")
    say(page, "And now?")
    page.get_by_role("button", name="Deny with a reason…").click()
    page.get_by_label("The reason").fill("you know it already")
    page.get_by_role("button", name="Deny", exact=True).last.click()
    expect(turns(page).last.locator(".tool .result")).to_have_text("denied")
    expect(turns(page).last).to_contain_text("Thank you")


def test_all_calls_that_wait_are_on_one_screen(served: Gateway, watched: Watched) -> None:
    """Each leads to its session, and is decided about in place: once, for the session, or with a reason."""
    page, names = watched.page, ("Burrow one", "Burrow two")
    for title in names:
        session_id = served.create(
            None, model=served.model("asks", ASKING), approvals=Gates(builtins="ask"), title=title
        )
        show(page, served, "session", session_id)
        say(page, "What time is it?")
        expect(page.locator(".head .state")).to_have_text("Waits for approval")
    page.get_by_role("link", name="Approvals").click()
    cards = page.locator(".card")
    expect(cards).to_have_count(2)
    expect(cards.first).to_contain_text("datetime_now")
    one, two = (cards.filter(has_text=title) for title in names)
    one.get_by_role("button", name="Always in this session").click()
    expect(cards).to_have_count(1)
    two.get_by_role("button", name="Deny with a reason…").click()
    page.get_by_label("The reason").fill("you know it already")
    page.get_by_role("button", name="Deny", exact=True).last.click()
    expect(page.get_by_role("status").filter(has_text="Nothing waits")).to_be_visible()


def test_schedules_and_triggers_are_on_one_screen(served: Gateway, watched: Watched) -> None:
    """Each shows when its prompt comes, and what became of the newest ones; it is paused, resumed and deleted there."""
    page, session_id = watched.page, served.create("hello", model="echo")
    watering = served.ask(lambda it: it.create_schedule("Water the plants", every="1s", session_id=session_id))
    served.ask(lambda it: it.create_schedule("What is new?", cron="30 9 * * mon-fri", zone="Europe/Berlin"))
    hook = served.ask(lambda it: it.create_trigger("Look at {body}", session_id=session_id))
    page.goto(served.url)
    page.get_by_role("link", name="Schedules").click()
    expect(page).to_have_title("Schedules and triggers · Warren")
    watered, asked = (page.locator(".card").filter(has_text=text) for text in ("Water the plants", "What is new?"))
    expect(watered).to_contain_text("Last: now: its turn has ended")
    expect(watered).to_contain_text("every 1s")
    expect(watered.get_by_text(re.compile("runs? before"))).to_be_visible()
    expect(asked).to_contain_text("30 9 * * mon-fri Europe/Berlin · next in")
    expect(asked).to_contain_text("No run yet.")
    watered.get_by_role("button", name="Pause").click()
    expect(watered.locator(".state")).to_have_text("paused")
    watered.get_by_role("button", name="Resume").click()
    expect(watered.locator(".state")).to_have_text("active")
    called = page.locator(".card").filter(has_text="Look at {body}")
    expect(called).to_contain_text(f"standard calls at /triggers/{hook.trigger_id}")
    expect(called).to_contain_text("No call yet.")
    assert deliver(served, hook) == 202
    expect(called).to_contain_text("its turn has ended")
    expect(called.get_by_role("link").first).to_have_attribute("href", f"#/session/{session_id}")
    for card in (watered, asked, called):
        card.get_by_role("button", name="Delete…").click()
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(card).to_have_count(0)
    expect(page.get_by_text("No other service sends prompts.")).to_be_visible()
    assert served.ask(lambda it: it.schedules()).schedules == ()
    assert watering.schedule_id not in page.content()
    assert hook.secret not in page.content()


def test_a_trigger_that_has_ended_says_why(served: Gateway, watched: Watched) -> None:
    """Its session is archived: the screen has the reason, and what became of the call."""
    page, session_id = watched.page, served.create("hello", model="echo")
    hook = served.ask(lambda it: it.create_trigger("Look at {body}", session_id=session_id))
    served.ask(lambda it: it.archive(session_id))
    assert deliver(served, hook) == 410
    show(page, served, "schedules")
    card = page.locator(".card").filter(has_text="Look at {body}")
    expect(card.locator(".state")).to_have_text("ended")
    expect(card.locator(".notice")).to_contain_text("archived")
    expect(card).to_contain_text("Last: now: failed: ")
    expect(card.get_by_role("button")).to_have_text(["Delete…"])
    served.ask(lambda it: it.delete_trigger(hook.trigger_id))
    expect(card).to_have_count(0)


def test_a_running_turn_is_steered_queued_behind_and_interrupted(served: Gateway, watched: Watched) -> None:
    """While a turn runs, words wait in the inbox and can be withdrawn; the button ends the turn."""
    session_id = served.create(None, model=served.model("long", SLOW))
    page = watched.page
    show(page, served, "session", session_id)
    say(page, "Tell me a story")
    expect(turns(page)).to_contain_text("piece 3")
    say(page, "Then another one")
    waiting = page.get_by_label("Inputs that wait").get_by_role("listitem")
    expect(waiting).to_contain_text("Then another one")
    page.get_by_label("How").select_option("context")
    say(page, "It rains.")
    expect(waiting).to_have_count(2)
    for left in (1, 0):
        waiting.first.get_by_role("button", name="Withdraw").click()
        expect(waiting).to_have_count(left)
    page.get_by_role("button", name="Interrupt").click()
    expect(turns(page).first).to_contain_text("Interrupted")
    expect(page.locator(".head .state")).to_have_text("Idle")


def test_a_session_is_forked_renamed_exported_and_deleted(served: Gateway, watched: Watched, tmp_path: Path) -> None:
    """The actions of the menu can be read back from the server."""
    session_id = served.create("Plan a burrow", model=served.model("forks", GUIDE), system_prompt="Be brief.")
    page = watched.page
    show(page, served, "session", session_id)
    say(page, "And the earth?")
    expect(turns(page)).to_have_count(2)
    for name in ("Markdown", "JSON"):
        with page.expect_download() as saved:
            act(page, f"Export as {name}")
        saved.value.save_as(tmp_path / name)
    assert "## A plan for the afternoon" in (tmp_path / "Markdown").read_text()
    assert json.loads((tmp_path / "JSON").read_text())["total"] == 7
    turns(page).first.get_by_role("button", name="Fork here").click()
    page.get_by_label("Title of the fork").fill("Only the plan")
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_role("heading", name="Only the plan")).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text("A plan for the afternoon")
    expect(page.get_by_role("log")).not_to_contain_text("And the earth?")
    act(page, "Rename…")
    page.get_by_label("Title").fill("A shorter plan")
    page.get_by_role("button", name="Rename", exact=True).click()
    expect(page.get_by_role("heading", name="A shorter plan")).to_be_visible()
    act(page, "Delete…")
    expect(page.get_by_role("button", name="Delete", exact=True)).to_be_disabled()
    page.get_by_label("to confirm").fill("delete")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    expect(page.locator(ROWS).filter(has_text="A shorter plan")).to_have_count(0)


def test_the_data_of_an_answer_is_below_it(served: Gateway, watched: Watched, tmp_path: Path) -> None:
    """It opens below the answer, also in a fork, which has messages and no events, and the export has it."""
    steps = {"steps": [{"text": "It is Ann.", "structured": ['{"name": "Ann"}']}]}
    session_id = served.create("who?", model=served.model("formed", steps), output_schema={"type": "object"})
    fork = served.ask(lambda service: service.fork(session_id)).state.session_id
    page = watched.page
    for each in (session_id, fork):
        show(page, served, "session", each)
        page.get_by_role("log").get_by_text("The answer as data").click()
        expect(page.get_by_role("log")).to_contain_text('{ "name": "Ann" }')
    with page.expect_download() as saved:
        act(page, "Export as Markdown")
    saved.value.save_as(tmp_path / "Markdown")
    assert '**The answer as data**\n\n```json\n{\n  "name": "Ann"\n}\n```' in (tmp_path / "Markdown").read_text()


def test_a_compaction_is_a_line_that_opens_the_summary(served: Gateway, watched: Watched) -> None:
    """The line says how many messages there were; behind it is the summary."""
    steps = {"loop": True, "steps": [{"text": "A long answer. " * 200}]}
    session_id = served.create("one", model=served.model("compacts", steps))
    page = watched.page
    show(page, served, "session", session_id)
    for number in range(2, 9):
        say(page, f"number {number}")
        expect(turns(page)).to_have_count(number)
        expect(page.locator(".head .state")).to_have_text("Idle")
    act(page, "Compact…")
    page.get_by_role("button", name="Compact", exact=True).click()
    line = page.get_by_role("button", name="Compacted:")
    line.click()
    expect(page.locator(".summary")).to_contain_text("A long answer.")
    page.get_by_role("link", name="Context").click()
    expect(page.get_by_text("Summary of the messages before")).to_be_visible()


def test_the_list_is_filtered_and_changed_in_bulk(served: Gateway, watched: Watched) -> None:
    """Sessions are found by text and label; those that are chosen are labelled, archived and deleted together."""

    async def make(service: Any) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(120):
                options = {"title": f"bulk row-{number:03}", "labels": {"half": str(number % 2)}}
                nursery.start_soon(partial(service.create_session, None, **options))

    served.ask(make)
    page = watched.page
    show(page, served)
    page.get_by_label("Text").fill("bulk")
    count = page.get_by_test_id("count")
    expect(count).to_contain_text(re.compile("^120 of"))
    assert page.locator(ROWS).count() < 60
    page.get_by_label("Label", exact=True).fill("half=1")
    expect(count).to_contain_text(re.compile("^60 of"))
    page.get_by_label("Text").fill("row-01")
    expect(count).to_contain_text(re.compile("^5 of"))
    page.get_by_label("Choose all that fit").check()
    page.get_by_role("button", name="Label…").click()
    page.get_by_label("Labels, as").fill("kept=yes")
    page.get_by_role("button", name="Label", exact=True).click()
    expect(page.get_by_text("5 sessions labelled.")).to_be_visible()
    page.get_by_label("Label", exact=True).fill("kept=yes")
    expect(count).to_contain_text(re.compile("^5 of"))
    page.get_by_role("button", name="Archive…").click()
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(page.get_by_text("5 sessions archived.")).to_be_visible()
    expect(count).to_contain_text(re.compile("^0 of"))
    page.get_by_role("button", name="Archived").click()
    expect(count).to_contain_text(re.compile("^5 of"))
    page.get_by_role("button", name="Delete…").click()
    page.get_by_label("to confirm").fill("delete 5")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("5 sessions deleted.")).to_be_visible()
    expect(count).to_contain_text(re.compile("^0 of"))
    listed = served.ask(lambda service: service.list(labels={"kept": "yes"}, include_archived=True))
    assert listed.sessions == ()
    for text, number in (("row-00", 5), ("", 60)):  # another address in the same tab
        page.evaluate("query => { location.hash = `#/?${query}`; }", f"label=half=0&text={text}")
        expect(page.get_by_label("Text")).to_have_value(text)
        expect(count).to_contain_text(re.compile(f"^{number} of"))


def test_text_is_shown_as_text(served: Gateway, watched: Watched) -> None:
    """Nothing in a prompt, an answer or a title becomes a part of the page, and a line of a megabyte is only long."""
    session_id = served.create(NASTY_TEXT, model=served.model("nasty", NASTY), title=NASTY_TEXT)
    page = watched.page
    show(page, served)
    expect(page.get_by_text(NASTY_TEXT).first).to_be_visible()
    show(page, served, "session", session_id)
    expect(page.locator(".said.user")).to_contain_text(NASTY_TEXT)
    expect(page.locator(".said.model")).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("#main img, #main script, #main a[href^=javascript]").count() == 0
    say(page, "A long line!")
    expect(turns(page).last.get_by_role("button", name="Show all 1,000,000 characters")).to_be_visible()
    say(page, "And now?")
    expect(turns(page)).to_have_count(3)
    page.get_by_role("button", name="Show all 1,000,000 characters").click()
    expect(page.get_by_role("button", name="Show less")).to_be_visible()


@pytest.mark.parametrize("turns_before", [3, pytest.param(13, marks=pytest.mark.soak)])
def test_a_long_session_opens_and_scrolls(served: Gateway, watched: Watched, turns_before: int) -> None:
    """A session of thousands of events opens at its end, reads the rest then, and goes back to its beginning."""
    model = served.model("busy", BUSY)

    async def make(service: Any) -> str:
        session_id: str = (await service.create_session(None, model=model, title="long")).session_id
        for number in range(turns_before):
            await service.start_turn(session_id, f"prompt {number}")
        return session_id

    session_id = served.ask(make)
    page = watched.page
    show(page, served)
    began = time.perf_counter()
    page.evaluate("id => { location.hash = `#/session/${id}`; }", session_id)
    expect(page.get_by_text(f"prompt {turns_before - 1}")).to_be_attached()
    expect(page.get_by_role("log")).to_have_attribute("aria-busy", "false")
    opened = time.perf_counter() - began
    log = page.get_by_role("log")
    expect(page.locator(".sentinel")).to_contain_text("earlier turn")  # the rest of the log is here
    frames = log.evaluate(SCROLL)
    events = served.ask(lambda service: service.start_turn(session_id, "the end")).last_seq
    print(f"{events} events opened in {opened:.2f} s, and were scrolled with {frames} frames a second")  # noqa: T201
    assert events > 800 * turns_before > FIRST
    while page.get_by_text("prompt 0", exact=True).count() == 0:
        log.evaluate("box => { box.scrollTop = 0; }")
        page.wait_for_timeout(20)


def test_the_first_rows_need_one_page_of_the_list(folder: Path, watched: Watched) -> None:
    """They are drawn with the first answer about the list, however many there are, and after few and small requests."""
    page, sent = watched.page, list[str]()
    with gateway(folder) as served:

        async def make(service: Any) -> None:
            async with trio.open_nursery() as nursery:
                for number in range(15):
                    nursery.start_soon(_make_ten, service, number)

        def held(client: WebSocketRoute) -> None:
            """Pass all on but requests for the list after the first one."""
            gateway = client.connect_to_server()

            def pass_on(message: str | bytes) -> None:
                method = json.loads(message)["method"]
                if method != "session/list" or method not in sent:
                    gateway.send(message)
                sent.append(method)

            client.on_message(pass_on)

        served.ask(make)
        page.route_web_socket(re.compile("/ws$"), held)
        asked: list[Request] = []
        page.on("requestfinished", lambda request: asked.append(request))  # noqa: PLW0108 - as in stage.py
        show(page, served)
        expect(page.locator(ROWS).first).to_contain_text("row")
        expect(page.get_by_test_id("count")).to_have_text("100 so far…")
        sizes = [request.sizes() for request in asked]
        body, headers = (sum(each[name] for each in sizes) for name in ("responseBodySize", "responseHeadersSize"))
        print(f"the first rows needed {len(asked)} requests, {body:,} bytes and {headers:,} of headers: {sent}")  # noqa: T201
        assert sorted(sent[:3]) == ["initialize", "session/list", "session/watch"]
        assert len(asked) <= MOST_REQUESTS
        assert 20_000 < body <= MOST
        page.goto("about:blank")  # before its gateway ends


@pytest.mark.soak
@pytest.mark.time_limit(120)
def test_a_loaded_gateway_is_on_the_page_within_a_second(folder: Path, watched: Watched) -> None:
    """With 1,000 sessions: the first paint, and the first rows; the median of several openings with a cold cache."""
    page = watched.page
    with gateway(folder) as served:

        async def make(service: Any) -> None:
            async with trio.open_nursery() as nursery:
                for number in range(100):
                    nursery.start_soon(_make_ten, service, number)

        served.ask(make)
        network, times = page.context.new_cdp_session(page), list[tuple[float, float]]()
        network.send("Network.enable")
        network.send("Network.setCacheDisabled", {"cacheDisabled": True})
        page.add_init_script(FIRST_ROW)
        for _ in range(5):
            page.goto("about:blank")
            show(page, served)
            expect(page.get_by_test_id("count")).to_have_text("1,000 of 1,000")
            times.append(tuple(page.evaluate(FIRST_TIMES)))
        page.goto("about:blank")  # before its gateway ends
    print(f"milliseconds to the first paint and to the first row: {times}")  # noqa: T201
    assert all(statistics.median(each) <= 1_000 for each in zip(*times, strict=True))


@pytest.mark.soak
@pytest.mark.time_limit(120)
def test_ten_thousand_sessions_are_listed_and_live(folder: Path, watched: Watched) -> None:
    """The list has all of them, scrolls, and shows a turn in the oldest one as it runs."""
    page = watched.page
    with gateway(folder) as served:
        model = served.model("slow", SLOW)

        async def make(service: Any) -> str:
            oldest: str = (await service.create_session(None, model=model, title="the oldest")).session_id
            async with trio.open_nursery() as nursery:
                for number in range(MANY // 10):
                    nursery.start_soon(_make_ten, service, number)
            return oldest

        oldest = served.ask(make)
        show(page, served)
        expect(page.get_by_test_id("count")).to_have_text("10,001 of 10,001")
        frames = page.get_by_role("grid").evaluate(SCROLL)
        print(f"{MANY} rows were scrolled with {frames} frames a second")  # noqa: T201
        page.get_by_label("Text").fill("the oldest")
        expect(page.locator(ROWS)).to_contain_text("the oldest")
        other = Watched(page.context.new_page())
        show(other.page, served, "session", oldest)
        say(other.page, "Go on")
        expect(page.locator(ROWS)).to_contain_text("Running")
        other.page.get_by_role("button", name="Interrupt").click()
        expect(page.locator(ROWS)).to_contain_text("Idle")
        for each in (page, other.page):
            each.goto("about:blank")  # before its gateway ends
    assert other.problems == []


async def _make_ten(service: Any, number: int) -> None:
    for index in range(10):
        await service.create_session(None, model="echo", title=f"row {number} {index}")


@pytest.mark.soak
def test_two_hundred_events_a_second_are_shown_as_they_come(served: Gateway, watched: Watched) -> None:
    """The text on the page is never far behind what has come over the wire."""
    page, came = watched.page, [0]
    pieces = 1_000
    model = served.model(
        "slow", {"steps": [{"chunks": [f"piece {number} " for number in range(pieces)], "chunk_delay": 0.005}]}
    )

    def note(payload: str | bytes) -> None:
        found = re.findall(r"piece (\d+) ", str(payload))
        came[0] = max(came[0], *map(int, found)) if found else came[0]

    page.on("websocket", lambda socket: socket.on("framereceived", note))
    session_id = served.create(None, model=model, title="fast")
    show(page, served, "session", session_id)
    say(page, "Go on")
    lags = list[int]()
    while not lags or came[0] < pieces - 1:
        page.wait_for_timeout(100)
        before = came[0]
        shown = re.findall(r"piece (\d+)", turns(page).last.inner_text())
        lags.append(before - int(shown[-1]) if shown else before)
    print(f"pieces that the page was behind: {sorted(lags)}")  # noqa: T201
    expect(turns(page).last).to_contain_text(f"piece {pieces - 1}")
    assert sorted(lags)[len(lags) // 2] < 100


def test_a_hit_of_the_memory_leads_to_its_turn(folder: Path, watched: Watched) -> None:
    """A search finds a text that left the context; its link opens the session at that turn, which shows its cost.

    Its score has parts, and it can be forgotten: alone, and with all of its session.
    """
    page = watched.page
    with gateway(folder, "--memory") as served:
        model = served.model("priced", {"loop": True, "steps": [{"text": "An answer of many words. " * 150}]})

        async def make(service: Any) -> Any:
            session_id = (await service.create_session("a badger digs", model=model)).session_id
            for number in range(2, 10):
                await service.start_turn(session_id, "the otter swims at dusk" if number == 3 else f"number {number}")
            await service.compact(session_id)
            while 3 not in {each.turn for each in await service.search_memory("the otter", session_id=session_id)}:  # noqa: ASYNC110
                await trio.sleep(0.05)  # the memory follows the store
            return (await service.read(session_id)).billing.usage

        usage = served.ask(make)
        show(page, served, "memory")
        page.get_by_label("Search the memory").fill("the otter swims at dusk: an answer")
        page.keyboard.press("Enter")
        page.get_by_role("link", name=re.compile(", turn 3$")).first.click()
        expect(turns(page)).to_have_count(9)
        expect(turns(page).nth(2)).to_be_focused()
        expect(turns(page).nth(2).locator(".user")).to_be_in_viewport()
        expect(turns(page).last).not_to_be_in_viewport()
        expect(turns(page).nth(2).locator(".foot")).to_contain_text("· $")
        spent = (usage.input_tokens * 1_000 + usage.output_tokens * 2_000) / 1_000_000
        expect(page.locator(".facts").first).to_contain_text(f"Cost${spent:,.2f}")
        page.go_back()
        page.evaluate("location.hash = '#/memory?text=badger'")
        expect(page.get_by_label("Search the memory")).to_have_value("badger")
        page.go_back()
        expect(page.get_by_label("Search the memory")).to_have_value("the otter swims at dusk: an answer")
        hits, axe = page.locator(".hits li"), Axe()
        hits.first.locator(".score summary").click()
        found = hits.count()
        assert found > 1
        expect(hits.first.locator(".score dl")).to_contain_text("100 %by likeness of the vectorsnot weighed")
        assert axe.run(page, options={"runOnly": STANDARD}).response["violations"] == []
        for way, word in (("This text…", ""), ("All of its session…", "forget")):
            hits.first.get_by_text("Forget", exact=True).click()
            hits.first.get_by_role("button", name=way).click()
            page.get_by_role("dialog").locator("input").fill(word) if word else None
            page.get_by_role("dialog").get_by_role("button", name="Forget").click()
            expect(page.get_by_role("dialog")).to_have_count(0)
            expect(hits).to_have_count(0 if word else found - 1)
        page.goto("about:blank")  # before its gateway ends


TYPED_AT_ONCE = """new MutationObserver((_, observer) => {
    const field = document.querySelector("[aria-label='Search the memory']");
    if (field === null) return;
    observer.disconnect();
    field.value = "a badger";
    field.dispatchEvent(new Event("input", { bubbles: true }));
}).observe(document, { childList: true, subtree: true })"""


def test_words_that_come_as_soon_as_the_search_is_there_stay(folder: Path, watched: Watched) -> None:
    """The screen sets its field by the address when that changes, and not once more when it has been drawn."""
    page = watched.page
    page.add_init_script(TYPED_AT_ONCE)
    with gateway(folder, "--memory") as served:
        show(page, served, "memory")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200)))")
        expect(page.get_by_label("Search the memory")).to_have_value("a badger")
        page.goto("about:blank")  # before its gateway ends


def until_drawn(page: Page, charts: int) -> None:
    """Wait for charts. Playwright's own wait evaluates a text in the page, which the page's policy refuses."""
    for _ in range(200):
        if page.evaluate("Object.keys(window.drawn).length") == charts:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"there are not {charts} charts")


def test_an_axis_of_whole_numbers_names_each_once(served: Gateway, watched: Watched) -> None:
    """The chart of the turns that run has no steps between 0 and 1."""
    page, at = watched.page, datetime.now(UTC)
    samples = [
        attrs.asdict(
            LoadSample(at - timedelta(seconds=ago), 0, 0, ago // 10, 8, 1, 0, None, None, None, None, None, None)
        )
        for ago in (10, 0)
    ]
    answer = json.dumps({"samples": samples, "seconds": 10, "processes": 1}, default=datetime.isoformat)

    def loaded(client: WebSocketRoute) -> None:
        """Answer for the load, and pass all else on."""
        gateway = client.connect_to_server()

        def pass_on(message: str | bytes) -> None:
            call = json.loads(message)
            if call["method"] == "metrics/history":
                client.send(f'{{"jsonrpc": "2.0", "id": {call["id"]}, "result": {answer}}}')
            else:
                gateway.send(message)

        client.on_message(pass_on)

    page.route_web_socket(re.compile("/ws$"), loaded)
    page.add_init_script(DRAWN)
    show(page, served, "load")
    expect(page.get_by_text("As numbers")).to_be_visible()
    until_drawn(page, 6)
    words = page.evaluate("window.drawn")["Turns that run"]
    assert words == ["0", "1"] * (len(words) // 2)  # a chart may be drawn more than once


def test_two_pages_show_the_same(served: Gateway, watched: Watched) -> None:
    """A turn that one page begins streams in the other, and the list of the other knows."""
    session_id = served.create(None, model=served.model("two", GUIDE), title="two pages")
    page, other = watched.page, Watched(watched.page.context.new_page())
    for each in (page, other.page):
        show(each, served, "session", session_id)
    say(page, "For both")
    for each in (page, other.page):
        expect(turns(each).first).to_contain_text("A plan for the afternoon")
    show(other.page, served)
    other.page.get_by_label("Text").fill("two pages")
    expect(other.page.locator(ROWS)).to_have_count(1)
    say(page, "Again")
    expect(other.page.locator(ROWS)).to_contain_text("7", use_inner_text=True)
    assert other.problems == []


def test_a_gateway_that_dies_is_found_again(folder: Path, watched: Watched) -> None:
    """The page says that the connection is lost, comes back by itself, and shows what happened meanwhile, once."""
    page = watched.page
    watched.allowed.append("ERR_CONNECTION_REFUSED")
    with gateway(folder) as served:
        session_id = served.create("one", model=served.model("again", GUIDE | {"steps": [{"text": "An answer."}]}))
        show(page, served, "session", session_id)
        expect(turns(page)).to_have_count(1)
        served.kill()
        expect(page.get_by_text("The connection is lost.")).to_be_visible()
        say(page, "said while it was away")
        served.start()
        expect(page.get_by_text("Connected again.")).to_be_visible()
        expect(turns(page)).to_have_count(2)
        expect(turns(page).last).to_contain_text("An answer.")
        expect(turns(page).last).to_have_class(re.compile("done"))
        served.ask(lambda service: service.start_turn(session_id, "from elsewhere"))
        expect(turns(page)).to_have_count(3)
        history = served.ask(lambda service: service.history(session_id))
        assert history.total == 6


def test_a_gateway_that_does_not_answer_is_tried_again(served: Gateway, watched: Watched) -> None:
    """A handshake without an end is given up: the page says so, and connects as soon as it is answered."""
    page = watched.page
    page.clock.install()
    page.add_init_script(
        "const Real = WebSocket; window.WebSocket = class { constructor() { window.WebSocket = Real; } close() {} };"
    )
    page.goto(served.url)
    expect(page.get_by_text("Connecting…").first).to_be_visible()
    page.clock.fast_forward(10_000)
    expect(page.get_by_test_id("status")).to_have_text("Connected")


def test_an_address_without_a_place_says_so(served: Gateway, watched: Watched) -> None:
    """A mistyped address shows no other place in its stead, also one that is not encoded well."""
    page, session_id = watched.page, served.create(None)
    known: list[tuple[str, ...]] = [("memory",), ("session", session_id, "events"), ()]
    for place in ("sesions", "session", "memory/more", f"session/{session_id}/contxt", "%E0%A4"):
        page.goto(f"{served.url}#/{place}")
        expect(page.get_by_role("heading", name="This address is unknown")).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text(f"#/{place}")
        assert page.locator("nav [aria-current]").count() == 0
    for parts in known:
        show(page, served, *parts)
        expect(page.get_by_role("heading", name="This address is unknown")).to_have_count(0)
    page.goto(f"{served.url}#/sesions")
    page.get_by_role("link", name="All sessions").click()
    expect(page.locator(ROWS).first).to_be_visible()


def test_a_notice_is_one_text(served: Gateway, watched: Watched) -> None:
    """Words with code between them stand in line, and break as a text does."""
    page = watched.page
    show(page, served, "memory")
    notice = page.locator("p.notice")
    expect(notice).to_have_text("This gateway has no memory: start it with --memory.")
    assert notice.inner_text() == notice.text_content()


def test_a_wrong_token_is_refused_and_a_right_one_stays_in_the_tab(folder: Path, watched: Watched) -> None:
    """Without the token there is a form; the token is in no address, and another tab does not have it."""
    page = watched.page
    watched.allowed += ["HTTP Authentication failed", "ERR_CONNECTION_REFUSED"]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("websocket", lambda socket: asked.append(socket.url))
    with gateway(folder, token="rabbits-only") as served:  # noqa: S106 - of a test
        page.goto(served.url)
        sign_in = page.get_by_role("button", name="Sign in")
        expect(sign_in).to_be_disabled()
        expect(page.get_by_role("button", name="Connect without a token")).to_have_count(0)
        page.get_by_label("Token").press("Enter")
        page.get_by_label("Token").fill("f")
        expect(sign_in).to_be_enabled()
        for token, heading in (("foxes", "Sign in"), ("rabbits-only", "Sessions")):
            page.get_by_label("Token").fill(token)
            page.keyboard.press("Enter")
            expect(page.get_by_role("heading", name=heading)).to_be_visible()
            if heading == "Sign in":
                expect(page.get_by_text("this token is not valid")).to_be_visible()
        page.reload()
        expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
        assert page.evaluate("localStorage.length + document.cookie.length") <= 1
        other = page.context.new_page()
        other.goto(served.url)
        expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert not any("rabbits" in url or "foxes" in url for url in asked)


def test_a_token_that_may_only_read_sees_no_actions_until_it_is_revoked(folder: Path, watched: Watched) -> None:
    """It sees the list and a session live, and no button that changes one; revoked, the page asks for another token."""
    page, tokens = watched.page, folder / "tokens.toml"
    watched.allowed += ["HTTP Authentication failed"]
    writer = listed(tokens, name="writer")
    admin = tokens.read_bytes()
    reader = listed(tokens, name="reader", scopes=("session:read",))
    with gateway(folder, "--token-file", str(tokens)) as served:
        served.token = writer
        session_id = served.create("one", model="echo", title="to be read")
        page.goto(served.url)
        page.get_by_label("Token").fill(reader)
        page.keyboard.press("Enter")
        expect(page.locator(ROWS)).to_contain_text("to be read")
        served.ask(lambda service: service.start_turn(session_id, "two"))
        expect(page.locator(ROWS)).to_contain_text("4", use_inner_text=True)
        expect(page.get_by_role("button", name="New session")).to_have_count(0)
        expect(page.locator("main input[type=checkbox]")).to_have_count(0)
        assert page.get_by_role("navigation").inner_text().split("\n") == [
            "Sessions",
            "Approvals",
            "Schedules",
            "Store and nodes",
        ]
        page.locator(ROWS).get_by_role("link").click()
        expect(turns(page)).to_have_count(2)
        expect(page.get_by_text("may read this session, and not write to it")).to_be_visible()
        expect(page.get_by_label("Message", exact=True)).to_have_count(0)
        expect(page.get_by_role("button", name="Fork here")).to_have_count(0)
        page.get_by_text("Actions", exact=True).click()
        assert page.locator(".menu button").all_inner_texts() == ["Export as Markdown", "Export as JSON"]
        (folder / "new").write_bytes(admin)
        (folder / "new").replace(tokens)
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        expect(page.get_by_text("has expired or was revoked")).to_be_visible()
        page.get_by_label("Token").fill(writer)
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Fork here")).to_have_count(2)
        page.goto("about:blank")  # before its gateway ends


def test_everything_is_done_with_keys(served: Gateway, watched: Watched) -> None:
    """A session is begun, found, opened, written to and left without a mouse."""
    page = watched.page
    model = served.model("keys", GUIDE)
    served.create(None, title="by keys alone", model=model)
    show(page, served)
    expect(page.locator(ROWS).first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("by keys alone")
    expect(page.locator(ROWS)).to_have_count(1)
    page.get_by_role("grid").focus()
    page.keyboard.press("Space")
    expect(page.get_by_text("1 chosen")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="by keys alone")).to_be_visible()
    page.keyboard.press("i")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.type("Hello")
    page.keyboard.press("Enter")
    expect(turns(page)).to_contain_text("A plan for the afternoon")
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("n")
    expect(page.get_by_label("First prompt")).to_be_focused()
    page.keyboard.type("by keys again")
    page.keyboard.press("Tab")
    page.keyboard.type(model)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="by keys again")).to_be_visible()


def test_every_screen_is_accessible(served: Gateway, watched: Watched) -> None:
    """Axe finds nothing against WCAG 2.2 AA on any screen of a phone, nor among the colours of the dark theme."""
    session_id = served.create("Plan a burrow", model=served.model("seen", GUIDE), labels={"team": "garden"})
    asking = served.create(None, model=served.model("asks", ASKING), approvals=Gates(builtins="ask"), title="It asks")
    served.ask(lambda it: it.create_schedule("Water the plants", every="1s", session_id=session_id))
    served.ask(lambda it: it.create_trigger("Look at {body}", paused=True))
    page, axe = watched.page, Axe()
    page.set_viewport_size({"width": 390, "height": 800})
    show(page, served, "session", asking)
    say(page, "What time is it?")
    places = (
        ("Approve", ("session", asking)),
        ("Fork here", ("session", session_id)),
        ("the window of", ("session", session_id, "context")),
        ("run_completed", ("session", session_id, "events")),
        ("left the context", ("memory",)),
        ("Last: ", ("schedules",)),
        ("Turns that run", ("health",)),
        ("As numbers", ("load",)),
        ("Plan a burrow", ()),
    )
    for words, parts in places:
        show(page, served, *parts)
        expect(page.get_by_text(words).first).to_be_visible()
        for theme, rules in THEMES.items():
            page.emulate_media(color_scheme=theme)
            found = axe.run(page, options={"runOnly": rules}).response["violations"]
            assert [(each["id"], each["nodes"][0]["failureSummary"]) for each in found] == [], (parts, theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, parts
    page.get_by_role("button", name="New session").first.click()
    page.get_by_text("More: title").click()
    assert axe.run(page, options={"runOnly": STANDARD}).response["violations"] == []
