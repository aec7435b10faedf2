"""The agents of a runtime: what their sessions need of this process."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, cast

import attrs
import trio

from warren.actors.resources.storage import Storage
from warren.agents.agent import Agent, Instruct, with_workers
from warren.agents.spec import AgentSpec, provider_of
from warren.base.errors import AgentError, InvalidParamsError
from warren.base.fields import FieldValueError, encodable, text_problem
from warren.base.values import define
from warren.conversation import codec
from warren.conversation.agents import AgentPin
from warren.conversation.messages import SystemMessage
from warren.conversation.options import OutputWish
from warren.conversation.records import SessionRecord, Spoken
from warren.conversation.views import SessionView
from warren.models.model import Providers
from warren.models.tools import Tool
from warren.settings.config import Config
from warren.storage.operations import KeepAgent
from warren.storage.queries import AgentVersions, InstructionsBefore, Query

NO_TOOLS: Final[Mapping[str, Tool]] = {}


TIMEOUT: Final = 10.0
"""Seconds that a function has for the instructions of a turn."""
logger: Final = logging.getLogger("warren.agents")


async def instructed(made: Instruct, view: SessionView, threads: trio.CapacityLimiter) -> str:
    """Return the instructions that a function of the program makes for a turn of a session.

    Raises AgentError(cause="agent") if it fails, takes too long or returns no text.
    """
    result: object = None
    try:
        with trio.fail_after(TIMEOUT):
            if inspect.iscoroutinefunction(made):
                result = await made(view)
            else:
                result = await trio.to_thread.run_sync(made, view, abandon_on_cancel=True, limiter=threads)
                result = await result if inspect.isawaitable(result) else result
    except trio.TooSlowError:
        raise _failed(f"took longer than {TIMEOUT:g} s") from None
    except Exception as exc:
        logger.exception("session %s: its agent's instructions could not be made", view.state.session_id)
        raise _failed(f"raised {exc!r}") from exc
    problem = text_problem(result) if isinstance(result, str) else f"returned {type(result).__name__}, and not a text"
    if problem is not None:
        raise _failed(problem)
    return cast("str", result)


def spoken_by(spec: AgentSpec, since: int, record: SessionRecord, config: Config) -> Spoken:
    """Return what a session has of an agent that takes it over, whose instructions are at a position.

    Its budget and its name among peers stay, and no gate of it opens.
    """
    own, pin = record.options, spec.pin
    options = attrs.evolve(
        config.settled(spec.options),
        budget=own.budget,
        approvals=own.approvals if spec.options.approvals is None else spec.options.approvals.and_(own.approvals),
        peer=own.peer,
        keep_alive=own.keep_alive,
        durability=own.durability,
    )
    return Spoken(attrs.evolve(pin, since=since), spec.options.model or config.model, options)


async def spoken_at(
    at: int, record: SessionRecord, read: Callable[[Query[Any]], Awaitable[Any]], config: Config
) -> Spoken | None:
    """Return what a session had of its agent at a position before its present instructions.

    Raises StoreError, and InvalidParamsError if it had no agent, or none that is known.
    """
    now = Spoken(record.agent, record.model, record.options)
    if record.agent is None or at > record.agent.since:
        return now
    row = await read(InstructionsBefore(record.session_id, at))
    told = None if row is None else codec.decode_message(row.body)
    if row is None and record.agent.made_anew:
        return attrs.evolve(now, agent=attrs.evolve(record.agent, since=0))
    if row is not None and isinstance(told, SystemMessage) and told.agent is not None:
        if told.agent == record.agent.ref:
            return attrs.evolve(now, agent=attrs.evolve(record.agent, since=row.position))
        query = AgentVersions(record.tenant, told.agent.name, told.agent.version)
        for each in await read(query):
            return spoken_by(each.spec, row.position, record, config)
    problem = f"must be above {record.agent.since}: what agent the session had before is not known"
    raise FieldValueError("at", problem).refusal()


def _failed(problem: str) -> AgentError:
    return AgentError(encodable(f"the function that makes the agent's instructions {problem}"), cause="agent")


@define(eq=False)
class Agents:
    """The agents of a runtime, by name.

    A session lives by its own record. Of the agent that its record names it needs only what no store can keep: the
    functions among its tools. It gets those of this process's agent of the name, whichever version that is.

    Attributes:
        by_name: the agents.
    """

    by_name: dict[str, Agent[Any]] = attrs.field(factory=dict)
    _tenants: Mapping[str, Collection[str]] = attrs.field(factory=dict)  # those that know an agent, unless all do
    _kept: set[tuple[str, str, str]] = attrs.field(factory=set)  # tenant, name and version that the store has

    @classmethod
    def of(cls, agents: Iterable[Agent[Any]], tenants: Mapping[str, Collection[str]]) -> "Agents":
        """Return the registry of some agents, whose names differ, and of those among their tools.

        `tenants` has those that know an agent, unless all do.
        """
        every, known = with_workers(agents, tenants)
        return cls({each.name: each for each in every}, known)

    def add(self, agent: Agent[Any], providers: Providers) -> None:
        """Take an agent in with those among its tools, unless they are here.

        Raises InvalidParamsError if another one has the name of one of them.
        """
        new = dict[str, Agent[Any]]()
        for each in with_workers((agent,), {})[0]:
            known = self.by_name.get(each.name) or new.setdefault(each.name, each)
            if known != each:
                problem = f"{each.name!r} is the name of another agent here: {known.pin}"
                raise FieldValueError("agent.name", problem).refusal()
        self.by_name.update(new)
        for each in new.values():
            if each.own_model is not None:
                providers.add(provider_of(each.name), each.own_model)

    def known_to(self, tenant: str) -> Mapping[str, Agent[Any]]:
        """Return the agents that sessions of a tenant can be made of, by name."""
        if not self._tenants:
            return self.by_name
        return {name: each for name, each in self.by_name.items() if tenant in self._tenants.get(name, (tenant,))}

    def named(self, name: str, tenant: str) -> Agent[Any]:
        """Return the agent of a name. Raises InvalidParamsError at `$.agent` if the tenant knows none."""
        found = self.known_to(tenant).get(name)
        if found is None:
            raise self.unknown(name, "agent", tenant)
        return found

    def unknown(self, name: str, field: str, tenant: str) -> InvalidParamsError:
        """Return the error for the name of an agent that there is not."""
        near = get_close_matches(name, self.known_to(tenant), n=1)
        cure = f"; did you mean {near[0]!r}?" if near else ""
        return FieldValueError(field, f"there is no agent {name!r} here{cure}").refusal()

    def tools_of(self, record: SessionRecord) -> Mapping[str, Tool]:
        """Return the functions of a session's agent, as this process has them."""
        agent = self._of(record)
        return NO_TOOLS if agent is None else agent.functions

    def decoder(self, record: SessionRecord, output: OutputWish) -> Callable[[Any], object] | None:
        """Return what makes values of the output type of a session's agent; None if a turn has another schema."""
        agent = self._of(record)
        shape = None if agent is None else agent.shape
        return None if shape is None or shape.schema != output.schema else shape.decode

    def _of(self, record: SessionRecord) -> Agent[Any] | None:
        """Return the agent of a session as this process has it; None if it has none, or this process has none."""
        return None if record.agent is None else self.by_name.get(record.agent.name)

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
