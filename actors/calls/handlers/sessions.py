"""The handlers of calls that list, change and end sessions.

The store forks and labels, also a session that another process has in memory.
"""

import contextlib
from typing import Any, Final

import attrs

from warren.actors.agents import spoken_at
from warren.actors.calls.local import Local, no_store
from warren.actors.events.eventlog import utc_now
from warren.actors.limits.limiter import FOR_SESSION
from warren.actors.protocol import Loaded, Relabel, Retire
from warren.actors.resources.erasing import erase
from warren.actors.session.actor import SessionActor
from warren.actors.session.children import Wanted, child_of
from warren.base.errors import LeasedError, SessionNotFoundError, StoreError, WarrenError
from warren.base.ids import new_session_id
from warren.calls.sessions import (
    ArchiveRequest,
    DelegateRequest,
    DeleteRequest,
    ForkRequest,
    LabelRequest,
    ListRequest,
    ReadRequest,
    ResumeRequest,
)
from warren.conversation.budget import UNLIMITED
from warren.conversation.views import SessionPage, SessionView, view_of
from warren.storage.operations import Fork, Label
from warren.storage.queries import ANY_TENANT, Children, SessionList, SessionRow
from warren.storage.refusals import not_found


async def read(local: Local, call: ReadRequest) -> SessionView:
    """Return a session as of its last finished turn."""
    view = await local.view(call.session_id)
    if not call.children:
        return view
    children = await local.read(Children(call.session_id, local.principal.tenant))
    return attrs.evolve(view, state=attrs.evolve(view.state, children=children if children.total else None))


async def list_(local: Local, call: ListRequest) -> SessionPage:
    """Return a page of the list of sessions."""
    local.supervisor.check_open()
    in_turn = None if call.turn_state is None else local.in_turn(call.turn_state)
    page = call.offset, call.limit, call.labels or {}, call.include_archived, in_turn, call.delegated_by, call.agent
    records = await local.read(SessionList(local.principal.tenant, *page))
    turns = await local.open_turns(records)
    rows = [local.summary(each, turns.get(each.session_id)) for each in records]
    return SessionPage(tuple(rows), tuple(records.damaged))


async def resume(local: Local, call: ResumeRequest) -> SessionView:
    """Load a session."""
    local.supervisor.check_open()
    actor = local.supervisor.revive(call.session_id)
    record = await actor.mailbox.ask(Loaded())
    if record.archived:
        problem = "the session is archived: it can be read, not continued"
        raise SessionNotFoundError(problem, session_id=call.session_id, cause="archived")
    return actor.view()


async def fork(local: Local, call: ForkRequest) -> SessionView:
    """Make a session of the first messages of another one."""
    supervisor, by = local.supervisor, local.by
    supervisor.check_open()
    limiter = supervisor.shared.limiter
    await limiter.look(by, FOR_SESSION)
    supervisor.scheduler.check_session(by)
    session_id = new_session_id()
    entry = local.entry("fork", session_id, of=call.session_id)
    original = None if call.at is None else await local.read(SessionRow(call.session_id, local.principal.tenant))
    spoken = None
    if original is not None and call.at is not None:
        spoken = await spoken_at(call.at, original, local.read, supervisor.shared.config)
    operation = Fork(session_id, utc_now(), call, local.principal.name, entry, spoken)
    try:
        limiter.tenancy.creates(by)
        with limiter.tenancy.creating(by):
            made = SessionRow(session_id, ANY_TENANT)
            record = await supervisor.shared.storage.write_or_find(operation, lambda store: store.read(made))
    except StoreError as exc:
        exc.session_id = call.session_id  # the fork's own id names no session: nothing was made
        raise
    supervisor.watchers.changed(record)
    supervisor.registry.lend(call.session_id, record.session_id)
    return view_of(record, live=supervisor.is_live(None), active=False)


