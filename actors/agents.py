"""The agents of a runtime: what their sessions need of this process."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import attrs

from warren.actors.resources.storage import Storage
from warren.agents.agent import Agent, provider_of
from warren.base.errors import AgentError, InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.values import define
from warren.conversation.agents import AgentPin
from warren.conversation.records import SessionRecord
from warren.models.model import Providers
from warren.models.tools import Tool
from warren.storage.operations import KeepAgent

NO_TOOLS: Final[Mapping[str, Tool]] = {}


@define(eq=False)
class Agents:
    """The agents of a runtime, by name.

    A session lives by its own record. Of the agent that its record names it needs only what no store can keep: the
    functions among its tools. It gets those of this process's agent of the name, whichever version that is.

    Attributes:
        by_name: the agents.
    """

    by_name: dict[str, Agent[Any]] = attrs.field(factory=dict)
    _kept: set[tuple[str, str, str]] = attrs.field(factory=set)  # tenant, name and version that the store has

    @classmethod
    def of(cls, agents: Iterable[Agent[Any]]) -> "Agents":
        """Return the registry of some agents, whose names differ."""
        return cls({each.name: each for each in agents})

    def add(self, agent: Agent[Any], providers: Providers) -> None:
        """Take an agent in, unless it is here. Raises InvalidParamsError if another one has its name."""
        known = self.by_name.get(agent.name)
        if known is None:
            self.by_name[agent.name] = agent
            if agent.own_model is not None:
                providers.add(provider_of(agent.name), agent.own_model)
        elif known != agent:
            raise FieldValueError(
                "agent.name", f"{agent.name!r} is the name of another agent here: {known.pin}"
            ).refusal()

    def named(self, name: str) -> Agent[Any]:
        """Return the agent of a name. Raises InvalidParamsError at `$.agent` if there is none."""
        found = self.by_name.get(name)
        if found is None:
            raise self.unknown(name, "agent")
        return found

    def unknown(self, name: str, field: str) -> InvalidParamsError:
        """Return the error for the name of an agent that there is not."""
        near = get_close_matches(name, self.by_name, n=1)
        cure = f"; did you mean {near[0]!r}?" if near else ""
        return FieldValueError(field, f"there is no agent {name!r} here{cure}").refusal()

    def tools_of(self, record: SessionRecord) -> Mapping[str, Tool]:
        """Return the functions of a session's agent, as this process has them."""
        agent = None if record.agent is None else self.by_name.get(record.agent.name)
        return NO_TOOLS if agent is None else agent.functions

    def check(self, pin: AgentPin) -> Agent[Any] | None:
        """Return the agent that runs a session in this process; None for one that needs no code.

        Raises AgentError(cause="agent_missing") if its agent has code, and this process does not have that.
        """
        agent = self.by_name.get(pin.name)
        if agent is None and pin.code:
            raise AgentError(
                f"the session's agent {pin.name!r} has code that this process does not have ({', '.join(pin.code)}): "
                "give the agent to open_supervisor(agents=[…])",
                cause="agent_missing",
            )
        return agent

    async def keep(self, storage: Storage, tenant: str, agent: Agent) -> None:
        """Have the store keep the version of an agent before a session of a tenant names it. Raises StoreError."""
        key = tenant, agent.name, agent.version
        if key not in self._kept:
            await storage.write(KeepAgent(tenant, agent.spec, storage.now()))
            self._kept.add(key)

    def forget(self) -> None:
        """Forget what the store has: it has gone back."""
        self._kept.clear()
