"""`warren chat`: one session, a line a turn."""

import re
from collections.abc import Callable
from typing import Final

import click
import trio

from warren.base.errors import InvalidParamsError, WarrenError
from warren.base.values import define
from warren.calls.facade import SessionService
from warren.transport.cli.command import ID_HELP, command
from warren.transport.cli.ids import resolve
from warren.transport.cli.process.ending import heard
from warren.transport.cli.process.exits import NOT_WHOLE
from warren.transport.cli.runtime import execute, open_service
from warren.transport.cli.settings.options import Options, session_options
from warren.transport.cli.settings.values import text_of
from warren.transport.cli.store.chosen import check_place
from warren.transport.cli.terminal.lines import EditedLines, LineSource, open_lines
from warren.transport.cli.terminal.streams import decode_prompt
from warren.transport.cli.turns import taking
from warren.transport.cli.turns.asking import Asker
from warren.transport.cli.turns.screen import Screen, missing

COMPACT: Final = re.compile(r"/compact(?:\s+(.*))?", re.DOTALL)
COMMAND: Final = re.compile(r"/[a-z]*")
SIGNALLED: Final = 128
"""A shell adds this to the number of the signal that ended a command."""
NO_SESSION: Final = "no session yet: it begins with the first line"
HELP: Final = """\
/help     this list
/session  the session's id
/compact  summarise the context; the text after it is an instruction for the summary
/quit     leave (also Ctrl-D, or Ctrl-C at the prompt)
Ctrl-C during an answer interrupts it. All other lines are prompts."""


@command(
    "warren chat --memory",
    "warren chat --resume last",
    "printf 'Hello\\nAnd again\\n' | warren chat --model echo",
    note=ID_HELP,
)
@click.option("--resume", "session", type=text_of, metavar="ID", help="Continue this session.")
@session_options
def chat(session: str | None, options: Options) -> int:
    """Chat: each line is a turn of one session.

    /help lists the commands. Ctrl-C ends the turn; at the prompt it leaves, with exit code 130, Ctrl-D with 0.

    With a pipe for stdin each line of it is a turn, and the exit code is the first one of a failed turn. An interrupted
    turn and a failed /compact do not count.
    """
    if session is not None:
        check_place(options)

    async def work() -> int:
        async with open_service(options, stored=session is not None) as service:
            session_id = None if session is None else await resolve(service, session)
            if session_id is not None:
                await service.resume(session_id)
            screen = taking.screen_of(options, service)
            asker = Asker.of(screen.streams, approve_all=options.approve_all)
            talk = Chat(service, options, screen, session_id, asker)
            with open_lines() as lines:
                if isinstance(lines, EditedLines):
                    taking.greet(options, talk.screen.streams)
                    talk.screen.streams.note("/help lists the commands", "dim")
                    talk.attended = True
                await talk.follow(lines)
            return talk.exit_code

    return execute(work, options)


@define
class Chat:
    """A conversation in front of the user.

    Attributes:
        session_id: the session; None until the first turn.
        asker: decides on calls that wait for approval; None refuses them.
        attended: whether a user types the lines, who sees what fails and goes on: no failure is in the exit code then.
        exit_code: the first one of a failed turn or a bad line; that of a signal at the prompt if there was none. An
            interrupted turn and a failed compaction, which changes nothing, do not count.
    """

    service: SessionService
    options: Options
    screen: Screen
    session_id: str | None = None
    asker: Asker | None = None
    attended: bool = False
    exit_code: int = 0

    async def follow(self, lines: LineSource) -> None:
        """Run a turn or a command for each line, until the lines end, `/quit`, or a signal between two turns."""
        while (line := await self._next(lines)) is not None:
            if not line.strip():
                continue
            try:
                prompt = decode_prompt(line)
                if compact := COMPACT.fullmatch(prompt.strip()):
                    await self._compact(compact[1])
                elif not COMMAND.fullmatch(prompt.strip()):
                    result = await taking.take_turn(self.service, self._begin(prompt), self.screen, self.asker)
                    self.session_id = result.session_id
                    if missing(result) is not None:
                        self._count(NOT_WHOLE)
                elif not self._obey(prompt.strip()):
                    return
            except WarrenError as exc:
                self.session_id = self.session_id or exc.session_id
                if exc.cause != "cancelled":
                    self._count(exc.numbers.exit)
                self.screen.fail(exc)

    async def _next(self, lines: LineSource) -> bytes | None:
        """Return the next line; None at the end of the lines or after a signal."""
        line = None
        async with trio.open_nursery() as nursery:
            await nursery.start(self._leave_on_signal, nursery.cancel_scope)
            line = await lines.next()
            nursery.cancel_scope.cancel()
        return line

    async def _leave_on_signal(self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*heard()) as signals:
            task_status.started()
            async for number in signals:
                self.exit_code = self.exit_code or SIGNALLED + number
                scope.cancel()

    def _begin(self, prompt: str) -> taking.Begin:
        if self.session_id is None:
            return taking.first_turn(self.service, self.options, prompt)
        return taking.next_turn(self.service, self.options, self.session_id, prompt)

    async def _compact(self, instructions: str | None) -> None:
        if self.session_id is None:
            self.screen.streams.note(f"there is nothing to compact: {NO_SESSION}")
            return
        try:
            await taking.take_compaction(self.service, self.session_id, instructions, self.screen, aside=True)
        except WarrenError as exc:
            self.screen.fail(exc)

    def _obey(self, command: str) -> bool:
        """Run a command; return False if it was `/quit`."""
        commands: dict[str, Callable[[], str]] = {
            "/help": lambda: HELP,
            "/session": lambda: self.session_id or NO_SESSION,
        }
        if command in ("/quit", "/exit"):
            return False
        if command not in commands:
            raise InvalidParamsError.at("$.prompt", f"there is no command {command}; /help lists them")
        self.screen.streams.note(commands[command]())
        return True

    def _count(self, code: int) -> None:
        if not self.attended:
            self.exit_code = self.exit_code or code
