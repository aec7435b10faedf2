"""Calls of operators: audit, usage, tenants, nodes, the store."""

from datetime import datetime
from typing import ClassVar

import attrs

from warren.base.fields import Between, OneOf, is_flag, is_moment, is_text, is_whole, not_blank, optional
from warren.base.nodes import Node
from warren.base.tenant_limits import TenantLimits
from warren.base.values import frozen
from warren.calls.answers import Asked, Nodes
from warren.calls.base import MAX_OFFSET, MAX_PAGE, Call, Facts
from warren.reports.audit import ACTIONS, MAX_ENTRIES, Action, AuditPage, is_cursor, place_of
from warren.reports.ledger import GROUPS, By, UsageReport
from warren.reports.reports import StoreReport


@frozen(kw_only=True)
class AuditRequest(Call[AuditPage]):
    """A part of the audit.

    Attributes:
        since: the earliest time; null begins with the first entry that is kept.
        until: the time before which entries are returned; null is now.
        action: return only entries of this action.
        session_id: return only entries about this session.
        all_tenants: return the entries of all tenants, and of none; it needs the scope `tenant:admin`.
        limit: the most entries to return.
        cursor: the place from which to go on, from an earlier answer; null begins at `since`.
    """

    facts: ClassVar[Facts] = Facts(
        name="audit/list",
        doc="Show entries of the audit, oldest first.",
        scope="session:admin",
        repeatable=True,
        bulky=True,
        audited="read",
    )
    since: datetime | None = attrs.field(default=None, validator=optional(is_moment))
    until: datetime | None = attrs.field(default=None, validator=optional(is_moment))
    action: Action | None = attrs.field(default=None, validator=optional(OneOf(ACTIONS)))
    session_id: str | None = attrs.field(default=None, validator=optional(is_text))
    all_tenants: bool = attrs.field(default=False, validator=is_flag)
    limit: int = attrs.field(default=100, validator=[is_whole, Between(1, MAX_ENTRIES)])
    cursor: str | None = attrs.field(default=None, validator=optional(is_cursor))

    @property
    def after(self) -> tuple[int, int] | None:
        """The time, in microseconds since 1970, and the number of the entry behind which to go on."""
        return None if self.cursor is None else place_of(self.cursor)


@frozen(kw_only=True)
class UsageRequest(Call[UsageReport]):
    """A report on the use of models.

    Attributes:
        by: the group of each row. `session` and `label` are of the sessions that are stored, and whose last turn ended
            within the time; all others are of the ledger, which keeps the tokens of deleted sessions, too.
        since: a time in the first hour that counts; null begins with the oldest one.
        until: hours that begin then or later do not count; null ends with the newest one.
        all_tenants: count the use of all tenants; it needs the scope `tenant:admin`.
        offset: number of rows to skip.
        limit: the most rows to return.
    """

    facts: ClassVar[Facts] = Facts(
        name="usage/get",
        doc="Show the tokens and the cost of models, summed by hour, day, model, tenant, session or label.",
        scope="session:read",
        repeatable=True,
        bulky=True,
    )
    by: By = attrs.field(default="day", validator=OneOf(GROUPS))
    since: datetime | None = attrs.field(default=None, validator=optional(is_moment))
    until: datetime | None = attrs.field(default=None, validator=optional(is_moment))
    all_tenants: bool = attrs.field(default=False, validator=is_flag)
    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)])
    limit: int = attrs.field(default=100, validator=[is_whole, Between(1, MAX_PAGE)])


@frozen(kw_only=True)
class TenantFigures:
    """The figures of one tenant. Those that have the name of a limit count against it.

    Attributes:
        tenant: its name.
        live_sessions: its sessions in the memory of this process.
        running_turns: its turns that run in this process.
        waiting_sessions: its sessions in this process with an input that waits for room.
        sessions: sessions that are neither archived nor deleted.
        tokens_per_day: input and output tokens of model calls since midnight (UTC).
        stored_bytes: bytes of the messages, inputs, events and files in the store.
        memory_texts: texts in the memory.
        limits: its limits; null is no limit.
    """

    tenant: str
    live_sessions: int
    running_turns: int
    waiting_sessions: int
    sessions: int
    tokens_per_day: int
    stored_bytes: int
    memory_texts: int
    limits: TenantLimits


@frozen
class TenantsPage:
    """The figures of some tenants.

    Attributes:
        tenants: the tenants of the page, by their names.
        count: number of all tenants.
    """

    tenants: tuple[TenantFigures, ...]
    count: int


@frozen(kw_only=True)
class TenantsRequest(Call[TenantsPage]):
    """The figures of tenants.

    Attributes:
        all_tenants: return those of all tenants that have limits, sessions or usage; it needs the scope `tenant:admin`.
            Else there are those of the own tenant.
        offset: number of tenants to skip, in the order of their names.
        limit: the most tenants to return.
    """

    facts: ClassVar[Facts] = Facts(
        name="tenants/list",
        doc="Show the figures of the tenant, or of all: sessions, running turns, limits and what counts against them.",
        scope="session:read",
        repeatable=True,
        bulky=True,
    )
    all_tenants: bool = attrs.field(default=False, validator=is_flag)
    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)])
    limit: int = attrs.field(default=100, validator=[is_whole, Between(1, MAX_PAGE)])


@frozen
class NodesRequest(Call[tuple[Node, ...]]):
    """The living nodes."""

    facts: ClassVar[Facts] = Facts(
        name="nodes/list",
        doc="Show the living processes that have the store open.",
        scope="metrics:read",
        repeatable=True,
        wraps=Nodes,
    )


@frozen
class DrainRequest(Call[None]):
    """A node to drain.

    Attributes:
        name: its name, as `nodes/list` has it.
    """

    facts: ClassVar[Facts] = Facts(
        name="nodes/drain",
        doc="Ask a node to end in order: its sessions go on at the others. The answer does not wait for that.",
        scope="tenant:admin",
        repeatable=True,
        wraps=Asked,
    )
    name: str = attrs.field(validator=[is_text, not_blank])

    def answer(self, _result: None) -> Asked:
        """Return the answer on the wire, which names the node."""
        return Asked(self.name)


@frozen
class CheckStoreRequest(Call[StoreReport]):
    """An examination of the store."""

    facts: ClassVar[Facts] = Facts(
        name="store/check",
        doc="Examine the store beside the sessions, as `warren doctor` does; that may take minutes.",
        scope="metrics:read",
        repeatable=True,
        costly=True,
        needs="session-store",
    )
