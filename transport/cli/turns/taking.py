"""Turns for a user: shown as they run, interrupted by Ctrl-C."""

import math
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import trio

from warren.base.errors import SessionNotRunningError, WarrenError
from warren.base.values import define
from warren.calls.creation import FIRST_PROMPT
from warren.calls.facade import SessionService
from warren.calls.streams import OnEvent
from warren.conversation.events import Envelope
from warren.conversation.options import NO_OPTIONS, TurnOptions, given
from warren.conversation.records import CompactionEntry
from warren.conversation.views import TurnResult
from warren.transport.cli.process.ending import die_of, heard
from warren.transport.cli.settings.options import Options
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.terminal.tables import moment
from warren.transport.cli.turns.asking import ApprovalQueue, Asker
from warren.transport.cli.turns.screen import Screen
from warren.transport.providers import default_model
from warren.transport.providers.registry import ECHO

T = TypeVar("T")
Begin = Callable[[OnEvent], Awaitable[TurnResult]]
NO_MODEL: Final = "no API key is set: the built-in echo model answers; `warren models` lists the others"
COMPACTING: Final = "compacting the context"
FIRST_WORDS: Final = "interrupting the turn; again exits at once"
WAITS: Final = "session {}: the prompt waits until {}; Ctrl-C leaves it there"
TOO_LATE: Final = "the interrupt came too late: the turn had completed, nothing of it was cut"


def screen_of(options: Options, service: SessionService) -> Screen:
    """Return the screen of a command; it says so if the session is not stored."""
    screen = Screen.of(options, Streams())
    screen.footnote = "" if service.capabilities().session_store else " · not stored"
    return screen


def greet(options: Options, streams: Streams) -> None:
    """Say on a terminal that `echo` will answer, if the user has named neither model nor server and configured none."""
    named = options.turn.model is not None or options.turn.provider is not None or options.server is not None
    if streams.err.isatty() and not named and not options.mode.json and default_model(os.environ) == ECHO:
        streams.note(NO_MODEL, "dim")


def first_turn(service: SessionService, options: Options, prompt: str) -> Begin:
    """Return the start of a new session's first turn, which may have to wait for a time."""
    create: Any = partial(
        service.create_session,
        **given(TurnOptions, options.turn),
        agent=options.agent,
        system_prompt=options.config.system_prompt if options.agent is None else None,
        labels=dict(options.label),
        title=options.title,
        idempotency_key=options.key,
    )

    async def later(on_event: OnEvent) -> TurnResult:
        session_id: str = (await create(None)).session_id
        return await next_turn(service, attrs.evolve(options, turn=NO_OPTIONS), session_id, prompt)(on_event)

    at_once = partial(create, prompt, attachments=options.attach)
    return later if options.not_before is not None else lambda on_event: at_once(on_event=on_event)


def next_turn(service: SessionService, options: Options, session_id: str, prompt: str) -> Begin:
    """Return the start of a turn of a session that exists; the options hold for this turn alone."""
    start = partial(
        service.start_turn, session_id, prompt, **given(TurnOptions, options.turn), attachments=options.attach
    )
    if (due := options.not_before) is None:
        return lambda on_event: start(on_event=on_event)

    async def later(on_event: OnEvent) -> TurnResult:
        if not options.mode.json:
            Streams().note(WAITS.format(session_id, moment(due)), "dim")
        queued: dict[str, Any] = {"mode": "queue", "not_before": due, "idempotency_key": options.key}
        return await start(**queued, on_event=on_event)

    return later


def turn_of_child(service: SessionService, make: Callable[[], Awaitable[str]], prompt: str) -> Begin:
    """Return the start of the turn in which a child works that is made of a prompt; it may have ended before."""

    async def work(on_event: OnEvent) -> TurnResult:
        child = await make()
        # The prompt is in the child's inbox under this key: it is found there, and not taken twice.
        return await service.start_turn(child, prompt, mode="queue", idempotency_key=FIRST_PROMPT, on_event=on_event)

    return work


