"""Make screenshots of every screen at two widths in both themes: `make screenshots`, into build/screenshots.

The picture of the README is made by the way, as docs/console.png.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any, Final, Literal

import trio
from playwright.sync_api import Page, expect

from tests.transport.console.content import ASKING, GUIDE, SLOW
from tests.transport.console.stage import Gateway, browser, deliver, garden, gateway
from warren.conversation.categories import Gates
from warren.conversation.options import CompactionConfig

OUT: Final = Path("build/screenshots")
PICTURE: Final = Path("docs/console.png")
PICTURE_SIZE: Final = (1240, 640)
WIDTHS: Final = {"wide": (1360, 850), "phone": (390, 800)}
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
TITLES: Final = (
    *("Plan the new burrow along the south wall", "Translate the field guide", "Why did the night build fail?"),
    *(
        "Summarise the meeting of the gardeners",
        "Draft an answer to the neighbours",
        "Compare three ways to drain a bog",
    ),
    *("Review the change to the ledger", "Find the duplicate invoices of May", "Explain the new lease rules"),
)
REMEMBERED: Final = (
    ("Which plants keep the soil of a slope in place?", "And which of them like wet soil?", "Thank you, go on."),
    ("How deep is the soil behind the shed?", "Write the numbers down, please."),
)
"""Prompts of sessions that are compacted."""
SESSIONS: Final = 50
"""All of them, with those that work for others."""
RUNS: Final = 3
LABELS: Final[tuple[dict[str, str], ...]] = ({"team": "garden"}, {"team": "office", "topic": "invoices"}, {})


def fill(served: Gateway) -> dict[str, str]:
    """Make sessions of several kinds; return the ids of those that have a screen of their own."""
    guide, asking, slow = (served.model(*each) for each in (("guide", GUIDE), ("asking", ASKING), ("slow", SLOW)))

    async def many(service: Any) -> dict[str, str]:
        for number in range(36):
            labels = {**LABELS[number % 3], "n": str(number)} if number % 3 else {}
            await service.create_session(
                TITLES[number % len(TITLES)], model=(guide, asking)[number % 4 == 1], labels=labels
            )
        plan = await service.create_session(
            TITLES[0], model=guide, labels={"team": "garden"}, system_prompt="You plan gardens."
        )
        await service.start_turn(plan.session_id, "Where do I put the earth?")
        # Their first turns leave the context, so that the memory has them.
        for prompts in REMEMBERED:
            told = await service.create_session(
                prompts[0], model=guide, compaction=CompactionConfig(recent_turn_budget=0)
            )
            for prompt in prompts[1:]:
                await service.start_turn(told.session_id, prompt)
            await service.compact(told.session_id)
        found = {"plan": plan.session_id}
        for name, prompt, model, more in (
            ("asks", "What time is it where you are?", asking, {"approvals": Gates(builtins="ask")}),
            ("runs", "Tell me the long story of the meadow", slow, {}),
        ):
            found[name] = (await service.create_session(None, model=model, title=prompt, **more)).session_id
        return found

    found: dict[str, str] = served.ask(many)
    deliver(served, served.ask(_plans))
    return found


async def _plans(service: Any) -> Any:
    """Make schedules, one of which has sent prompts, and a trigger, which is returned."""
    session_id = (await service.create_session(None, model="echo", title="Water the plants")).session_id
    await service.create_schedule("What is new in the garden?", cron="30 9 * * mon-fri", zone="Europe/Berlin")
    often = await service.create_schedule("Water the plants", every="1s", session_id=session_id)
    while len((await service.schedules()).schedules[1].runs) < RUNS:  # noqa: ASYNC110 - there are no events of it
        await trio.sleep(0.1)
    await service.change_schedule(often.schedule_id, paused=True)
    return await service.create_trigger("Somebody has written about the garden: {body}", session_id=session_id)


def main() -> int:
    """Make the screenshots."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as name,
        gateway(Path(name), "--builtins", "--memory", "--model", "echo") as served,
        browser() as opened,
    ):
        starter = opened.new_page()
        found = {"garden": garden(served)}
        _begin(starter, served, found["garden"], "How is the garden?")
        expect(starter.get_by_text("Waits for 3 children").first).to_be_visible()
        found |= fill(served)
        _begin(starter, served, found["runs"], "Tell me the long story of the meadow.")
        _begin(starter, served, found["asks"], "What time is it?")
        for width, (columns, rows) in WIDTHS.items():
            for theme in THEMES:
                context = opened.new_context(viewport={"width": columns, "height": rows}, color_scheme=theme)
                page = context.new_page()
                for screen in SCREENS:
                    SCREENS[screen](page, served, found)
                    page.screenshot(path=out / f"{screen}-{width}-{theme}.png")
                context.close()
        if len(sys.argv) == 1:
            context = opened.new_context(viewport={"width": PICTURE_SIZE[0], "height": PICTURE_SIZE[1]})
            page = context.new_page()
            _list(page, served, found)
            page.screenshot(path=PICTURE)
            context.close()
    sys.stdout.write(f"screenshots are in {out}\n")
    return 0


