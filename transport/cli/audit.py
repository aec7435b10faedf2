"""`warren audit`: the audit of a store, read from the store itself or from a server, once or as it grows."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
import trio

from warren.calls.base import made
from warren.calls.operators import AuditRequest
from warren.conversation import codec
from warren.reports.audit import MAX_ENTRIES, AuditEntry, AuditPage
from warren.storage.queries import ANY_TENANT, AuditEntries
from warren.transport.cli.command import command
from warren.transport.cli.runtime import execute, open_service, open_store
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import Options, reached_options
from warren.transport.cli.settings.values import duration_of, text_of
from warren.transport.cli.store.chosen import existing_store_of
from warren.transport.cli.terminal.streams import Streams

Read = Callable[[AuditRequest], Awaitable[AuditPage]]
LOOK: Final = 1.0
"""Seconds between two looks for new entries."""
LATE: Final = timedelta(seconds=20)
"""Time by which an entry may come later than another one of a later time: a node waits so long for its store."""


@command(
    "warren audit --since 7d --action delete",
    "warren audit --follow --output json --server ws://127.0.0.1:8420",
    "warren audit --all-tenants --action login",
)
@click.option("--since", type=duration_of, metavar="AGE", default="1d", help="How far back to begin: 1h, 7d; 1d.")
@of_field(AuditRequest, "action", variable=False)
@click.option("--session", type=text_of, metavar="ID", help="Only entries about this session.")
@of_field(AuditRequest, "all_tenants", "--all-tenants", variable=False, is_flag=True)
@click.option("--follow", is_flag=True, help="Go on with entries as they come, until interrupted.")
@reached_options
def audit(
    since: float, action: str | None, session: str | None, *, all_tenants: bool, follow: bool, options: Options
) -> None:
    """Show entries of the audit, oldest first.

    Each is a line of fields between tabs: when, tenant, who, action, outcome, session, address, details. With --output
    json each is a line of JSON, for collectors.
    """
    begin, streams = datetime.now(UTC) - timedelta(seconds=since), Streams()
    wanted: dict[str, Any] = {"action": action, "session_id": session, "all_tenants": all_tenants}
    made(AuditRequest, **wanted)  # before anything is opened
    show = _as_json if options.mode.json else _as_line

    async def work() -> None:
        async with _opened(options) as read:
            async for entry in _entries(read, begin, wanted, follow=follow):
                streams.write(show(entry) + "\n")

    execute(work, options)


async def _entries(
    read: Read, begin: datetime, wanted: Mapping[str, Any], *, follow: bool
) -> AsyncIterator[AuditEntry]:
    """Yield the entries from a time on, each once."""
    shown: dict[int, datetime] = {}  # by number
    while True:
        cursor = None
        while True:
            page = await read(AuditRequest(since=begin, limit=MAX_ENTRIES, cursor=cursor, **wanted))
            for entry in page.entries:
                if entry.number not in shown:
                    shown[entry.number] = entry.at
                    yield entry
            if len(page.entries) + len(page.damaged) < MAX_ENTRIES:
                break
            cursor = page.cursor
        if not follow:
            return
        begin = max(begin, max(shown.values(), default=begin) - LATE)
        shown = {number: at for number, at in shown.items() if at >= begin}
        await trio.sleep(LOOK)


@asynccontextmanager
async def _opened(options: Options) -> AsyncIterator[Read]:
    if options.server is not None:
        async with open_service(options, takes_up=False) as service:
            yield service.perform
        return
    async with open_store(existing_store_of(options)) as store:
        yield lambda wanted: store.read(AuditEntries(ANY_TENANT if wanted.all_tenants else options.user.tenant, wanted))


def _as_json(entry: AuditEntry) -> str:
    return codec.encode(entry).decode()


def _as_line(entry: AuditEntry) -> str:
    details = " ".join(f"{name}={value}" for name, value in entry.details.items())
    fields = (
        *(entry.at.isoformat(timespec="milliseconds"), entry.tenant or "-", entry.who or "-", entry.action),
        *(entry.outcome, entry.session_id or "-", entry.source or "-", entry.by or "-", details),
    )
    # Whatever a field holds, it stays on its line and in its column.
    return "\t".join(each.encode("unicode_escape").decode() if not each.isprintable() else each for each in fields)
