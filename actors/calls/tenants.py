"""The figures of tenants: the work of their sessions in this process, and the counts that their limits are for."""

from collections import Counter

from warren.actors.supervisor.supervisor import Supervisor
from warren.base.tenant_limits import TenantLimits
from warren.calls.operators import TenantFigures, TenantsPage, TenantsRequest
from warren.storage.queries import KnownTenants


async def report(supervisor: Supervisor, wanted: TenantsRequest, tenant: str) -> TenantsPage:
    """Return the figures of a tenant, or of all. Raises StoreError."""
    live, running = Counter[str](), Counter[str]()
    for handle in supervisor.registry:
        actor = handle.actor
        if actor is not None and actor.record is not None:
            live[actor.record.tenant] += 1
            running[actor.record.tenant] += actor.turn_runs
    waiting = Counter(supervisor.scheduler.waiting.values())
    limiter = supervisor.shared.limiter
    names = [tenant]
    if wanted.all_tenants:
        stored = await supervisor.shared.storage.read(KnownTenants())
        names = sorted({*limiter.tenancy.tenants, *stored, *live, *waiting})
    page = names[wanted.offset : wanted.offset + wanted.limit]
    return TenantsPage(
        tuple(
            [
                TenantFigures(
                    tenant=name,
                    live_sessions=live[name],
                    running_turns=running[name],
                    waiting_sessions=waiting[name],
                    sessions=await limiter.count(name, "sessions"),
                    tokens_per_day=await limiter.count(name, "tokens_per_day"),
                    stored_bytes=await limiter.count(name, "stored_bytes"),
                    memory_texts=await limiter.count(name, "memory_texts"),
                    limits=limiter.tenancy.tenants.get(name, TenantLimits()),
                )
                for name in page
            ]
        ),
        len(names),
    )
