"""`warren sessions list`, which reads a store in files without a runtime."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from warren.calls.base import made
from warren.calls.sessions import ListRequest
from warren.conversation.views import SessionPage, TurnState, summary_of, turn_of
from warren.settings.config import StoreConfig
from warren.transport.cli.command import command
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import Options, label_option, reached_options
from warren.transport.cli.store.chosen import is_there, store_of
from warren.transport.cli.terminal import tables
from warren.transport.cli.terminal.results import show_result
from warren.transport.cli.terminal.streams import Streams

if TYPE_CHECKING:
    import apsw

READ_ONLY: Final = "the disk is read-only: the newest changes, which are in the log beside the file, are left out"


@command(
    "warren sessions list --limit 10",
    "warren sessions list --all --label project=burrow",
    "warren sessions list --turn-state waiting",
    "warren sessions list --agent desk",
    "warren sessions list --output json | jq -r '.sessions[].session_id'",
    name="list",
)
@of_field(ListRequest, "offset", variable=False, default=0, show_default=True)
@of_field(ListRequest, "limit", variable=False, default=50, show_default=True)
@of_field(ListRequest, "include_archived", "--all", "archived", variable=False, is_flag=True)
@of_field(ListRequest, "turn_state", variable=False)
@of_field(ListRequest, "delegated_by", variable=False, metavar="SESSION")
@of_field(ListRequest, "agent", variable=False, metavar="NAME")
@label_option
@reached_options
def list_sessions(
    offset: int,
    limit: int,
    turn_state: TurnState | None,
    delegated_by: str | None,
    agent: str | None,
    *,
    archived: bool,
    options: Options,
) -> None:
    """List sessions, the one used last first.

    Piped, each is a line of fields between tabs: id, updated, messages, tokens, state, model, agent, labels, title.
    """
    labels = dict(options.label)
    wanted = made(
        ListRequest,
        offset=offset,
        limit=limit,
        labels=labels,
        include_archived=archived,
        turn_state=turn_state,
        delegated_by=delegated_by,
        agent=agent,
    )
    page = _page(options, wanted)
    show_result(options, page, tables.show_list, page)


def _page(options: Options, wanted: ListRequest) -> SessionPage:
    if options.server is not None:
        return _of_service(options, wanted)
    store = store_of(options, needed=True)
    if store is None or not is_there(store):
        return SessionPage(())
    return _of_file(options, store, wanted) if isinstance(store, StoreConfig) else _of_service(options, wanted)


def _of_file(options: Options, store: StoreConfig, wanted: ListRequest) -> SessionPage:
    from warren.storage.queries import Holders, InTurn, LivingNodes, OpenWaits, SessionList  # noqa: PLC0415 - it has an extra of its own
    from warren.storage.sqlite import queries  # noqa: PLC0415 - as above
    from warren.storage.sqlite.lease import Holder  # noqa: PLC0415 - as above; the package itself imports trio

    in_turn = None if wanted.turn_state is None else InTurn(wanted.turn_state)
    listed = SessionList(
        options.user.tenant,
        wanted.offset,
        wanted.limit,
        wanted.labels or {},
        wanted.include_archived,
        in_turn,
        wanted.delegated_by,
        wanted.agent,
    )
    with _readable(store) as db:
        holder = Holder.of(store)
        records = queries.answer(db, holder, listed)
        open_turns = [each.session_id for each in records if each.turn is not None]
        held = queries.answer(db, holder, Holders(open_turns)) if open_turns else {}
        living = {node.key for node in queries.answer(db, holder, LivingNodes())} if held else set()
        waiting = [each.session_id for each in records if each.turn is not None and each.turn.wakes]
        waits = queries.answer(db, holder, OpenWaits(waiting)) if waiting else {}
    runs = {session_id for session_id, each in held.items() if each.holder in living}
    # No session is live in a process without a runtime.
    summaries = [
        summary_of(
            each,
            live=False,
            active=False,
            turn=turn_of(each, waits.get(each.session_id, ()), runs=each.session_id in runs),
        )
        for each in records
    ]
    return SessionPage(tuple(summaries), tuple(records.damaged))


@contextmanager
def _readable(store: StoreConfig) -> "Iterator[apsw.Connection]":
    """Open a store in files, and migrate an older one; on a read-only disk it is read as it is."""
    from warren.storage.maintenance.files import is_read_only, log_size, reading  # noqa: PLC0415 - as above
    from warren.storage.sqlite.file import FILE_NAME, opened  # noqa: PLC0415 - as above

    if not is_read_only(store.path / FILE_NAME):
        with opened(store) as db:
            yield db
        return
    if log_size(store.path / FILE_NAME):
        Streams().note(READ_ONLY, "yellow")
    with reading(store) as db:
        yield db


def _of_service(options: Options, wanted: ListRequest) -> SessionPage:
    from warren.transport.cli.runtime import execute, open_service  # noqa: PLC0415 - a file is read without it

    async def work() -> SessionPage:
        async with open_service(options, stored=True, takes_up=False) as service:
            return await service.perform(wanted)

    return execute(work, options)
