"""Sessions of tenants, and the answers of all reads about one."""

import attrs

from tests.storage.samples import turn, updated
from warren.creation import Creation
from warren.peers import Peer
from warren.storage import Commit
from warren.storage.store import TenantReads


def of_tenant(session_id: str, tenant: str, name: str) -> Commit:
    """Return the first commit of a session of a tenant, which has a name, a label and an idempotency key."""
    commit = updated(turn(session_id, labels={"team": "red"}), tenant=tenant, owner="ann", peer=Peer(name, ()))
    return attrs.evolve(commit, creation=Creation("k", {}))


async def seen(reads: TenantReads, session_id: str) -> list[object]:
    """Return the answers of all reads about a session."""
    return [
        await reads.has(session_id),
        await reads.record(session_id),
        await reads.holder(session_id),
        await reads.inbox(session_id),
        await reads.lost(session_id, 9),
        await reads.history(session_id),
    ]
