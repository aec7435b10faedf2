"""The handlers of calls that read what sessions hold, and of those of the memory."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import trio

from warren.actors.calls.local import Local
from warren.actors.calls.seen import context_of
from warren.base.errors import WarrenError
from warren.base.fields import FieldValueError
from warren.calls.reading import AttachmentRequest, ContextViewRequest, ForgetRequest, HistoryRequest, SearchRequest
from warren.conversation import codec
from warren.conversation.attachments import AttachmentContent
from warren.conversation.memory import MemoryHit
from warren.conversation.records import PARTS, MessageRow, Span, has_part, within
from warren.conversation.views import ContextView, HistoryEntry, HistoryPage
from warren.storage.queries import AttachmentBytes, SessionRow, StoredAttachment, StoredHistory
from warren.storage.refusals import not_found

OFF_THE_LOOP: Final = 256 * 1024
"""Bytes of messages from which on a thread reads them."""


async def history(local: Local, call: HistoryRequest) -> HistoryPage:
    """Return a page of a session's messages."""
    session_id, offset = call.session_id, call.offset
    view = await local.view(session_id)
    page = await local.read(StoredHistory(session_id, local.principal.tenant, offset, call.limit))
    if not page.total and view.state.message_count:
        raise not_found(session_id)  # deleted between the two reads
    large = sum(len(row.body) for row in page.rows) > OFF_THE_LOOP
    made = partial(_entries, page.rows, page.left_out, offset + len(page.rows))
    entries = await trio.to_thread.run_sync(made) if large else made()
    damaged = (*page.rows.damaged, *page.compactions.damaged)
    return HistoryPage(session_id, entries, offset, page.total, tuple(page.compactions), page.kept_from, damaged)


def _entries(rows: Sequence[MessageRow], left_out: Sequence[Span], end: int) -> tuple[HistoryEntry, ...]:
    gone = within(left_out, 0, end)
    parts = [(part, within(left_out, 0, end, part)) for part in PARTS] if left_out else []
    entries = list[HistoryEntry]()
    for row in rows:
        message = codec.decode_message(row.body)
        part = next((part for part, places in parts if row.position in places and has_part(message, part)), None)
        entries.append(HistoryEntry(row.position, row.created_at, message, row.position in gone, part))
    return tuple(entries)


async def attachment(local: Local, call: AttachmentRequest) -> AttachmentContent:
    """Return a file of a session's messages."""
    local.supervisor.check_open()
    of = call.session_id, local.principal.tenant, call.sha256
    found = await local.read(StoredAttachment(*of))
    data = None if found is None else await local.read(AttachmentBytes(*of, 0, found.size))
    if found is None or data is None:
        await local.view(call.session_id)  # says it if the session is gone
        raise FieldValueError("sha256", "is that of no attachment of the session").refusal()
    return AttachmentContent(found, data)


async def context(local: Local, call: ContextViewRequest) -> ContextView:
    """Return the context of a session as its model sees it."""
    local.supervisor.check_open()
    actor = local.supervisor.find(call.session_id)
    known = actor.record if actor is not None and actor.current else None
    record = known or await local.read(SessionRow(call.session_id, local.principal.tenant))
    if record is None:
        raise not_found(call.session_id)
    return await context_of(local.supervisor, record)


async def search(local: Local, call: SearchRequest) -> tuple[MemoryHit, ...]:
    """Return the remembered texts that fit a query."""
    local.supervisor.check_open()
    return tuple(await local.supervisor.shared.memory.search(call, local.principal.tenant))


async def forget(local: Local, call: ForgetRequest) -> int:
    """Remove remembered texts; return how many."""
    local.supervisor.check_open()
    which = {"turn": call.turn, "text_id": call.text_id}
    shown = {name: str(value) for name, value in which.items() if value is not None}
    refused = False
    try:
        removed = await local.supervisor.shared.memory.forget_texts(call.of(local.principal.tenant))
        if removed is None:  # as yet nothing of it is remembered, or there is no such session
            await local.find(call.session_id)
    except WarrenError:
        refused = True
        raise
    finally:
        if not refused:  # also if the caller has left: the texts are forgotten nevertheless
            local.note(local.entry("forget", call.session_id, **shown))
    return removed or 0


HANDLERS: Final[dict[type, Any]] = {
    HistoryRequest: history,
    AttachmentRequest: attachment,
    ContextViewRequest: context,
    SearchRequest: search,
    ForgetRequest: forget,
}
