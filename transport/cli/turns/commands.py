"""`warren run`, `resume`, `delegate`, `wait`, `compact` and `record`."""

import os
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from warren.base.errors import CompactionDisabledError, WarrenError
from warren.calls.facade import SessionService
from warren.calls.sessions import DelegateRequest
from warren.calls.turns import CompactRequest
from warren.conversation.event_text import shorten
from warren.conversation.messages import UserMessage
from warren.conversation.views import TurnResult
from warren.transport.cli.command import ID_HELP, command
from warren.transport.cli.ids import LAST
from warren.transport.cli.process.exits import NOT_WHOLE
from warren.transport.cli.runtime import at_session, execute, open_service
from warren.transport.cli.settings.kinds import approve_option, kind_options
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import (
    Options,
    attach_option,
    budget_options,
    compaction_options,
    log_option,
    memory_options,
    reached_options,
    session_options,
    stream_option,
    system_option,
    title_option,
    turn_options,
)
from warren.transport.cli.settings.tool_options import tool_options
from warren.transport.cli.settings.values import due_of, text_of
from warren.transport.cli.store.chosen import check_place
from warren.transport.cli.terminal.results import show_text
from warren.transport.cli.terminal.streams import Streams, read_prompt
from warren.transport.cli.turns import taking
from warren.transport.cli.turns.asking import Asker
from warren.transport.cli.turns.screen import Screen, missing

LOOKED_AT: Final = 6
"""The newest sessions, among which one is looked for to offer in place of a failed one."""
not_before_option: Final = click.option(
    "--not-before",
    type=due_of,
    metavar="TIME",
    help="Wait with the prompt until then. It is stored, and runs then without this process too, if another one lives.",
)


@command(
    'warren run "What is a warren?"',
    "git diff | warren run --model claude-sonnet-5 --system 'Review this change.'",
    "warren run --ephemeral --output json --max-duration 2m 'Name three colours.'",
    "warren run --label project=burrow --memory 'Let us begin.'",
    "warren run --not-before 10m 'Is the build green by now?'",
)
@click.argument("prompt", type=text_of, required=False)
@click.option(
    "--key",
    type=text_of,
    metavar="KEY",
    help="Run again with one key, it shows the first answer: one session, not two.",
)
@not_before_option
@attach_option
@session_options
def run(prompt: str | None, options: Options) -> int:
    """Run PROMPT in a new session and print the answer.

    Without PROMPT, or with -, the prompt is read from stdin; with PROMPT, the text of a pipe follows it. Ctrl-C ends
    the turn and keeps the answer so far; a second one exits at once. TIME is a time from now, as 10m, or a day or a
    time, in UTC without another zone.
    """
    text = read_prompt(prompt, with_pipe=True)

    async def work() -> int:
        async with open_service(options) as service:
            screen = taking.screen_of(options, service)
            taking.greet(options, screen.streams)
            return await _only_turn(service, taking.first_turn(service, options, text), screen, options)

    return execute(work, options)


@command(
    "warren resume last 'And who lives there?'",
    "warren resume 4f9c --max-steps 5 --stream 'Go on.'",
    "warren resume last - < question.txt",
    note=ID_HELP,
)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("prompt", type=text_of, required=False)
@not_before_option
@attach_option
@turn_options("this turn")
def resume(session: str, prompt: str | None, options: Options) -> int:
    """Continue a stored session with PROMPT and print the answer.

    Without PROMPT, or with -, the prompt is read from stdin; with PROMPT, the text of a pipe follows it. TIME is a time
    from now, as 10m, or a day or a time, in UTC without another zone.
    """
    check_place(options)
    text = read_prompt(prompt, with_pipe=True)

    async def work(service: SessionService, session_id: str) -> int:
        if session.strip().lower() == LAST and not options.mode.json:
            await warn_of_failed(service, session_id)
        begin = taking.next_turn(service, options, session_id, text)
        return await _only_turn(service, begin, taking.screen_of(options, service), options)

    return at_session(options, session, work, takes_up=True)


