"""A gateway as a process, its sessions, and a browser in front of its console."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import httpx
import pytest
import trio
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

from tests.support.signing import standard
from tests.transport.console.content import ASKING, BREAKS, PART, SLOW, delegating
from warren.client import connect
from warren.conversation.categories import Gates

MISSING: Final = "Chromium is not installed (Debian: apt-get install chromium): the tests of the console are left out"
FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-dev-shm-usage", "--force-prefers-reduced-motion"),
)
SCRIPTS: Final = (
    *(
        "again",
        "asking",
        "asks",
        "begun",
        "breaks",
        "busy",
        "compacts",
        "forks",
        "formed",
        "guide",
        "keys",
        "lead",
        "long",
        "nasty",
        "office",
        "part",
        "seen",
        "slow",
    ),
    *("two", "priced"),
)
"""The scripts that clients may name: the settings of the gateway list them."""
TOOLS: Final = ("delegate", "datetime_now")
"""The tools of sessions that have children."""
ROWS: Final = ".space .row"
STANDARD: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
THEMES: Final[dict[Literal["light", "dark"], list[str]]] = {"light": STANDARD, "dark": ["color-contrast"]}
"""The rules for each theme: only the colours of the second one are others."""
SCROLL: Final = """async (box) => {
    const began = performance.now();
    let frames = 0;
    while (performance.now() - began < 500) {
        box.scrollTop += box.scrollTop > 4000 ? -40 : 40;
        await new Promise(requestAnimationFrame);
        frames += 1;
    }
    return frames * 2;
}"""
"""Scrolls a box for half a second; returns the frames a second."""
LIMIT: Final = 15_000
"""Milliseconds that the page may take for anything: machines of tests may be busy."""


def chromium() -> str | None:
    """Return the path of the system's Chromium; None if there is none."""
    return os.environ.get("WARREN_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def browser() -> Iterator[Browser]:
    """Run the system's Chromium without a window; leave the test out, and say so, if there is none."""
    path = chromium()
    if path is None:
        pytest.skip(MISSING)
    expect.set_options(timeout=LIMIT)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield opened
        finally:
            opened.close()


@attrs.define
class Gateway:
    """`warren serve` on a port that stays the same when it is started again.

    Attributes:
        folder: the folder of its store and of the scripts that its models play.
        flags: flags of the command.
        token: the token of its clients; None for none.
        settings: the beginning of its configuration file.
    """

    folder: Path
    flags: tuple[str, ...] = ()
    token: str | None = None
    settings: str = ""
    port: int = attrs.field(init=False)
    _process: subprocess.Popen[str] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    @property
    def url(self) -> str:
        """The address of the console."""
        return f"http://127.0.0.1:{self.port}/console/"

    def model(self, name: str, script: Mapping[str, Any]) -> str:
        """Return the name of a model that plays a script; `name` is one of SCRIPTS."""
        (self.folder / f"{name}.json").write_text(json.dumps(script), encoding="utf-8")
        return self.script(name)

    def script(self, name: str) -> str:
        """Return the name of the model of a script."""
        return f"scripted:{self.folder / name}.json"

    def start(self) -> None:
        """Start the server and wait until it listens."""
        listed = self.settings + "".join(f'[models."{self.script(name)}"]\n' for name in SCRIPTS)
        listed += "input = 1_000\noutput = 2_000\n"  # dollars for a million tokens of the last one, `priced`
        (self.folder / "config.toml").write_text(listed, encoding="utf-8")
        flags = ["--config", str(self.folder / "config.toml")]
        flags += [*("--port", str(self.port), "--store", str(self.folder / "store"), "--drain", "4s"), *self.flags]
        if self.token is not None:
            (self.folder / "token").write_text(self.token)
            flags += ["--token-file", str(self.folder / "token")]
        command = [sys.executable, "-m", "warren", "serve", *flags]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("WARREN_")}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=self.folder, env=environ
        )
        assert self._process.stdout is not None
        assert "listening" in self._process.stdout.readline()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the server and wait for its end; nothing happens if it does not run."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.communicate()
            self._process = None

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """Return what a client of this gateway gets: `call` is given the service and returns an awaitable."""

        async def run() -> Any:
            async with connect(f"ws://127.0.0.1:{self.port}", token=self.token) as service:
                return await call(service)

        # Playwright has an event loop of its own in this thread.
        return _in_thread(lambda: trio.run(run))

    def create(self, prompt: str | None, **options: Any) -> str:
        """Create a session and return its id."""
        created: str = self.ask(lambda service: service.create_session(prompt, **options)).session_id
        return created


def garden(served: Gateway) -> str:
    """Return a session whose turns have five children, one of which has two of its own: in all states."""
    part, breaks, asks, slow = (
        served.model(*each) for each in (("part", PART), ("breaks", BREAKS), ("asks", ASKING), ("slow", SLOW))
    )
    lead = served.model("lead", delegating(("The oak", part), ("The ash", slow)))
    parts = (("The roots", part), ("All trees", lead), ("The hole", breaks), ("The time", asks), ("A tale", slow))
    office = served.model("office", delegating(*parts))
    return served.create(None, model=office, tools=TOOLS, approvals=Gates(builtins="ask"), title="The garden")


def deliver(served: Gateway, hook: Any) -> int:
    """Make a signed call of a trigger; return the status of the answer."""
    address, body = f"http://127.0.0.1:{served.port}/triggers/{hook.trigger_id}", b"this"
    return httpx.post(address, content=body, headers=standard(hook.secret, "d1", body), timeout=30).status_code


def _in_thread(run: Callable[[], Any]) -> Any:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - one thread for one call

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


@contextmanager
def gateway(folder: Path, *flags: str, token: str | None = None, settings: str = "") -> Iterator[Gateway]:
    """Run a gateway with a store in a folder; end it on leaving."""
    made = Gateway(folder, flags, token, settings)
    made.start()
    try:
        yield made
    finally:
        made.kill(signal.SIGTERM)


@attrs.define
class Watched:
    """A page, and all that its browser complained of: errors, warnings, reports of the Content-Security-Policy.

    Attributes:
        page: the page.
        problems: the complaints.
        allowed: parts of complaints that a test makes on purpose.
    """

    page: Page
    problems: list[str] = attrs.field(factory=list)
    allowed: list[str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.page.set_default_timeout(LIMIT)
        # Playwright sets an attribute of the object of a method that it is given.
        self.page.on("console", lambda message: self._note(message))  # noqa: PLW0108
        self.page.on("pageerror", lambda error: self.problems.append(f"{error}"))

    def _note(self, message: ConsoleMessage) -> None:
        known = any(part in message.text for part in self.allowed)
        if message.type in {"error", "warning"} and not known:
            self.problems.append(message.text)


def show(page: Page, served: Gateway, *parts: str) -> None:
    """Open a place of the console."""
    page.goto(f"{served.url}#/{'/'.join(parts)}")
    expect(page.get_by_test_id("status")).to_have_text("Connected")


def say(page: Page, words: str) -> None:
    """Send words in the way that is chosen."""
    page.get_by_label("Message", exact=True).fill(words)
    page.keyboard.press("Enter")


def turns(page: Page) -> Locator:
    """Return the turns on the screen of a session."""
    return page.locator(".turn")


def act(page: Page, name: str) -> None:
    """Choose an entry of the menu of actions."""
    page.get_by_text("Actions", exact=True).click()
    page.locator(".menu").get_by_role("button", name=name).click()
