"""The planner of a session: makes the plan of each turn, and keeps the settings that its turns share."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from warren.actors.agents import instructed
from warren.actors.events.eventlog import EventLog
from warren.actors.events.fence import Guard
from warren.actors.protocol import Compact, StartTurn
from warren.actors.session.comms import Comms
from warren.actors.session.offered import instructions_of, tools_of
from warren.actors.session.trace import TurnTrace
from warren.actors.shared import HostObjects, Shared
from warren.actors.turn import attaching
from warren.actors.turn.attaching import check_kinds
from warren.actors.turn.chain import DELEGATE, Chain
from warren.actors.turn.compaction import window_for
from warren.actors.turn.hooked import HookChain
from warren.actors.turn.plan import TurnPlan, TurnSettings
from warren.actors.turn.room import CompactionPlan
from warren.actors.turn.route import Candidate, Route, candidates_of
from warren.actors.turn.running import ToolRunner
from warren.actors.turn.seam import AroundCall, AroundTool, AroundTurn, Seam
from warren.agents.agent import Instruct
from warren.agents.hooks import Hooks
from warren.base.errors import AgentError, InvalidParamsError, SessionNotFoundError
from warren.base.fields import encodable
from warren.base.values import define
from warren.base.windows import Window
from warren.compaction.policy import compactor_of
from warren.conversation.agents import AgentPin
from warren.conversation.budget import UNLIMITED, Budget, Meter
from warren.conversation.categories import Gates
from warren.conversation.messages import SystemMessage
from warren.conversation.options import NO_OPTIONS, SessionOptions, TurnOptions
from warren.conversation.records import SessionRecord
from warren.conversation.views import view_of
from warren.models.model import NO_FILES, Files, ModelChoice
from warren.models.tools import Tool
from warren.reports.ledger import Charge

agents_log: Final = logging.getLogger("warren.agents")
R = TypeVar("R")
logger: Final = logging.getLogger("warren.compaction")
OPEN: Final = Gates()
"""The gates of turns whose tool calls all run."""


@define(eq=False)
class Planner:
    """Makes the plans of one session's turns.

    Most turns of a session share their settings. These follow from the session's options and model, and from what the
    runtime has from its start to its end: its configuration, its catalog, its tools. So they are kept until the record
    has other options or another model; one that is loaded anew has. A turn has settings of its own if it brings options
    or tools, if tools of MCP servers come and go, if its model is a script, whose file may change, and if the session
    has a name: the tools for messages to peers belong to one turn.

    What depends on the moment is made for each turn that has it, and costs no other: the window that refusals have
    told, the compactor, the count of tokens for a limit, the guard of the fence.

    Attributes:
        shared: the resources of the runtime.
        comms: has the tools for messages to peers.
        host_objects: the tools and the compactor that the host gave the session.
        log: the events of the session.
        charges: gets the tokens of model calls.
        guard: makes the guard of a turn.
    """

    shared: Shared
    comms: Comms
    host_objects: HostObjects
    log: EventLog
    charges: list[Charge]
    guard: Callable[[], Guard | None]
    _kept: TurnSettings | None = None
    _told_version: bool = False
    _options: SessionOptions | None = None  # those of the session that the settings are kept for
    _model: str = ""
    _files: Files = NO_FILES  # goes with the settings that are kept
    _around_turn: Sequence[AroundTurn] = attrs.field(init=False)
    _delegates: bool = attrs.field(init=False)  # whether every session has the tool that delegates
    _surrounds: bool = attrs.field(init=False)  # whether the runtime has anything for seams, beside limits of payers

    def __attrs_post_init__(self) -> None:
        shared = self.shared
        self._delegates = shared.config.tools is not None and shared.config.tools.delegate
        self._around_turn = () if shared.tracer is None else (TurnTrace(shared.tracer, self.log),)
        self._surrounds = bool(
            self._around_turn or shared.servers or shared.storage.fence is not None or shared.config.tenants
        )

    def plan(self, message: StartTurn | Compact, record: SessionRecord) -> TurnPlan:  # noqa: C901 - in pieces it would cost each turn
        """Return the plan of the next turn.

        Args:
            message: the request for it.
            record: the session.

        Raises:
            SessionNotFoundError: if the session is archived.
            InvalidParamsError: if the model or the provider is unknown, if the model cannot be called with the options,
                or if a budget limits the cost and the prices of the model are unknown.
            AgentError: if the compactor cannot be made; the cause is `compactor`. If the session's agent has code that
                this process does not have; the cause is `agent_missing`.
        """
        if record.archived:
            raise SessionNotFoundError("the session is archived: it can be read, not continued", cause="archived")
        shared, peer, chain = self.shared, record.options.peer, None
        named = record.options.tools
        own = peer is not None or self._delegates or (named is not None and DELEGATE in named)
        instructs, hooks = None, shared.hooks
        if record.agent is not None:
            instructs, hooks, asks = self._of_agent(record, record.agent)
            own = own or asks
        if message.options is not NO_OPTIONS or message.tools or own or shared.servers is not None:
            if own and isinstance(message, StartTurn):
                chain = Chain(message.hops, message.options, message.payer)
            settings = self._settings(message, record, chain)
            files = self._files_for(settings, record)
        elif self._kept is not None and record.options is self._options and record.model == self._model:
            settings, files = self._kept, self._files
        else:
            settings = self._settings_to_keep(message, record)
            files = self._files = self._files_for(settings, record)
        if message.attachments and not message.result:
            check_kinds(message.attachments, settings.candidates)
        plan = TurnPlan(
            settings,
            message,
            settings.route if settings.route.single else Route(settings.candidates, shared.outages),
            Meter(
                settings.budget,
                settings.session_budget,
                record.spent,
                record.usage,
                asked=message.options.budget or UNLIMITED,
                delegated_before=record.delegated,
            ),
            files,
            self.charges,
            partial(self._within, record, settings),
            chain=chain,
            instructs=instructs,
        )
        if chain is not None:
            chain.offered, chain.choice, chain.meter = settings.tools, settings.choice, plan.meter
            chain.keeps_steps = settings.keeps_steps
        if settings.compacts or shared.lessons.known:
            plan.window, plan.compaction = plan.within(None)
        if self._surrounds or message.payer:
            self._surround(plan, record)
        if hooks or self.host_objects.hooks:
            plan.hooks = HookChain(hooks + self.host_objects.hooks, record)
        return plan

    def _of_agent(
        self, record: SessionRecord, pin: AgentPin
    ) -> tuple[Callable[[], Awaitable[SystemMessage]] | None, tuple[Hooks, ...], bool]:
        """Return what an agent brings to a turn: what makes its instructions, hooks, and whether agents are its tools.

        Instructions that stay as they are need nothing that makes them: that is None. Refuse a turn that lacks the code
        of its agent, whose hooks guard; tell once of a session with another version.
        """
        shared = self.shared
        agent = shared.agents.check(pin)
        if agent is None:
            return None, shared.hooks, False
        if agent.version != pin.version and not self._told_version:
            self._told_version = True
            session_id, here = record.session_id, agent.pin.ref
            agents_log.info("session %s: it was made of %s, and runs with the code of %s", session_id, pin.ref, here)
        made, hooks, asks = agent.instructions, shared.hooks + agent.hooks, bool(agent.workers)
        if not pin.made_anew or isinstance(made, str):
            return None, hooks, asks
        return partial(self._instructions, made, record, pin), hooks, asks

    async def _instructions(self, made: Instruct, record: SessionRecord, pin: AgentPin) -> SystemMessage:
        """Return the instructions that a function makes. Raises AgentError(cause="agent")."""
        text = await instructed(made, view_of(record, live=True, active=True), self.shared.tool_threads)
        text, tools = text or self.shared.config.system_prompt or "", self.host_objects.tools
        return SystemMessage(instructions_of(text, record, self.shared, self.comms, tools) or "", pin.ref)

    def choice_of(self, asked: TurnOptions, record: SessionRecord) -> ModelChoice | None:
        """Return the model of a turn of the session; None if it is not known, or cannot be called with the options."""
        try:
            return candidates_for(asked, record, self.shared)[0].choice
        except InvalidParamsError:
            return None

    def _settings(self, message: StartTurn | Compact, record: SessionRecord, chain: Chain | None) -> TurnSettings:
        shared, session, config = self.shared, record.options, self.shared.config
        asked = message.options
        candidates = candidates_for(asked, record, shared)
        tools = self._tools(message, record, chain)
        budget, session_budget = config.limits.turn.overridden(asked.budget), session.budget or UNLIMITED
        check_priced(candidates, budget, session_budget)
        gates, output = asked.gated(session, config.gates), asked.output(session)
        return TurnSettings(
            candidates,
            Route(candidates, shared.outages),
            session.of_calls if asked is NO_OPTIONS else asked.over(session),
            tools,
            tuple([each.spec for each in tools.values()]),
            None if gates == OPEN else gates,
            budget,
            session_budget,
            config.retry,
            config.limits,
            shared.tool_threads,
            config.compaction is not None,
            shared.lessons,
            output,
            shared.counters,
            shared.storage,
            shared.completions,
            asked.keep_alive,
            shared.storage.durable and asked.keeps_steps(session, config.durability),
            None if output is None else shared.agents.decoder(record, output),
        )

    def _settings_to_keep(self, message: StartTurn | Compact, record: SessionRecord) -> TurnSettings:
        """Make the settings of turns without options; sessions without options share those that are the same."""
        settings = self._settings(message, record, None)
        lasts = all(each.choice.lasts for each in settings.candidates)
        if lasts and record.options is self.shared.options:
            tools = [(name, id(tool)) for name, tool in settings.tools.items()]  # the settings keep them alive
            settings = self.shared.settings.setdefault((record.model, *tools), settings)
        self._kept, self._options, self._model = settings if lasts else None, record.options, record.model
        return settings

    def _files_for(self, settings: TurnSettings, record: SessionRecord) -> Files:
        read = partial(attaching.read, self.shared.storage, record.tenant, record.session_id)
        return Files(settings.candidates[0].kinds, read)

    def _surround(self, plan: TurnPlan, record: SessionRecord) -> None:
        """Give a plan its seam."""
        limiter, plan.guard = self.shared.limiter, self.guard()
        around, around_tool = list[AroundCall](), list[AroundTool]()
        if plan.guard is not None:
            around.append(plan.guard.around)
            around_tool.append(plan.guard.around_tool)
        plan.spending = limiter.tenancy.spends(record.session_id, record.tenant, plan.message.payer)
        if plan.spending is not None:
            around.append(partial(limiter.around_step, plan.spending.by))
        if self.shared.servers is not None and (untried := self.shared.servers.untried(record.session_id)):
            plan.await_tools = partial(self._await_tools, plan, record, untried)
            around.append(partial(_after, plan.await_tools))
        if around or self._around_turn:
            plan.seam = Seam(self._around_turn, around, around_tool)

    def runner(self, record: SessionRecord, guard: Guard | None) -> ToolRunner:
        """Return what runs tools of a session outside of its turns."""
        storage, most = self.shared.storage, self.shared.config.limits.max_attachment
        keep = partial(attaching.keep, storage, record.tenant, record.session_id, most)
        return ToolRunner(self.shared.tool_threads, guard, keep)

    async def tools_of(self, record: SessionRecord) -> Mapping[str, Tool]:
        """Return the tools of a session outside of its turns, once its servers have connected or failed to."""
        if self.shared.servers is not None:
            for each in self.shared.servers.untried(record.session_id):
                await each.wait()
        return tools_of(record, NO_OPTIONS, self.shared, self.comms, self.host_objects.tools)

    def _tools(self, message: StartTurn | Compact, record: SessionRecord, chain: Chain | None) -> Mapping[str, Tool]:
        given_tools = {**self.host_objects.tools, **message.tools}
        return tools_of(record, message.options, self.shared, self.comms, given_tools, chain=chain)

    async def _await_tools(self, plan: TurnPlan, record: SessionRecord, untried: list[trio.Event]) -> None:
        """Wait until the servers that were starting have connected or failed to; give the turn the tools of then.

        The connection timeout of each server bounds the wait.
        """
        if untried:
            while untried:
                await untried.pop().wait()
            settings = plan.settings  # the turn's own, as those of a runtime with servers are not kept
            settings.tools = self._tools(plan.message, record, plan.chain)
            settings.specs = tuple([each.spec for each in settings.tools.values()])

    def _within(
        self, record: SessionRecord, settings: TurnSettings, told: int | None
    ) -> tuple[Window | None, CompactionPlan | None]:
        """Return the window to keep requests in, and the settings of compaction; `told` is of a refusal in this turn.

        Without compaction only a window that a refusal has told counts.
        """
        shared, candidates, max_tokens = self.shared, settings.candidates, settings.options.max_tokens
        if told is None and shared.lessons.known:
            told = shared.lessons.of("window", candidates)
        config = shared.config.compaction and (record.options.compaction or shared.config.compaction)
        if config is None:
            return None if told is None else window_for(None, None, told, max_tokens, settings.tools), None
        known = min((each.entry.window for each in candidates if each.entry.window is not None), default=None)
        window = window_for(config, known, told, max_tokens, settings.tools)
        try:
            compactor = compactor_of(self.host_objects.compactor or shared.config.compactor, config, window)
        except Exception as exc:  # a host's own code may raise anything
            logger.exception("a compactor could not be made")
            raise AgentError(encodable(f"the compactor could not be made: {exc!r}"), cause="compactor") from exc
        index = shared.limiter.bounded(shared.memory.index_of(record), record.tenant, record.owner)
        return window, CompactionPlan(compactor, config.min_turns_between_compactions, index)


async def _after(ready: Callable[[], Awaitable[None]], proceed: Callable[[], Awaitable[R]]) -> R:
    """Make a step after something else: a wrapper of the seam."""
    await ready()
    return await proceed()


def candidates_for(asked: TurnOptions, record: SessionRecord, shared: Shared) -> Sequence[Candidate]:
    """Return the models of a turn of a session.

    Raises InvalidParamsError if one of them is unknown, or cannot be called with the options.
    """
    session, config = record.options, shared.config
    provider = asked.provider or (config.provider if asked.model else session.provider)
    options = session.of_calls if asked is NO_OPTIONS else asked.over(session)
    return candidates_of(shared.providers, asked.model or record.model, provider, options, config.models)


def check_priced(candidates: Sequence[Candidate], *budgets: Budget | None) -> None:
    """Raise InvalidParamsError if a budget limits the cost, and the prices of a model are unknown."""
    if all(budget is None or budget.max_cost is None for budget in budgets):
        return
    for model in (each.choice.model for each in candidates if not each.entry.priced):
        path = "$.budget.max_cost"
        problem = f"the prices of the model {model!r} are unknown; set them in [models.{model!r}], or set no max_cost"
        raise InvalidParamsError.at(path, problem)
