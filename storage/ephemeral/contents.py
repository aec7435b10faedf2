"""The contents of an in-memory store: what its operations change and its queries read."""

from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import ClassVar, Final

import attrs

from warren.agents.spec import StoredAgent
from warren.base.nodes import Announcement
from warren.base.values import define
from warren.calls.creation import Created
from warren.conversation.schedules import Run, Schedule
from warren.conversation.triggers import Delivery, Trigger
from warren.conversation.webhooks import Post, Webhook
from warren.reports.audit import AuditEntry
from warren.storage.ephemeral.sessions import EphemeralSession
from warren.storage.ledger import Key, Sums
from warren.storage.membership import now

KEEP_ENTRIES: Final = 10_000
"""Entries of the audit that are kept, the newest ones."""


@define(eq=False)
class Contents:
    """Sessions in dicts, and what is kept beside them.

    Attributes:
        sessions: the sessions by their ids.
        names: the session of each tenant and name among peers.
        created: the session of each tenant and idempotency key.
        ended: the tenant and the creation key of each session that has ended.
        ended_logs: archived sessions for readers that are behind as the session ends.
        ledger: the sums of charges.
        audit: the newest entries of the audit.
        schedules: the schedules by their ids, each with its newest runs.
        triggers: the triggers by their ids, each with its newest deliveries.
        agents: the versions of agents by tenant, name and version, the oldest first.
        webhooks: the webhooks by their ids.
        deliveries: what is posted to them, by its ids, the oldest first.
        last_input: the number of the newest input.
        started_at: the time at which the store was made.
        said: the newest announcement of this process as a node.
        clock: returns the time (UTC).
    """

    key: ClassVar[int] = 1
    sessions: dict[str, EphemeralSession] = attrs.field(factory=dict)
    names: dict[tuple[str, str], str] = attrs.field(factory=dict)
    created: dict[tuple[str, str], Created] = attrs.field(factory=dict)
    ended: dict[str, tuple[str, str | None]] = attrs.field(factory=dict)
    ended_logs: dict[str, EphemeralSession] = attrs.field(factory=dict)
    ledger: dict[Key, Sums] = attrs.field(factory=dict)
    audit: deque[AuditEntry] = attrs.field(factory=lambda: deque(maxlen=KEEP_ENTRIES))
    schedules: dict[str, tuple[Schedule, dict[datetime, Run]]] = attrs.field(factory=dict)
    triggers: dict[str, tuple[Trigger, dict[str, Delivery]]] = attrs.field(factory=dict)
    agents: dict[tuple[str, str, str], StoredAgent] = attrs.field(factory=dict)
    webhooks: dict[str, Webhook] = attrs.field(factory=dict)
    deliveries: dict[str, Post] = attrs.field(factory=dict)
    last_input: int = 0
    started_at: datetime = attrs.field(factory=now)
    said: Announcement = attrs.field(factory=Announcement)
    clock: Callable[[], datetime] = now

    def now(self) -> datetime:
        """Return the time."""
        return self.clock()

    def next_input(self) -> int:
        """Return the number of a new input."""
        self.last_input += 1
        return self.last_input

    def announce(self, announcement: Announcement | None) -> None:
        """Keep what this process says of itself as a node; None leaves what it has said before."""
        self.said = announcement or self.said
