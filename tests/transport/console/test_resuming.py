"""A turn that goes on after an interruption, as the console shows it."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import WebSocketRoute, expect

from tests.support.envelopes import KEPT, LATER, envelope, resumed_turn
from tests.transport.console.stage import ROWS, Gateway, Watched, gateway, say, show, turns
from warren.conversation import codec
from warren.conversation.events import (
    Envelope,
    Event,
    RunCompleted,
    RunStarted,
    SessionMoved,
    TextDelta,
    ToolApprovalRequested,
    ToolExecutionCompleted,
    TurnResumed,
    TurnStarted,
)
from warren.conversation.usage import Usage
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.dialect import EVENT

TAKE = """async (envelopes) => {
    const { Conversation } = await import("./conversation.js");
    const told = new Conversation();
    for (const each of envelopes) told.take(each);
    return told.turns.map(({ state, entries, steps }) => ({
        state,
        steps: steps.length,
        entries: entries.map((each) => [each.kind, each.text ?? each.id ?? each.times, each.result ?? null]),
    }));
}"""
"""Returns the turns that the page makes of events."""


def as_told(served: Gateway, watched: Watched, events: Sequence[Envelope]) -> list[Any]:
    """Return the turns that the console makes of events."""
    watched.page.goto(served.url)
    found: list[Any] = watched.page.evaluate(TAKE, [on_the_wire(each) for each in events])
    return found


def on_the_wire(told: Envelope) -> Any:
    """Return an event as a client gets it."""
    return codec.parse(codec.encode(told))


def test_only_what_was_kept_stays(served: Gateway, watched: Watched) -> None:
    """Text, reasoning, calls and results of steps that were not kept go; a line says that the turn goes on."""
    (turn,) = as_told(served, watched, resumed_turn())
    assert turn == {
        "state": "done",
        "steps": 2,
        "entries": [
            ["text", "let me see", None],
            ["tool", "c1", "it may have run"],
            ["resumed", 1, None],
            ["text", "whole", None],
        ],
    }


def test_a_turn_that_is_interrupted_twice(served: Gateway, watched: Watched) -> None:
    """What the second process has kept stays, with its line; what it has lost goes as well."""
    done = ToolExecutionCompleted("c1", "look", "seen", is_error=False, duration_ms=3)
    second: list[Event] = [TurnResumed(1, len(KEPT)), done, TextDelta("quarter")]
    third: list[Event] = [TurnResumed(2, LATER + 1), TextDelta("whole"), RunCompleted("s1", "whole", Usage())]
    told = [
        *[each for each in resumed_turn() if each.seq < LATER],
        *(envelope(seq, event) for seq, event in enumerate(second, LATER)),
        *(envelope(seq, event) for seq, event in enumerate(third, 2 * LATER)),
    ]
    (turn,) = as_told(served, watched, told)
    assert turn["entries"] == [
        ["text", "let me see", None],
        ["tool", "c1", "seen"],
        ["resumed", 1, None],
        ["resumed", 2, None],
        ["text", "whole", None],
    ]


def test_a_turn_whose_end_the_store_has_lost(served: Gateway, watched: Watched) -> None:
    """It is one turn, which goes on; an earlier turn is not mistaken for it."""
    whole, started = resumed_turn(), envelope(3 * LATER, RunStarted("s1", "next"))
    (turn,) = as_told(served, watched, [*whole, envelope(3 * LATER, TurnResumed(2, len(KEPT)))])
    assert (turn["state"], turn["entries"][-1]) == ("running", ["resumed", 2, None])
    *before, turn = as_told(served, watched, [*whole, started, envelope(4 * LATER, TurnResumed(1, 3 * LATER))])
    assert ([each["state"] for each in before], turn["entries"]) == (["done"], [["resumed", 1, None]])
    *before, turn = as_told(served, watched, [*whole, envelope(4 * LATER, TurnResumed(1, 3 * LATER))])
    assert ([each["state"] for each in before], turn["entries"]) == (["done"], [["resumed", 1, None]])


def teller(served: Gateway, watched: Watched) -> Callable[[Sequence[Envelope]], None]:
    """Show a session without a turn, and return a function that sends events of it to the page."""
    page, session_id, sockets, answers = watched.page, served.create(None), list[WebSocketRoute](), list[str | bytes]()

    def through(socket: WebSocketRoute) -> None:
        def answer(message: str | bytes) -> None:
            socket.send(message)
            if "after_seq" in str(message):
                answers.append(message)

        sockets.append(socket)
        socket.connect_to_server().on_message(answer)

    def tell(events: Sequence[Envelope]) -> None:
        for each in events:
            data = on_the_wire(each) | {"session_id": session_id}
            sockets[-1].send(jsonrpc.notification(EVENT, data).decode())

    page.route_web_socket(re.compile("/ws$"), through)
    show(page, served, "session", session_id)
    expect(page.get_by_text("No turn yet")).to_be_visible()
    while len(answers) < 2:
        page.wait_for_timeout(10)
    return tell


def test_a_call_that_may_have_run(served: Gateway, watched: Watched) -> None:
    """The one who decides on it is told that it may have run; other calls that wait do not say so."""
    page, tell = watched.page, teller(served, watched)
    news: list[Event] = [RunStarted("s1", "go"), TurnStarted(0)]
    news += [ToolApprovalRequested(f"c{number}", "pay", {}, "mcp", 60_000, None, number == 1) for number in range(2)]
    tell([envelope(seq, event) for seq, event in enumerate(news, 1)])
    expect(page.locator(".approval")).to_have_count(2)
    expect(page.locator(".approval", has_text="It may have run already: the process ended during it.")).to_have_count(1)


def test_the_page_of_a_session_whose_turn_goes_on(served: Gateway, watched: Watched) -> None:
    """The text is gone from the page as soon as it is taken back, and the rest follows below a line."""
    page, tell = watched.page, teller(served, watched)
    told = resumed_turn()
    marker = envelope(told[len(told) - 9].seq, SessionMoved(5, 12))

    tell([each for each in told if each.seq < LATER])
    expect(turns(page).locator(".said.model")).to_have_text([re.compile("let me see"), re.compile("half")])
    tell([marker])
    expect(turns(page)).to_contain_text("The session goes on in another process")
    tell([each for each in told if each.seq == LATER])
    expect(turns(page).locator(".said.model")).to_have_text([re.compile("let me see")])
    expect(turns(page).locator(".resumed")).to_have_text("The turn goes on after an interruption (1).")
    tell([each for each in told if each.seq > LATER])
    expect(turns(page).locator(".said.model")).to_have_text([re.compile("let me see"), re.compile("whole")])
    expect(turns(page).locator(".tool")).to_have_count(1)


@pytest.mark.time_limit(90)
def test_a_gateway_that_is_killed_in_the_middle_of_an_answer(folder: Path, watched: Watched) -> None:
    """The page comes back by itself, takes back the half of the answer, and shows the whole one once."""
    page = watched.page
    watched.allowed += ["WebSocket connection to", "Failed to load resource"]
    pieces = [f"piece {number} " for number in range(40)]
    steps = [{"text": "Let me see.", "tool_calls": [{"name": "datetime_now"}]}, {"chunks": pieces, "chunk_delay": 0.05}]
    with gateway(folder, "--builtins") as served:
        model = served.model("slow", {"steps": steps})
        session_id = served.create(None, model=model)
        show(page, served, "session", session_id)
        say(page, "go")
        said = turns(page).locator(".said.model")
        expect(said.last).to_contain_text("piece 9")
        served.kill()
        served.start()
        expect(turns(page).locator(".resumed")).to_have_text("The turn goes on after an interruption (1).")
        expect(said).to_have_text([re.compile("Let me see"), re.compile(rf"{''.join(pieces).strip()}\s*$")])
        expect(turns(page).locator(".tool")).to_have_count(1)
        expect(turns(page).locator(".foot")).not_to_contain_text("Working")
        expect(turns(page)).to_have_count(1)


@pytest.mark.time_limit(90)
def test_a_turn_that_no_process_can_go_on_with(folder: Path, watched: Watched) -> None:
    """The list and the session's page say that it is parked, until its model is back and it goes on by itself."""
    page = watched.page
    watched.allowed += ["WebSocket connection to", "Failed to load resource"]
    steps = [{"tool_calls": [{"name": "datetime_now"}]}, {"chunks": ["half ", "an answer"], "chunk_delay": 1}]
    with gateway(folder, "--builtins", "--model", "echo") as served:
        model = served.model("slow", {"steps": steps})
        session_id = served.create(None, model=model, title="to be parked")
        show(page, served, "session", session_id)
        say(page, "go")
        expect(turns(page).locator(".said.model").last).to_contain_text("half")
        served.kill()
        script = (folder / "slow.json").rename(folder / "away.json")
        served.start()
        show(page, served)
        expect(page.locator(ROWS)).to_contain_text("Parked")
        page.get_by_role("button", name="Parked").click()
        page.locator(ROWS).get_by_role("link", name="to be parked").click()
        expect(page.locator(".state.parked")).to_be_visible()
        served.kill()
        script.rename(folder / "slow.json")
        served.start()
        expect(turns(page).locator(".said.model").last).to_contain_text("half an answer")
        expect(page.locator(".state.parked")).to_have_count(0)
        expect(turns(page)).to_have_count(1)