@define(eq=False)
class _Running:
    """A turn on its way from the service to the screen. Nothing here waits for the screen but its own task."""

    service: SessionService
    screen: Screen
    asker: Asker
    session_id: str = ""
    waits: bool = False  # for its time: who ends the process leaves the prompt in the inbox
    begun: trio.Event = attrs.field(factory=trio.Event)
    stoppable: bool = True
    interrupted: bool = False
    _waiting: ApprovalQueue = attrs.field(init=False)
    _send: trio.MemorySendChannel[Envelope | str] = attrs.field(init=False)
    _receive: trio.MemoryReceiveChannel[Envelope | str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Envelope | str](math.inf)
        self._waiting = ApprovalQueue(self.service, self.asker, self.say)

    def on_event(self, envelope: Envelope) -> None:
        self.session_id = envelope.session_id
        self.begun.set()
        self._waiting.note(envelope)
        self._send.send_nowait(envelope)

    def say(self, remark: str) -> None:
        """Show a remark of our own."""
        self._send.send_nowait(remark)

    async def run(self, begin: Callable[[OnEvent], Awaitable[T]], finish: Callable[[T], None]) -> T | WarrenError:
        """Run the turn and show it; the last event and its end are on the screen when this returns."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._waiting.run)
            nursery.start_soon(self._show)
            with self._send:
                outcome = await _outcome(begin(self.on_event))
                self.stoppable = False
                self._waiting.asking.cancel()
        if not isinstance(outcome, WarrenError):
            await trio.to_thread.run_sync(finish, outcome)
            if self.interrupted:
                await trio.to_thread.run_sync(self.screen.show, [TOO_LATE])
        return outcome

    async def _show(self) -> None:
        """Show events in a thread: a reader of stdout that stands still must not stop the turn or Ctrl-C."""
        async for item in self._receive:
            items = [item, *_waiting(self._receive)]
            await trio.to_thread.run_sync(self.screen.show, items)
            for shown in items:
                if isinstance(shown, Envelope):
                    self._waiting.shown(shown)

    def give_up(self) -> None:
        """Ask the user nothing more, and say that the turn will end."""
        self.stoppable, self.interrupted = False, True
        self._waiting.asking.cancel()
        self.say(FIRST_WORDS)

    async def interrupt(self) -> None:
        """Ask the service to end the turn, once it has begun: before that there is nothing to interrupt."""
        await self.begun.wait()
        with suppress(SessionNotRunningError):
            await self.service.interrupt(self.session_id)


async def take_turn(
    service: SessionService, begin: Begin, screen: Screen, asker: Asker | None = None, *, waits: bool = False
) -> TurnResult:
    """Run one turn, show it, and return its result. Raises the error of the turn.

    Without an asker, calls that wait for approval are refused. A turn that `waits` for its time has not begun, and is
    not interrupted: the process ends.

    The first Ctrl-C (or SIGTERM) interrupts the turn through the service, so that the answer so far is stored; another
    one, or one when the turn is over, ends the process at once, by that signal.
    """
    running = _Running(service, screen, asker or Asker(screen.streams), waits=waits)
    return await _take(running, begin, screen.finish)


async def take_compaction(
    service: SessionService, session_id: str, instructions: str | None, screen: Screen, *, aside: bool = False
) -> CompactionEntry:
    """Compact a session; the user can interrupt it as a turn. With `aside` the result is on stderr.

    Raises the error of the compaction.
    """
    running = _Running(service, screen, Asker(screen.streams), session_id)
    running.begun.set()
    running.say(COMPACTING)
    return await _take(
        running,
        lambda _on_event: service.compact(session_id, instructions=instructions),
        lambda entry: screen.compacted(session_id, entry, aside=aside),
    )


async def _take(running: _Running, begin: Callable[[OnEvent], Awaitable[T]], finish: Callable[[T], None]) -> T:
    async with trio.open_nursery() as nursery:
        await nursery.start(_listen, running)
        outcome = await running.run(begin, finish)
        nursery.cancel_scope.cancel()
    if isinstance(outcome, WarrenError):
        raise outcome
    return outcome


async def _listen(running: _Running, *, task_status: trio.TaskStatus[None]) -> None:
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(*heard()) as signals:
            task_status.started()
            async for number in signals:
                if not running.stoppable or (running.waits and not running.begun.is_set()):
                    die_of(number)
                # In this very step of the task: an answer that was typed behind the Ctrl-C must not come first.
                running.give_up()
                nursery.start_soon(running.interrupt)


async def _outcome(call: Awaitable[T]) -> T | WarrenError:
    """Return the result or the error of a call, so that no nursery wraps the error in a group."""
    try:
        return await call
    except WarrenError as exc:
        return exc


def _waiting(channel: trio.MemoryReceiveChannel[Envelope | str]) -> list[Envelope | str]:
    items = []
    while channel.statistics().current_buffer_used:
        items.append(channel.receive_nowait())
    return items