async def delegate(local: Local, call: DelegateRequest) -> str:
    """Make a session that works for another one, and let its turn begin."""
    supervisor, key = local.supervisor, call.idempotency_key
    supervisor.check_open()
    session_id = new_session_id() if key is None else child_of(call.session_id, f"request:{key}")
    tenant = local.principal.tenant
    if key is not None and await local.read(SessionRow(session_id, tenant)) is not None:
        if supervisor.takes_up:
            supervisor.sent((session_id,))
        return session_id
    parent = await local.read(SessionRow(call.session_id, tenant))
    if parent is None:
        raise not_found(call.session_id)
    wanted = Wanted(call.prompt, call.title, call.model, call.system_prompt, call.tools, call.budget or UNLIMITED)
    entry = local.entry("create", session_id, of=call.session_id)
    try:
        await supervisor.children.begin(
            parent,
            supervisor.children.within(parent, wanted),
            session_id,
            by=local.by,
            payer=local.payer,
            audit=entry,
        )
    except StoreError as exc:
        exc.session_id = call.session_id  # the child's own id may name no session
        raise
    return session_id


async def label(local: Local, call: LabelRequest) -> SessionView:
    """Change labels, the title or the allowed tools of a session. A live one shows the stored change from then on."""
    supervisor = local.supervisor
    supervisor.check_open()
    storage = supervisor.shared.storage
    operation = Label(call.session_id, call.labels or {}, call.title, call.ask_again or ())
    if call.ask_again:
        # Before the store has it: a commit of a running turn that came after the change would take it back.
        await _show(supervisor.find(call.session_id), Relabel(call.ask_again))
    try:
        stored = await storage.write(operation)
    except LeasedError:
        if not await storage.ask_for(call.session_id):
            raise
        stored = await storage.write(operation)
    actor = supervisor.find(call.session_id)
    loaded = None if actor is None else actor.record
    await _show(actor, Relabel(operation.ask_again, stored))
    if loaded is not None and not set(loaded.allowed_tools).isdisjoint(operation.ask_again):
        # It was loaded before the store had the change, and a commit may have taken that back until now.
        stored = await storage.write(operation)
    supervisor.watchers.changed(stored.record, leaves=True)
    actor = supervisor.find(stored.record.session_id)
    if actor is not None and actor.current:
        return actor.view()
    return await local.stored_view(stored.record)


async def _show(actor: SessionActor | None, change: Relabel) -> None:
    if actor is not None:
        with contextlib.suppress(WarrenError):  # an actor that ends: the next one loads the stored change
            await actor.mailbox.ask(change)


async def archive(local: Local, call: ArchiveRequest) -> None:
    """Archive a session."""
    entry = local.entry("archive", call.session_id)
    await local.supervisor.revive(call.session_id).mailbox.ask(Retire("archive", entry))
    local.supervisor.shared.limiter.tenancy.retired(local.principal.tenant)


async def delete(local: Local, call: DeleteRequest) -> None:
    """Delete a session."""
    supervisor, session_id = local.supervisor, call.session_id
    shared = supervisor.shared
    if not shared.storage.durable:
        raise no_store(call)
    entry = local.entry("delete", session_id)
    try:
        await supervisor.revive(session_id).mailbox.ask(Retire("delete", entry))
    except (SessionNotFoundError, StoreError) as exc:
        if supervisor.find(session_id) is not None:
            raise  # its actor lives, and must not be robbed of its rows
        # Any other fault of the store says nothing of the session, whose actor has more to store than that it is gone.
        if isinstance(exc, StoreError) and exc.cause != "corrupt":
            raise
        # Deleted before, which is fine, or damaged so that no actor can load it.
        await erase(session_id, shared.storage, shared.memory, entry)
        supervisor.watchers.gone(session_id, local.principal.tenant)
        if isinstance(exc, SessionNotFoundError):
            return
    shared.limiter.tenancy.retired(local.principal.tenant, deleted=True)


HANDLERS: Final[dict[type, Any]] = {
    ReadRequest: read,
    ListRequest: list_,
    ResumeRequest: resume,
    ForkRequest: fork,
    DelegateRequest: delegate,
    LabelRequest: label,
    ArchiveRequest: archive,
    DeleteRequest: delete,
}
