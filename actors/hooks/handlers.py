"""Asks the hooks of the settings about an event: those that are for it, all at once, and has one verdict of them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from warren.actors.hooks.claude import NONE, Verdict, merged, read
from warren.actors.hooks.command import run_command
from warren.actors.hooks.endpoint import post_event
from warren.actors.hooks.rules import holds
from warren.actors.hooks.told import HookError
from warren.actors.tools.posting import Poster
from warren.actors.tools.shell.tool import ALLOWED
from warren.base.values import define, frozen
from warren.conversation import codec
from warren.settings.hook_config import HookEntry, HookEvent

logger: Final = logging.getLogger("warren.hooks")
BACKGROUND: Final = 1_000
"""Hooks that nothing waits for and that have not ended; further ones are dropped."""

WITHOUT_MATCHER: Final[tuple[HookEvent, ...]] = ("UserPromptSubmit", "Stop")
"""The events whose hooks are all told: a matcher has no meaning there."""


@frozen
class About:
    """What an event is about.

    Attributes:
        session_id: the session.
        tenant: its tenant.
        names: the names of the tool, or the kind of the event, that matchers are held against.
        data: what hooks are told besides.
    """

    session_id: str
    tenant: str
    data: Mapping[str, Any]
    names: Sequence[str] = ("",)


@define(eq=False)
class Handlers:
    """The hooks of a runtime's settings.

    Attributes:
        entries: the hooks.
        root: the root of the file tools; None if there is none.
        environ: the variables that hooks may get.
        allow_env: patterns of the names of those that every hook gets, besides the harmless ones.
        poster: posts to addresses.
        transcript: returns the file that has the messages of a session, by its tenant and its id; "" if there is none.
        nursery: runs hooks that nothing waits for.
        commands: bounds the commands that run at once.
    """

    entries: Sequence[HookEntry]
    root: Path | None
    environ: Mapping[str, str]
    allow_env: Sequence[str]
    poster: Poster
    transcript: Callable[[str, str], str]
    nursery: trio.Nursery
    commands: trio.CapacityLimiter
    _in_background: int = attrs.field(default=0, init=False)

    def have(self, *events: HookEvent) -> bool:
        """Return whether there are hooks for one of these events."""
        return any(entry.event in events for entry in self.entries)

    async def ask(self, event: HookEvent, about: About) -> Verdict:
        """Tell the hooks of an event, and return what they want together.

        A hook that fails counts as none, or denies, as its settings say; the log has the reason.
        """
        found = [entry for entry in self.entries if entry.event == event and self._is_for(entry, about)]
        if not found:
            return NONE
        body = self._body(event, about)
        found = [entry for at, entry in enumerate(found) if entry not in found[:at]]  # two files may have the same one
        for entry in found:
            if entry.background:
                self._start(entry, body)
        verdicts: dict[int, Verdict] = {}

        async def ask_one(at: int, entry: HookEntry) -> None:
            verdicts[at] = await self._verdict(entry, body)

        async with trio.open_nursery() as nursery:
            for at, entry in enumerate(found):
                if not entry.background:
                    nursery.start_soon(ask_one, at, entry)
        verdict = merged(verdicts[at] for at in sorted(verdicts))
        for note in verdict.notes:
            logger.warning("session %s: a hook of %s says: %s", about.session_id, event, note)
        return verdict

    def _is_for(self, entry: HookEntry, about: About) -> bool:
        if not entry.is_for(about.tenant):
            return False
        if entry.event not in WITHOUT_MATCHER and not entry.fits(*about.names):
            return False
        if entry.rule is None:
            return True
        args = about.data.get("tool_input")  # rules are about tool calls: a hook with one is for no other event
        return args is not None and holds(entry.rule, tuple(about.names), args, str(self.root or ""))

    def _body(self, event: HookEvent, about: About) -> bytes:
        transcript = self.transcript(about.tenant, about.session_id)
        common = {
            "session_id": about.session_id,
            "transcript_path": transcript,
            "cwd": "" if self.root is None else str(self.root.absolute()),
            "permission_mode": "default",
            "hook_event_name": event,
            "tenant": about.tenant,
        }
        return codec.encode({**common, **about.data})

    async def _verdict(self, entry: HookEntry, body: bytes) -> Verdict:
        try:
            return read(entry.event, await self._told(entry, body))
        except HookError as exc:
            logger.warning("%s failed: %s", entry.name, exc)
            return Verdict("deny", f"{entry.name} failed: {exc}") if entry.on_failure == "deny" else NONE

    async def _told(self, entry: HookEntry, body: bytes) -> Any:
        environ = self._environ(entry)
        if entry.url is not None:
            named = {name: value for name, value in self.environ.items() if _shown(name, entry.env)}
            return await post_event(entry, body, named, self.poster)
        async with self.commands:
            return await run_command(entry, body, environ, self.root or Path.cwd())

    def _environ(self, entry: HookEntry) -> dict[str, str]:
        allowed = (*ALLOWED, *self.allow_env, *entry.env)
        found = {name: value for name, value in self.environ.items() if _shown(name, allowed)}
        return found | {"CLAUDE_PROJECT_DIR": str((entry.project or self.root or Path.cwd()).absolute())}

    def _start(self, entry: HookEntry, body: bytes) -> None:
        if self._in_background >= BACKGROUND:
            logger.warning("%s was not run: %d hooks run in the background already", entry.name, BACKGROUND)
            return
        self._in_background += 1
        self.nursery.start_soon(self._run_in_background, entry, body)

    async def _run_in_background(self, entry: HookEntry, body: bytes) -> None:
        try:
            await self._told(entry, body)
        except HookError as exc:
            logger.warning("%s failed: %s", entry.name, exc)
        finally:
            self._in_background -= 1


def _shown(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)
