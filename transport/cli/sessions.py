"""`warren sessions …`: the stored sessions, shown, changed and retired."""

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from warren import codec
from warren.attachments import AttachmentContent
from warren.errors import InvalidParamsError, MemoryDisabledError
from warren.inputs import Input
from warren.records import CompactionEntry
from warren.service import SessionService
from warren.transport.cli import tables
from warren.transport.cli.chosen_store import check_place
from warren.transport.cli.ids import resolve
from warren.transport.cli.listing import show_result
from warren.transport.cli.options import Options
from warren.transport.cli.questions import confirm
from warren.transport.cli.runtime import execute, open_service
from warren.transport.cli.streams import Streams
from warren.views import ContextView, HistoryPage, SessionView

MAX_PAGE: Final = 1_000


def show_session(options: Options, name: str, limit: int) -> None:
    """Run `warren sessions show`."""

    async def work() -> tuple[SessionView, HistoryPage, list[CompactionEntry]]:
        async with open_service(options, stored=True) as service:
            session_id = await resolve(service, name)
            view = await service.read(session_id)
            oldest = max(0, view.state.message_count - limit)
            page = await service.history(session_id, offset=oldest, limit=limit)
            wanted = options.mode.json or options.mode.verbose
            return view, page, await _compactions(service, view) if wanted else []

    view, page, compactions = execute(work, options)
    data = codec.to_data(view) | {"messages": codec.to_data(page.messages), "compactions": codec.to_data(compactions)}
    show_result(options, data, tables.show_session, view, page, compactions)


async def _compactions(service: SessionService, view: SessionView) -> list[CompactionEntry]:
    """Return all compactions of a session, oldest first; it reads the whole history if there are any."""
    state, found = view.state, list[CompactionEntry]()
    for offset in range(0, state.message_count, MAX_PAGE) if state.compactions else ():
        found += (await service.history(state.session_id, offset=offset, limit=MAX_PAGE)).compactions
    return found


def delete_session(options: Options, name: str, *, ask: bool) -> None:
    """Run `warren sessions delete`; with `ask` a user at a terminal has to confirm. Raises click.Abort if not."""
    if ask and sys.stdin.isatty() and sys.stderr.isatty():
        name = _find(options, name)
        confirm(f"Delete session {name}?")
    _change(options, name, "deleted", lambda service: partial(_delete, service, options))


async def _delete(service: SessionService, options: Options, session_id: str) -> None:
    """Delete a session and its remembered texts; a server's runtime has its memory open, and does both."""
    await service.delete(session_id)
    if options.server is not None:
        return
    from warren.transport.cli.memory.actions import forget  # noqa: PLC0415 - the other commands do without it

    try:
        await forget(options, session_id)
    except MemoryDisabledError as exc:
        Streams().note(f"its remembered texts stay: {exc.message}")


def archive_session(options: Options, name: str) -> None:
    """Run `warren sessions archive`."""
    _change(options, name, "archived", lambda service: service.archive)


def interrupt_session(options: Options, name: str) -> None:
    """Run `warren sessions interrupt`."""
    _change(options, name, "interrupted", lambda service: service.interrupt)


def fork_session(options: Options, name: str, at: int | None) -> None:
    """Run `warren sessions fork`."""

    async def work() -> SessionView:
        async with open_service(options, stored=True) as service:
            return await service.fork(
                await resolve(service, name), at=at, labels=dict(options.label), title=options.title
            )

    view = execute(work, options)
    show_result(options, view, _show_fork, view)


def _show_fork(streams: Streams, view: SessionView) -> None:
    if view.state.parent is not None:
        streams.note(f"forked {view.state.parent.session_id} after {view.state.parent.at} messages")
    streams.write(f"{view.state.session_id}\n")


def label_session(options: Options, name: str, labels: Mapping[str, str | None]) -> None:
    """Run `warren sessions label`."""

    async def work() -> SessionView:
        async with open_service(options, stored=True) as service:
            return await service.label(await resolve(service, name), labels, title=options.title)

    view = execute(work, options)
    line = f"labelled {view.state.session_id} {tables.labels(view.state.labels)}".rstrip() + "\n"
    show_result(options, view, lambda streams: streams.write(line))


def save_file(options: Options, name: str, sha256: str, to: Path | None) -> None:
    """Run `warren sessions file`: to a path, or to stdout.

    Raises InvalidParamsError if the session has no such file, if `to` cannot be written, and if it is missing and a
    terminal would get bytes that are no text.
    """

    async def work() -> AttachmentContent:
        async with open_service(options, stored=True) as service:
            return await service.attachment(await resolve(service, name), sha256)

    found, streams = execute(work, options), Streams()
    if to is not None:
        try:
            to.write_bytes(found.data)
        except OSError as exc:
            raise InvalidParamsError(f"$.to: {to} cannot be written: {exc.strerror}", path="$.to") from None
        data = {"attachment": codec.to_data(found.attachment), "file": os.fspath(to)}
        show_result(options, data, lambda out: out.write(f"{to}: {found.attachment.size} bytes\n"))
    elif options.mode.json:
        streams.write(codec.encode(found).decode() + "\n")
    elif streams.out_is_terminal and found.attachment.kind == "text":
        streams.write(found.data.decode())
    elif streams.out_is_terminal:
        raise InvalidParamsError(f"$.to: is missing, and {found.attachment.label} is no text", path="$.to")
    else:
        streams.write_bytes(found.data)


def list_inputs(options: Options, name: str, withdraw: str | None) -> None:
    """Run `warren sessions inputs`; with `withdraw` one input is taken back first."""

    async def work() -> tuple[Input, ...]:
        async with open_service(options, stored=True) as service:
            session_id = await resolve(service, name)
            if withdraw is not None:
                await service.withdraw(session_id, withdraw)
            return await service.inputs(session_id)

    found = execute(work, options)
    show_result(options, {"inputs": codec.to_data(found)}, tables.show_inputs, found)


def show_context(options: Options, name: str) -> None:
    """Run `warren sessions context`."""

    async def work() -> ContextView:
        async with open_service(options, stored=True) as service:
            return await service.context(await resolve(service, name))

    view = execute(work, options)
    show_result(options, view, tables.show_context, view)


def inject_text(options: Options, name: str, text: Callable[[], str], source: str | None, key: str | None) -> None:
    """Run `warren sessions inject`; the text is read when a store is known to exist."""
    check_place(options)
    words = text()
    _change(
        options,
        name,
        "injected",
        lambda service: partial(service.inject_context, text=words, source=source, idempotency_key=key),
    )


def _find(options: Options, name: str) -> str:
    async def work() -> str:
        async with open_service(options, stored=True) as service:
            return await resolve(service, name)

    return execute(work, options)


def _change(
    options: Options,
    name: str,
    done: str,
    operation: Callable[[SessionService], Callable[[str], Awaitable[object]]],
) -> None:
    """Run an operation on one session, and confirm it."""

    async def work() -> str:
        async with open_service(options, stored=True) as service:
            session_id = await resolve(service, name)
            await operation(service)(session_id)
            return session_id

    session_id = execute(work, options)
    line = f"{done} {session_id}\n"
    show_result(options, {"session_id": session_id, done: True}, lambda streams: streams.write(line))