@command(
    "warren delegate last 'List what the tests leave out.'",
    "warren delegate last --wait --max-steps 5 'Name three colours.'",
    "git diff | warren delegate 4f9c --title Review --wait 'Review this change.'",
    note=ID_HELP,
)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("prompt", type=text_of, required=False)
@click.option("--wait", "waits", is_flag=True, help="Wait for the end of the work, and print the answer.")
@click.option("--key", type=text_of, metavar="KEY", help="Run again with one key, it makes one child, and finds it.")
@of_field(DelegateRequest, "model", "-m", "--model", "of_child", variable=False)
@of_field(
    *(DelegateRequest, "tools", "--tool", "tools_of_child"),
    help="A tool of the child, of those that the session itself is offered; repeatable. Unset is all of them.",
    variable=False,
)
@title_option
@system_option
@budget_options("the child")
@tool_options
@kind_options
@approve_option
@compaction_options
@memory_options
@stream_option
@reached_options
def delegate(
    session: str,
    prompt: str | None,
    *,
    waits: bool,
    of_child: str | None,
    tools_of_child: tuple[str, ...],
    options: Options,
) -> int:
    """Have a child session work on PROMPT for a session, and print its id.

    With --wait the answer is printed, and Ctrl-C ends the work. Else a server goes on with it, and without a server the
    next process that serves the store, or `warren wait` with the id.

    Without PROMPT, or with -, the prompt is read from stdin; with PROMPT, the text of a pipe follows it.
    """
    check_place(options)
    text = read_prompt(prompt, with_pipe=True)

    async def work(service: SessionService, session_id: str) -> int:
        make = partial(
            service.delegate,
            session_id,
            text,
            title=options.title,
            model=of_child,
            system_prompt=options.config.system_prompt,
            tools=tools_of_child or None,
            budget=options.turn.budget,
            idempotency_key=options.key,
        )
        screen = taking.screen_of(options, service)
        if waits:
            return await _only_turn(service, taking.turn_of_child(service, make, text), screen, options)
        child = await make()
        show_text(options, {"session_id": child}, f"{child}\n")
        return 0

    return at_session(options, session, work, takes_up=waits)


@command("warren wait last", "warren wait 4f9c --server ws://127.0.0.1:8420 --output json", note=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@tool_options
@kind_options
@compaction_options
@memory_options
@reached_options
def wait(session: str, options: Options) -> int:
    """Wait for the end of a session's turn, and print its answer.

    It is the turn that runs, or the next one if prompts wait; that of a child may have ended before. Without a server,
    a turn that no process runs goes on in this one. If it waits for an approval or a result itself, stderr says for
    which. Ctrl-C ends the wait, and leaves a turn at a server alone.
    """

    async def work(service: SessionService, session_id: str) -> int:
        screen = taking.screen_of(options, service)
        try:
            turn = (await service.read(session_id)).state.turn
            if turn is not None and turn.waits:
                screen.show([f"the turn waits: {turn.waits}"])
            result = await service.wait_turn(session_id)
        except WarrenError as exc:
            screen.fail(exc)
            return exc.numbers.exit
        screen.finish(result)
        return _exit_code(result)

    return at_session(options, session, work, takes_up=True)


@command("warren compact last", "warren compact last --instructions 'Keep the names of files.'", note=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@of_field(CompactRequest, "instructions", metavar="TEXT", variable=False)
@compaction_options
@memory_options
@reached_options
def compact(session: str, instructions: str | None, options: Options) -> None:
    """Summarise the context of a session.

    The next turns go on from the summary and the newest exchanges; the conversation stays readable as it was. Long
    sessions are summarised by themselves.
    """
    if options.config.compaction is None and options.server is None:
        raise CompactionDisabledError("session compaction is disabled by --no-compaction")

    at_session(
        options,
        session,
        lambda service, found: taking.take_compaction(service, found, instructions, taking.screen_of(options, service)),
    )


@command(
    "warren record talk.json -- run 'What is a burrow?'",
    "warren record talk.json -- serve",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@log_option
@click.pass_context
def record(context: click.Context, /, *, file: Path, command: tuple[str, ...]) -> Any:
    """Run a COMMAND of warren, and record the answers of its models in FILE.

    FILE is a script: `--model scripted:FILE` plays the answers to a session of the same course, with their pieces and
    calls of tools, and calls nobody. Further sessions get files of their own beside it. No keys and no requests are
    written. It is the same as the option --record of the command.
    """
    os.environ["WARREN_RECORD"] = str(file.absolute())
    return context.find_root().command.main(list(command), standalone_mode=False)


async def warn_of_failed(service: SessionService, session_id: str) -> None:
    """Tell the user of a session whose newest turn failed, and offer the newest one before it that did not."""
    if await _answered(service, session_id):
        return
    note = f"the last session, {session_id}, ended with a turn that failed"
    for other in (await service.list(limit=LOOKED_AT)).sessions[1:]:
        if await _answered(service, other.session_id):
            about = f" ({shorten(other.title)})" if other.title else ""
            note += f"; to go on with the one before it{about}: warren resume {other.session_id}"
            break
    Streams().note(note, "yellow")


async def _answered(service: SessionService, session_id: str) -> bool:
    """Tell whether the newest message of a session is no prompt that waits for its answer."""
    count = (await service.read(session_id)).state.message_count
    page = await service.history(session_id, offset=max(0, count - 1), limit=1)
    return not any(isinstance(entry.message, UserMessage) for entry in page.messages)


async def _only_turn(service: SessionService, begin: taking.Begin, screen: Screen, options: Options) -> int:
    """Run one turn in front of the user; return the exit code."""
    try:
        asker = Asker.of(screen.streams, approve_all=options.approve_all)
        result = await taking.take_turn(service, begin, screen, asker, waits=options.not_before is not None)
    except WarrenError as exc:
        screen.fail(exc)
        return exc.numbers.exit
    return _exit_code(result)


def _exit_code(result: TurnResult) -> int:
    return 0 if missing(result) is None else NOT_WHOLE
