"""Forking and labelling sessions. The store does the work, also for a session that another process has in memory."""

import contextlib

from warren.actors.eventlog import utc_now
from warren.actors.limits.limiter import FOR_SESSION
from warren.actors.protocol import Relabel
from warren.actors.supervisor.supervisor import Supervisor
from warren.base.errors import LeasedError, StoreError, WarrenError
from warren.base.ids import new_session_id
from warren.base.principals import Principal
from warren.calls.requests import ForkRequest, LabelRequest
from warren.conversation.views import SessionView, view_of
from warren.storage import Fork, Label, Labelled
from warren.storage.queries import ANY_TENANT, SessionRow


async def fork(supervisor: Supervisor, wanted: ForkRequest, principal: Principal) -> SessionView:
    """See `SessionService.fork`; `principal` makes the fork."""
    supervisor.check_open()
    limiter = supervisor.shared.limiter
    by = limiter.tenancy.of(principal)
    await limiter.look(by, FOR_SESSION)
    supervisor.scheduler.check_session(by)
    session_id = new_session_id()
    entry = supervisor.shared.auditor.entry(principal, "fork", session_id, of=wanted.session_id)
    operation = Fork(session_id, utc_now(), wanted, principal.name, entry)
    try:
        limiter.tenancy.creates(by)
        with limiter.tenancy.creating(by):
            made = SessionRow(session_id, ANY_TENANT)
            record = await supervisor.shared.storage.write_or_find(operation, lambda store: store.read(made))
    except StoreError as exc:
        exc.session_id = wanted.session_id  # the fork's own id names no session: nothing was made
        raise
    supervisor.watchers.changed(record)
    supervisor.registry.lend(wanted.session_id, record.session_id)
    return view_of(record, live=supervisor.is_live(None), active=False)


async def label(supervisor: Supervisor, wanted: LabelRequest) -> SessionView:
    """See `SessionService.label`."""
    supervisor.check_open()
    storage = supervisor.shared.storage
    operation = Label(wanted.session_id, wanted.labels or {}, wanted.title)
    try:
        stored = await storage.write(operation)
    except LeasedError:
        if not await storage.ask_for(wanted.session_id):
            raise
        stored = await storage.write(operation)
    return await _shown(supervisor, Relabel(operation.changes, operation.title, stored), stored)


async def _shown(supervisor: Supervisor, change: Relabel, stored: Labelled) -> SessionView:
    """Return the view of a session; a live session shows the stored change from now on."""
    actor = supervisor.find(stored.record.session_id)
    if actor is not None:
        with contextlib.suppress(WarrenError):  # an actor that ends: the next one loads the stored change
            await actor.mailbox.ask(change)
    supervisor.watchers.changed(stored.record, leaves=True)
    actor = supervisor.find(stored.record.session_id)
    if actor is not None and actor.current:
        return actor.view()
    return view_of(stored.record, live=supervisor.is_live(actor), active=actor is not None and actor.turn_runs)