def _begin(page: Page, served: Gateway, session_id: str, prompt: str) -> None:
    page.goto(f"{served.url}#/session/{session_id}")
    page.get_by_label("Message", exact=True).fill(prompt)
    page.keyboard.press("Enter")
    expect(page.locator(".turn").first).to_be_visible()


def _list(page: Page, served: Gateway, _found: dict[str, str]) -> None:
    page.goto(served.url)
    expect(page.get_by_test_id("count")).to_contain_text(f"{SESSIONS} of {SESSIONS}")


def _chosen(page: Page, served: Gateway, found: dict[str, str]) -> None:
    _list(page, served, found)
    for number in (1, 2):
        page.locator(".space .row input").nth(number).check()
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def _session(page: Page, served: Gateway, found: dict[str, str]) -> None:
    page.goto(f"{served.url}#/session/{found['plan']}")
    expect(page.locator(".turn")).to_have_count(2)
    page.locator(".tool summary").first.click()
    page.get_by_role("log").evaluate("box => { box.scrollTop = 0; }")


def _asks(page: Page, served: Gateway, found: dict[str, str]) -> None:
    page.goto(f"{served.url}#/session/{found['asks']}")
    expect(page.get_by_role("button", name="Approve")).to_be_visible()


def _runs(page: Page, served: Gateway, found: dict[str, str]) -> None:
    page.goto(f"{served.url}#/session/{found['runs']}")
    expect(page.get_by_role("button", name="Interrupt")).to_be_visible()


def _children(page: Page, served: Gateway, found: dict[str, str]) -> None:
    page.goto(f"{served.url}#/session/{found['garden']}/children")
    page.get_by_role("button", name="Children of All trees").click()
    expect(page.get_by_text("The ash")).to_be_visible()
    expect(page.get_by_text("1 to approve")).to_be_visible()
    expect(page.get_by_text("Waits for 3 children")).to_be_visible()


def _schedules(page: Page, served: Gateway, _found: dict[str, str]) -> None:
    page.goto(f"{served.url}#/schedules")
    expect(page.locator("[data-plan]")).to_have_count(3)
    expect(page.get_by_text("its turn has ended").last).to_be_visible()
    page.get_by_text(f"{RUNS - 1} runs before").click()


def _context(page: Page, served: Gateway, found: dict[str, str]) -> None:
    page.goto(f"{served.url}#/session/{found['plan']}/context")
    expect(page.locator(".bar")).to_be_visible()


def _events(page: Page, served: Gateway, found: dict[str, str]) -> None:
    page.goto(f"{served.url}#/session/{found['plan']}/events")
    expect(page.locator(".events details").first).to_be_visible()


def _memory(page: Page, served: Gateway, _found: dict[str, str]) -> None:
    page.goto(f"{served.url}#/memory?text=how deep is the soil")
    page.locator(".hits .score summary").first.click()
    page.locator(".hits .menu summary").nth(1).click()


def _forget(page: Page, served: Gateway, found: dict[str, str]) -> None:
    _memory(page, served, found)
    page.get_by_role("button", name="All of its session…").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def _health(page: Page, served: Gateway, _found: dict[str, str]) -> None:
    page.goto(f"{served.url}#/health")
    page.get_by_role("button", name="Examine the store").click()
    expect(page.get_by_text("Examined at")).to_be_visible()


def _load(page: Page, served: Gateway, _found: dict[str, str]) -> None:
    page.goto(f"{served.url}#/load")
    expect(page.locator(".chart canvas")).to_have_count(7)  # one of the children fails


def _new(page: Page, served: Gateway, found: dict[str, str]) -> None:
    _list(page, served, found)
    page.get_by_role("button", name="New session").click()
    page.get_by_text("More: title").click()


SCREENS: Final = {
    "sessions": _list,
    "chosen": _chosen,
    "session": _session,
    "approval": _asks,
    "running": _runs,
    "children": _children,
    "context": _context,
    "events": _events,
    "schedules": _schedules,
    "memory": _memory,
    "forget": _forget,
    "health": _health,
    "load": _load,
    "new": _new,
}

if __name__ == "__main__":
    sys.exit(main())
