"""Sessions of tenants, and the answers of all reads about one."""

import attrs

from tests.storage.samples import turn, updated
from warren.calls.creation import Creation
from warren.conversation.peers import Peer
from warren.storage.operations import Commit
from warren.storage.queries import (
    Children,
    HasSession,
    LostEvents,
    SessionHolder,
    SessionRow,
    StoredHistory,
    WaitingInputs,
)
from warren.storage.store import Store


def of_tenant(session_id: str, tenant: str, name: str) -> Commit:
    """Return the first commit of a session of a tenant, which has a name, a label and an idempotency key."""
    commit = updated(turn(session_id, labels={"team": "red"}), tenant=tenant, owner="ann", peer=Peer(name, ()))
    return attrs.evolve(commit, creation=Creation("k", {}))


async def seen(store: Store, tenant: str, session_id: str) -> list[object]:
    """Return the answers to all queries of a tenant about a session."""
    kinds = (HasSession, SessionRow, SessionHolder, Children, WaitingInputs, StoredHistory)
    return [
        *[await store.read(kind(session_id, tenant)) for kind in kinds],
        await store.read(LostEvents(session_id, tenant, 9)),
    ]
