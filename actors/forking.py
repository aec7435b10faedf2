"""Forking and labelling sessions: the store does the work, whoever has them in memory."""

import contextlib

import attrs

from warren.actors.protocol import Relabel
from warren.actors.storage import Storage
from warren.actors.supervisor.supervisor import Supervisor
from warren.errors import LeasedError, StoreError, WarrenError
from warren.forking import ForkRequest
from warren.records import SessionRecord
from warren.storage import Fork, Label, Labelled
from warren.views import SessionView, view_of


async def fork(supervisor: Supervisor, session_id: str, wanted: ForkRequest) -> SessionView:
    """See `SessionService.fork`."""
    supervisor.check_open()
    supervisor.scheduler.check_session()
    record = await _fork_in_store(supervisor.shared.storage, session_id, wanted)
    supervisor.registry.lend(session_id, record.session_id)
    return view_of(record, live=supervisor.is_live(None), active=False)


async def _fork_in_store(storage: Storage, session_id: str, wanted: ForkRequest) -> SessionRecord:
    try:
        return await storage.write_or_find(Fork(session_id, wanted), lambda store: store.record(wanted.session_id))
    except StoreError as exc:
        exc.session_id = session_id  # there is no other
        raise


async def label(supervisor: Supervisor, session_id: str, change: Relabel) -> SessionView:
    """See `SessionService.label`."""
    supervisor.check_open()
    storage = supervisor.shared.storage
    operation = Label(session_id, change.changes, change.title)
    try:
        stored = await storage.write(operation)
    except LeasedError:
        if not await storage.ask_for(session_id):
            raise
        stored = await storage.write(operation)
    return await _shown(supervisor, attrs.evolve(change, stored=stored), stored)


async def _shown(supervisor: Supervisor, change: Relabel, stored: Labelled) -> SessionView:
    """Have a live session show what is stored, and return its view."""
    actor = supervisor.find(stored.record.session_id)
    if actor is not None:
        with contextlib.suppress(WarrenError):  # it ends: its next one begins with what is stored
            await actor.mailbox.ask(change)
    actor = supervisor.find(stored.record.session_id)
    if actor is not None and actor.current:
        return actor.view()
    return view_of(stored.record, live=supervisor.is_live(actor), active=actor is not None and actor.turn_runs)
