"""`warren sessions show`, `file`, `inputs` and `context`: what a session holds."""

import os
from collections.abc import Sequence
from pathlib import Path

import click

from warren.base.errors import InvalidParamsError
from warren.calls.base import MAX_PAGE
from warren.calls.facade import SessionService
from warren.conversation import codec
from warren.conversation.inputs import Input
from warren.conversation.records import CompactionEntry
from warren.conversation.views import HistoryPage, SessionView
from warren.transport.cli.command import ID_HELP, command
from warren.transport.cli.ids import id_ending
from warren.transport.cli.runtime import at_session
from warren.transport.cli.settings.options import Options, reached_options
from warren.transport.cli.settings.values import text_of
from warren.transport.cli.terminal import tables
from warren.transport.cli.terminal.results import show_result, show_text
from warren.transport.cli.terminal.streams import Streams


@command("warren sessions show last", "warren sessions show last --limit 500 --verbose", note=ID_HELP, name="show")
@click.argument("session", metavar="ID", type=text_of)
@click.option(
    "--limit", type=click.IntRange(1, MAX_PAGE), metavar="N", default=50, help="How many messages, the newest; 50."
)
@reached_options
def show_session(session: str, limit: int, options: Options) -> None:
    """Show a session and its newest messages, with --verbose its summaries too."""

    async def work(service: SessionService, session_id: str) -> tuple[SessionView, HistoryPage, list[CompactionEntry]]:
        view = await service.read(session_id, children=True)
        oldest = max(0, view.state.message_count - limit)
        page = await service.history(session_id, offset=oldest, limit=limit)
        wanted = options.mode.json or options.mode.verbose
        return view, page, await _compactions(service, view) if wanted else []

    view, page, compactions = at_session(options, session, work)
    data = codec.to_data(view) | {"messages": codec.to_data(page.messages), "compactions": codec.to_data(compactions)}
    show_result(options, data, tables.show_session, view, page, compactions)


async def _compactions(service: SessionService, view: SessionView) -> list[CompactionEntry]:
    """Return all compactions of a session, oldest first; it reads the whole history if there are any."""
    state, found = view.state, list[CompactionEntry]()
    for offset in range(0, state.message_count, MAX_PAGE) if state.compactions else ():
        found += (await service.history(state.session_id, offset=offset, limit=MAX_PAGE)).compactions
    return found


@command("warren sessions file last $SHA256 --to photo.png", "warren sessions file last $SHA256 | wc -c", note=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("sha256", type=text_of)
@click.option(
    "-o", "--to", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Where to write it; stdout."
)
@reached_options
def file(session: str, sha256: str, to: Path | None, options: Options) -> None:
    """Write a file of a session's messages, by the SHA-256 that `warren sessions show` has."""
    found = at_session(options, session, lambda service, session_id: service.attachment(session_id, sha256))
    streams = Streams()
    if to is not None:
        try:
            to.write_bytes(found.data)
        except OSError as exc:
            raise InvalidParamsError.at("$.to", f"{to} cannot be written: {exc.strerror}") from None
        data = {"attachment": codec.to_data(found.attachment), "file": os.fspath(to)}
        show_text(options, data, f"{to}: {found.attachment.size} bytes\n")
    elif options.mode.json:
        streams.write(codec.encode(found).decode() + "\n")
    elif streams.out_is_terminal and found.attachment.kind == "text":
        streams.write(found.data.decode())
    elif streams.out_is_terminal:
        raise InvalidParamsError.at("$.to", f"is missing, and {found.attachment.label} is no text")
    else:
        streams.write_bytes(found.data)


@command("warren sessions inputs last", "warren sessions inputs last --withdraw 7f3a", note=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@click.option("--withdraw", type=text_of, metavar="INPUT", help="Take this one back, by its id or the end of that.")
@reached_options
def inputs(session: str, withdraw: str | None, options: Options) -> None:
    """List the inputs that wait for a session's next turn.

    Piped, each is a line of fields between tabs: id, kind, when, source, text, and the time before which no turn takes
    it.
    """

    async def work(service: SessionService, session_id: str) -> tuple[Input, ...]:
        async def ids(offset: int) -> Sequence[str]:  # the service has no pages of them
            return [] if offset else [each.input_id for each in await service.inputs(session_id)]

        if withdraw is not None:
            await service.withdraw(session_id, await id_ending(withdraw, "input", ids))
        return await service.inputs(session_id)

    found = at_session(options, session, work)
    show_result(options, {"inputs": codec.to_data(found)}, tables.show_inputs, found)


@command("warren sessions context last", note=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@reached_options
def context(session: str, options: Options) -> None:
    """Show how much of the context window a session takes, by part.

    Piped, each part is a line of fields between tabs: part, count, tokens. --output json has the messages, too.
    """
    view = at_session(options, session, SessionService.context)
    show_result(options, view, tables.show_context, view)
