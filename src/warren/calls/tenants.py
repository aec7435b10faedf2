"""The figures of tenants, as plain values. They are of one moment."""

from warren.base.tenant_limits import TenantLimits
from warren.base.values import frozen


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
