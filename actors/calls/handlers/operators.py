"""The handlers of the calls of operators."""

from typing import Any, Final

import attrs

from warren.actors.calls import tenants as figures
from warren.actors.calls.local import Local
from warren.base.fields import FieldValueError
from warren.base.nodes import Node, not_drained
from warren.base.principals import ACROSS, check_right
from warren.calls.operators import (
    AuditRequest,
    CheckStoreRequest,
    DrainRequest,
    NodesRequest,
    TenantsPage,
    TenantsRequest,
    UsageRequest,
)
from warren.reports.audit import AuditPage, Outcome
from warren.reports.ledger import UsageReport, report_of
from warren.reports.reports import StoreReport
from warren.storage.queries import ANY_TENANT, AuditEntries, LedgerSums, LivingNodes


async def audit(local: Local, call: AuditRequest) -> AuditPage:
    """Return entries of the audit."""
    local.supervisor.check_open()
    if call.all_tenants:
        _check_across(local)
    await local.supervisor.shared.auditor.settle()
    return await local.read(AuditEntries(ANY_TENANT if call.all_tenants else local.principal.tenant, call))


async def usage(local: Local, call: UsageRequest) -> UsageReport:
    """Return the tokens and the cost of models."""
    local.supervisor.check_open()
    if call.all_tenants:
        _check_across(local)
    tenant = ANY_TENANT if call.all_tenants else local.principal.tenant
    sums = await local.read(LedgerSums(tenant, call.by, call.since, call.until))
    return report_of(call.by, sums, call.offset, call.limit)


async def tenants(local: Local, call: TenantsRequest) -> TenantsPage:
    """Return the figures of tenants."""
    local.supervisor.check_open()
    if call.all_tenants:
        _check_across(local)
    return await figures.report(local.supervisor, call, local.principal.tenant)


async def nodes(local: Local, _call: NodesRequest) -> tuple[Node, ...]:
    """Return the living nodes."""
    local.supervisor.check_open()
    return tuple(await local.read(LivingNodes()))


async def drain(local: Local, call: DrainRequest) -> None:
    """Ask a node to end in order."""
    local.supervisor.check_open()
    store = await local.supervisor.shared.storage.reader()
    if not await store.ask_to_drain(call.name):
        raise FieldValueError("name", not_drained(call.name, await store.read(LivingNodes()))).refusal()
    local.note(local.drain_entry(call.name))


async def check_store(local: Local, _call: CheckStoreRequest) -> StoreReport:
    """Examine the store."""
    local.supervisor.check_open()
    return await local.checks.run(local.supervisor.shared.config, ids=ACROSS in local.principal.scopes)


def _check_across(local: Local) -> None:
    """Add a read of all tenants to the audit. Raises PermissionDeniedError if the caller may not read them."""
    outcome: Outcome = "done" if ACROSS in local.principal.scopes else "refused"
    local.note(attrs.evolve(local.entry("read", tenant="*"), outcome=outcome))
    check_right(local.principal, ACROSS)


HANDLERS: Final[dict[type, Any]] = {
    AuditRequest: audit,
    UsageRequest: usage,
    TenantsRequest: tenants,
    NodesRequest: nodes,
    DrainRequest: drain,
    CheckStoreRequest: check_store,
}
