"""The handlers of calls about agents."""

from typing import Any, Final

from warren.actors.calls.local import Local
from warren.agents.spec import AgentDetails, AgentPage, AgentVersion, view_of
from warren.base.fields import FieldValueError
from warren.calls.agents import AgentRequest, AgentsRequest
from warren.storage.queries import AgentVersions

VERSIONS: Final = 100
"""The newest versions of an agent that are shown with it."""


async def page(local: Local, call: AgentsRequest) -> AgentPage:
    """Return a page of the agents: those of this runtime, and those that sessions of the tenant were made of."""
    local.supervisor.check_open()
    stored = await local.read(AgentVersions(local.principal.tenant))
    found = {each.spec.name: view_of(each.spec, each.version, here=False) for each in stored}
    for agent in local.supervisor.shared.agents.known_to(local.principal.tenant).values():
        found[agent.name] = view_of(agent.spec, agent.version, here=True)
    views = [found[name] for name in sorted(found)]
    return AgentPage(tuple(views[call.offset : call.offset + call.limit]), tuple(stored.damaged))


async def show(local: Local, call: AgentRequest) -> AgentDetails:
    """Return an agent with its versions."""
    local.supervisor.check_open()
    agents, tenant = local.supervisor.shared.agents, local.principal.tenant
    stored = await local.read(AgentVersions(tenant, call.name, limit=VERSIONS))
    own = agents.known_to(tenant).get(call.name)
    if own is None and not stored:
        raise agents.unknown(call.name, "name", tenant)
    version = call.version or (stored[0].version if own is None else own.version)
    here = own is not None and own.version == version
    spec = own.spec if own is not None and here else None
    if spec is None:
        asked = await local.read(AgentVersions(tenant, call.name, version, limit=1))
        if not asked:
            raise FieldValueError("version", f"there is no such version of {call.name!r}").refusal()
        spec = asked[0].spec
    versions = [AgentVersion(each.version, each.created_at) for each in stored]
    return AgentDetails(version, here, spec, tuple(versions))


HANDLERS: Final[dict[type, Any]] = {AgentsRequest: page, AgentRequest: show}
