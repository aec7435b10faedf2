"""Forking and labelling sessions: with a store it does the work, whoever has them in memory; else their actors do."""

import contextlib

import attrs

from warren.actors.protocol import Loaded, Relabel
from warren.actors.storage import StorageActor
from warren.actors.supervisor.supervisor import Supervisor
from warren.errors import LeasedError, StoreError, WarrenError
from warren.forking import ForkRequest, forked
from warren.records import SessionRecord
from warren.storage import Fork, Label, Labelled
from warren.views import SessionView, view_of


async def fork(supervisor: Supervisor, session_id: str, wanted: ForkRequest) -> SessionView:
    """See `SessionService.fork`."""
    supervisor.check_open()
    storage = supervisor.shared.storage
    if storage is None:
        return await _fork_in_memory(supervisor, session_id, wanted)
    record = await _fork_in_store(storage, session_id, wanted)
    supervisor.lend(session_id, record.session_id)
    return view_of(record, live=False, active=False)


async def _fork_in_memory(supervisor: Supervisor, session_id: str, wanted: ForkRequest) -> SessionView:
    supervisor.room.check_memory(supervisor.live)
    original = supervisor.revive(session_id)
    await original.mailbox.ask(Loaded())
    kept = original.held.kept()
    actor = supervisor.spawn_fork(kept.cut(forked(kept, wanted)), supervisor.own_of(session_id))
    return view_of(await actor.mailbox.ask(Loaded()), live=True, active=False)


async def _fork_in_store(storage: StorageActor, session_id: str, wanted: ForkRequest) -> SessionRecord:
    try:
        return await storage.write_or_find(Fork(session_id, wanted), lambda store: store.record(wanted.session_id))
    except StoreError as exc:
        exc.session_id = session_id  # there is no other
        raise


async def label(supervisor: Supervisor, session_id: str, change: Relabel) -> SessionView:
    """See `SessionService.label`."""
    supervisor.check_open()
    storage = supervisor.shared.storage
    if storage is None:
        actor = supervisor.revive(session_id)
        record = await actor.mailbox.ask(change)
        return view_of(record, live=True, active=actor.turn_runs)
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
    return view_of(stored.record, live=actor is not None, active=actor is not None and actor.turn_runs)
