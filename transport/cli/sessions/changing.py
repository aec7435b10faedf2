"""`warren sessions delete`, `archive`, `interrupt`, `fork`, `inject` and `label`: changes of one session."""

import sys
from collections.abc import Awaitable, Callable
from functools import partial

import click

from warren.base.errors import MemoryDisabledError
from warren.calls.facade import SessionService
from warren.calls.sessions import ForkRequest
from warren.calls.turns import ContextRequest
from warren.conversation.views import SessionView
from warren.transport.cli.command import ID_HELP, command
from warren.transport.cli.memory.remembered import forget
from warren.transport.cli.runtime import at_session
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import Options, label_option, reached_options, title_option
from warren.transport.cli.settings.values import label_of, text_of
from warren.transport.cli.store.chosen import check_place
from warren.transport.cli.terminal import tables
from warren.transport.cli.terminal.questions import confirm
from warren.transport.cli.terminal.results import show_result, show_text
from warren.transport.cli.terminal.streams import Streams, read_prompt


@command("warren sessions delete 4f9c", "warren sessions delete last --yes", note=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Without a terminal nothing is asked.")
@reached_options
def delete(session: str, *, yes: bool, options: Options) -> None:
    """Delete a session with all of its data."""
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        session = at_session(options, session, _itself)
        confirm(f"Delete session {session}?")
    _change(options, session, "deleted", partial(_delete, options))


async def _delete(options: Options, service: SessionService, session_id: str) -> None:
    """Delete a session and its remembered texts; a server's runtime has its memory open, and does both."""
    await service.delete(session_id)
    if options.server is not None:
        return
    try:
        await forget(options, session_id)
    except MemoryDisabledError as exc:
        Streams().note(f"its remembered texts stay: {exc.message}")


@command("warren sessions archive last", note=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@reached_options
def archive(session: str, options: Options) -> None:
    """Retire a session: it stays readable, is hidden from the list and cannot be continued."""
    _change(options, session, "archived", SessionService.archive)


@command("warren sessions interrupt last --server ws://127.0.0.1:8420", note=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@reached_options
def interrupt(session: str, options: Options) -> None:
    """End the turn that runs at a gateway; the answer so far is stored."""
    _change(options, session, "interrupted", SessionService.interrupt)


@command("warren sessions fork last", "warren sessions fork 4f9c --at 6 --label try=two --output json", note=ID_HELP)
@click.argument("session", metavar="ID", type=text_of)
@of_field(ForkRequest, "at", variable=False)
@label_option
@title_option
@reached_options
def fork(session: str, at: int | None, options: Options) -> None:
    """Make a session of the beginning of another one, and print its id. Nothing is run again."""
    labels = dict(options.label)
    view = at_session(
        options, session, lambda service, found: service.fork(found, at=at, labels=labels, title=options.title)
    )
    show_result(options, view, _show_fork, view)


def _show_fork(streams: Streams, view: SessionView) -> None:
    if view.state.parent is not None:
        streams.note(f"forked {view.state.parent.session_id} after {view.state.parent.at} messages")
    streams.write(f"{view.state.session_id}\n")


@command(
    "warren sessions inject last 'The build is green again.'",
    "warren sessions inject last --source ci --key build-81 'The build is green again.'",
    note=ID_HELP,
)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("text", type=text_of, required=False)
@of_field(ContextRequest, "source", variable=False)
@of_field(ContextRequest, "idempotency_key", "--key", "key", variable=False, metavar="KEY")
@reached_options
def inject(session: str, text: str | None, source: str | None, key: str | None, options: Options) -> None:
    """Show TEXT to the model in a session's next turn, as context and not as a prompt.

    Without TEXT, or with -, it is read from stdin.
    """
    check_place(options)
    words = read_prompt(text)
    _change(
        options,
        session,
        "injected",
        lambda service, found: service.inject_context(found, text=words, source=source, idempotency_key=key),
    )


@command(
    "warren sessions label last project=burrow",
    "warren sessions label 4f9c --remove project --title 'The north tunnel'",
    note=ID_HELP,
)
@click.argument("session", metavar="ID", type=text_of)
@click.argument("labels", metavar="[K=V]...", type=label_of, nargs=-1)
@click.option("--remove", type=text_of, multiple=True, metavar="K", help="A label to take away; repeatable.")
@title_option
@click.option(
    "--ask-again", type=text_of, multiple=True, metavar="TOOL", help="An allowed tool to take back; repeatable."
)
@reached_options
def label(
    session: str,
    labels: tuple[tuple[str, str], ...],
    remove: tuple[str, ...],
    ask_again: tuple[str, ...],
    options: Options,
) -> None:
    """Set labels or the title of a session, or take labels and allowed tools away; all others stay."""
    if not labels and not remove and not ask_again and options.title is None:
        raise click.UsageError("Name a label, K=V to set it or --remove K to take it away, or give a --title.")
    changes, title = {**dict(labels), **dict.fromkeys(remove)}, options.title
    view = at_session(
        options, session, lambda service, found: service.label(found, changes, title=title, ask_again=ask_again)
    )
    show_text(options, view, f"labelled {view.state.session_id} {tables.labels(view.state.labels)}".rstrip() + "\n")


async def _itself(_service: SessionService, session_id: str) -> str:
    return session_id


def _change(
    options: Options, name: str, done: str, operation: Callable[[SessionService, str], Awaitable[object]]
) -> None:
    """Run an operation on one session, and confirm it."""

    async def work(service: SessionService, session_id: str) -> str:
        await operation(service, session_id)
        return session_id

    session_id = at_session(options, name, work)
    show_text(options, {"session_id": session_id, done: True}, f"{done} {session_id}\n")
