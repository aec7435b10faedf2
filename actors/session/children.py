"""Sessions that work for other sessions, and the tool by which a model delegates work to them.

A child is a session like any other, with the rights, the owner and the tenant of its parent, or less. Its life:

1. `Children.begin` stores it with its prompt, in one change (`Delegate`). The id follows from the key of the call that
   delegates, so a call that is made again finds the child that it has made.
2. The call is a wait of the reason `child`, which was stored before the tool ran.
3. The commit that ends the child's first turn, whichever way, puts the notice `answer` into the parent's inbox.
   The parent's actor makes it the answer of the wait, and settles the notice in the same commit.
4. A commit of the parent that gives the wait up puts the notice `cancel` into the child's inbox. The end of a parent
   that is archived or deleted comes as the notice `archive` or `delete`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any

import attrs

from warren.actors.events.eventlog import utc_now
from warren.actors.limits.limiter import FOR_SESSION, FOR_TURN
from warren.actors.limits.tenancy import Accounts
from warren.actors.session.comms import Comms
from warren.actors.session.conversation import end_text, notice_of
from warren.actors.session.ending import Ending, result_of
from warren.actors.session.inboxes import Inboxes
from warren.actors.session.offered import instructions_of, names_of, tools_of
from warren.actors.session.planning import candidates_for, check_priced
from warren.actors.shared import Shared
from warren.actors.turn.chain import DELEGATE, Chain, budget_in
from warren.agents.agent import Agent
from warren.base.errors import AgentError, InvalidParamsError, SessionNotFoundError, StoreError, WarrenError
from warren.base.ids import id_beside, new_session_id
from warren.base.values import define, frozen
from warren.calls.creation import FIRST_PROMPT
from warren.conversation import codec
from warren.conversation.budget import NO_EXPENSE, UNLIMITED, Budget, Expense, expense_in
from warren.conversation.categories import Gates
from warren.conversation.delegation import ChildEnd, Delegation
from warren.conversation.inputs import Input
from warren.conversation.messages import SystemMessage
from warren.conversation.options import MAX_TITLE, NO_OPTIONS, SessionOptions, TurnOptions, handed_down
from warren.conversation.records import MessageRow, SessionRecord
from warren.conversation.waits import Wait
from warren.models.tools import Awaited, Tool, ToolContext, ToolError, current_call, tool
from warren.reports.audit import AuditEntry
from warren.reports.tracing import caller
from warren.storage.operations import NOTHING, UNKNOWN, Delegate, EndInputs, Sent
from warren.storage.queries import SessionRow


@frozen
class Wanted:
    """A child to make.

    Attributes:
        prompt: the prompt of its first turn.
        title: its title; None takes the beginning of the prompt.
        model: its model; None takes the parent's.
        system_prompt: its instructions; None takes the runtime's.
        tools: the names of its tools, of those that the parent is offered; None takes the parent's list.
        budget: its budget, which is at most what the parent has left.
        agent: the agent that it is made of, with all that this has; None takes what the parent has.
    """

    prompt: str
    title: str | None = None
    model: str | None = None
    system_prompt: str | None = None
    tools: tuple[str, ...] | None = None
    budget: Budget = UNLIMITED
    agent: Agent[Any] | None = None


def child_of(session_id: str, key: str) -> str:
    """Return the id of the child of a session that belongs to a key, such as that of the call that delegates."""
    return id_beside(session_id, f"child:{key}")


@define(eq=False)
class Children:
    """Makes sessions that work for other sessions.

    Attributes:
        check_session: raises CapacityExceededError if no more sessions may be made for some accounts.
        make: stores a child for some accounts and lets its turn begin; returns False if it is there already.
        sent: called with a session that has got something into its inbox.
    """

    _shared: Shared
    _inboxes: Inboxes
    _comms: Comms
    check_session: Callable[[Accounts], None]
    make: Callable[[Delegate, Accounts], Awaitable[bool]]
    sent: Callable[[Sequence[str]], None]

    async def begin(
        self,
        parent: SessionRecord,
        wanted: Wanted,
        session_id: str,
        *,
        by: Accounts,
        payer: str,
        options: TurnOptions = NO_OPTIONS,
        call: ToolContext | None = None,
        waits: bool = False,
        lent: Expense = NO_EXPENSE,
        audit: AuditEntry | None = None,
    ) -> None:
        """Make a child and let its turn begin, unless it is there.

        Args:
            parent: the session that it works for.
            wanted: the child.
            session_id: its id.
            by: the accounts that it counts for.
            payer: the client whose limit of tokens its turn counts for.
            options: the options of the turn that delegates.
            call: the call that waits for its end; None if none does.
            waits: whether the wait of that call is in the store.
            lent: the part of the budgets of the turn that delegates.
            audit: the entry of the audit.

        Raises:
            InvalidParamsError: if the model is unknown, or of another provider than the parent's.
            CapacityExceededError: if a limit of the parent or of the accounts is reached.
            BudgetExhaustedError: if no call waits, and the parent's budget leaves nothing.
            SessionNotFoundError: if the parent is archived or deleted.
            StoreError: if the store refuses.
        """
        refusal: WarrenError | None = None
        try:
            record, messages = self._made(parent, wanted, session_id, options, self._place(parent, call, lent))
            prompt = Input(new_session_id(), "queue", wanted.prompt, utc_now(), FIRST_PROMPT, payer=payer)
            if wanted.agent is not None:  # before a session names the version
                await self._shared.agents.keep(self._shared.storage, parent.tenant, wanted.agent)
            most, lends = self._shared.config.limits.children, call is None and parent.options.budget is not None
            if await self._make(Delegate(record, messages, prompt, most, waits, audit, lends), by):
                if lends:
                    self.sent((parent.session_id,))
                return
        except WarrenError as exc:
            refusal = exc
        # A call that is made again has its child, whatever the settings and the limits have come to be.
        there = await self._shared.storage.read(SessionRow(session_id, parent.tenant))
        if there is None:
            if refusal is None or refusal.session_id == session_id:
                if waits:  # its end, and be that the deletion, is in the inbox, or on its way as the answer
                    return
                raise SessionNotFoundError("its child session was deleted", session_id=session_id)
            raise refusal
        if call is not None and not waits and (ending := await self._end_of(there)) is not None:
            # The turn that had heard it was lost, and is run again.
            sends = (_told(parent, there, call.call_id, call.key, ending),)
            await self._shared.storage.write(EndInputs(parent.session_id, NOTHING, sends))
            self.sent((parent.session_id,))
        self.sent((session_id,))

    async def _make(self, operation: Delegate, by: Accounts) -> bool:
        """Make a child within the limits of some accounts; return False if it is there already. Raises WarrenError."""
        limiter, session_id = self._shared.limiter, operation.session_id
        if by:
            await limiter.look(by, FOR_SESSION)
            await limiter.look(by, FOR_TURN)
        self.check_session(by)
        limiter.check_turn(by, session_id, waits=True)
        with limiter.accepting(by, session_id) as accepted:
            made = await self.make(operation, by)
            accepted.take()
            return made

    def _place(self, parent: SessionRecord, call: ToolContext | None, lent: Expense) -> Delegation:
        """Return the place of a child below its parent. Raises InvalidParamsError if that is too deep."""
        above, most = parent.delegation, self._shared.config.limits.child_depth
        depth = 1 if above is None else above.depth + 1
        if depth > most:
            problem = f"has {depth - 1} levels of parents, the bound of limits.child_depth: do the work there"
            raise InvalidParamsError.at("$.session_id", problem)
        at = caller()
        trace = None if at is None else at.traceparent
        if call is None:
            return Delegation(parent.session_id, depth, traceparent=trace)
        part = None if lent is NO_EXPENSE else lent
        return Delegation(parent.session_id, depth, call.call_id, call.key, trace, part)

    async def ends_of(self, parent: SessionRecord, waits: Iterable[Wait]) -> Sequence[Sent]:
        """Return the notices of the ends of children that their parent has not heard of. Raises WarrenError."""
        found = list[Sent]()
        for wait in waits:
            if wait.child is None:
                continue
            there = await self._shared.storage.read(SessionRow(wait.child, parent.tenant))
            key = (wait.data or {}).get("key")
            if there is None:  # nobody knows what it has spent
                end = ChildEnd(wait.child, wait.call_id, key, True, wait.expense, wait.expense)
                text = end_text(wait.child, _gone("deleted"))
                notice = Input(new_session_id(), "answer", text, utc_now(), starts=False, end=end)
                found.append(Sent(parent.session_id, notice))
            elif (ending := await self._end_of(there)) is not None:
                found.append(_told(parent, there, wait.call_id, key, ending))
        return found

    async def _end_of(self, child: SessionRecord) -> Ending | None:
        """Return how the delegated turn of a child has ended; None if it has not. Raises WarrenError."""
        if child.archived:
            return _gone("archived")
        try:
            outcome = await self._inboxes.first_outcome(child.session_id)
        except StoreError as exc:
            if exc.cause != "corrupt":
                raise
            outcome = UNKNOWN
        if outcome:
            try:
                return result_of(outcome, child.session_id)
            except WarrenError as exc:
                return exc
        if outcome is not None and child.turn is None and not child.turn_open:
            return AgentError("its prompt was damaged in the store, and was set aside", cause="crash")
        return None

    async def outcome(self, record: SessionRecord) -> bytes | None:
        """Return how the delegated turn of a session has ended; None or empty if it has not, or if it is no child.

        Raises WarrenError.
        """
        return None if record.delegation is None else await self._inboxes.first_outcome(record.session_id)

    def within(self, parent: SessionRecord, wanted: Wanted) -> Wanted:
        """Return a child that no turn of the parent asks for.

        Raises InvalidParamsError if it is to have a tool that the parent is not offered.
        """
        if wanted.tools is not None:
            offered = tools_of(parent, NO_OPTIONS, self._shared, self._comms, {})
            names = names_of(wanted.tools)
            for index, name in enumerate(names):
                if name not in offered and name not in (parent.options.hosted_tools or ()):
                    problem = f"the session is offered no tool {name!r}, so a child cannot have it"
                    raise InvalidParamsError.at(f"$.tools[{index}]", problem)
            wanted = attrs.evolve(wanted, tools=names)
        return wanted

    def _made(
        self,
        parent: SessionRecord,
        wanted: Wanted,
        session_id: str,
        asked: TurnOptions,
        delegation: Delegation,
    ) -> tuple[SessionRecord, tuple[MessageRow, ...]]:
        """Return the record of a child, and its first messages. Raises InvalidParamsError."""
        shared, session, now = self._shared, parent.options, utc_now()
        agent, other_model = wanted.agent, wanted.model or asked.model
        if agent is None:
            pin = None if parent.agent is None else parent.agent.of_child
            model, options = other_model or parent.model, _options(session, asked, wanted)
        else:  # what the program has written, and no wish of a model
            pin, other_model = agent.pin, None
            model = agent.spec.options.model or shared.config.model
            options = shared.config.settled(_options_of(agent, session, asked, wanted.budget))
        record = SessionRecord(
            session_id,
            now,
            now,
            model,
            options,
            title=wanted.title,
            tenant=parent.tenant,
            owner=parent.owner,
            delegation=delegation,
            agent=pin,
        )
        candidates = candidates_for(NO_OPTIONS, record, shared)
        if other_model is not None:
            own, of_parent = candidates[0].choice.name, candidates_for(asked, parent, shared)[0].choice.name
            if own != of_parent:
                problem = f"is a model of {own}, and this session's models are of {of_parent}"
                raise InvalidParamsError.at("$.model", problem)
        check_priced(candidates, shared.config.limits.turn, record.options.budget, parent.options.budget)
        first: str | None = None
        if agent is None or agent.spec.made_by is None:  # else its first turn is told
            told = wanted.system_prompt if agent is None else agent.spec.instructions
            told = told or shared.config.system_prompt
            first = instructions_of(told, record, shared, self._comms, {})
        system = None if first is None else SystemMessage(first, None if agent is None else agent.pin.ref)
        messages = () if system is None else (MessageRow(0, now, codec.encode_message(system)),)
        return record.changed(message_count=len(messages)), messages

    def tools_of(self, record: SessionRecord, chain: Chain | None) -> Mapping[str, Tool]:
        """Return the tool by which a session's model delegates work; none if that is off.

        Args:
            record: the session.
            chain: the facts about the turn; None if the tools are only shown.
        """
        if not self._shared.delegates(record.options):
            return {}
        made, chain = _tool(), chain or Chain()
        call, awaits = partial(_delegate, self, record, chain), partial(_awaits, chain)
        return {DELEGATE: attrs.evolve(made, call=call, awaits=awaits)}

    def tools_of_agent(self, record: SessionRecord, chain: Chain | None) -> Mapping[str, Tool]:
        """Return the tools of a session's agent; those that are agents are bound to the session as `delegate` is."""
        tools = self._shared.agents.tools_of(record)
        if not any(each.agent is not None for each in tools.values()):
            return tools
        chain = chain or Chain()
        awaits = partial(_awaits, chain)
        return {
            name: each
            if each.agent is None
            else attrs.evolve(each, call=partial(_ask, self, record, chain, each.agent), awaits=awaits)
            for name, each in tools.items()
        }

    async def delegate(self, record: SessionRecord, chain: Chain, wanted: Wanted) -> None:
        """Make the child of the running call. Raises WarrenError as `begin`, and ToolError."""
        call = current_call()
        for name in wanted.tools or ():
            if name not in chain.offered:
                raise ToolError(f"tools: you have no tool {name!r}, so a child cannot have it")
        budget = chain.share_of(call.call_id, wanted.budget)
        if budget is None:
            raise ToolError("not delegated: the budget of this session leaves nothing for a child")
        await self.begin(
            record,
            attrs.evolve(wanted, budget=budget),
            chain.children[call.call_id],
            by=self._shared.limiter.tenancy.of_owner(record.tenant, record.owner),
            payer=chain.payer,
            options=chain.options,
            call=call,
            waits=chain.keeps_steps,
            lent=expense_in(chain.expense_of(call.call_id)),
        )


def _gone(how: str) -> AgentError:
    return AgentError(f"the session was {how}", cause="cancelled")


def _told(parent: SessionRecord, child: SessionRecord, call_id: str, key: str | None, ending: Ending) -> Sent:
    """Return the notice of the end of a child for the call that has made it, and that is run again or waits on."""
    place = child.delegation or Delegation(parent.session_id)
    return Sent(parent.session_id, notice_of(child, attrs.evolve(place, call_id=call_id, call_key=key), ending))


def _options(session: SessionOptions, asked: TurnOptions, wanted: Wanted) -> SessionOptions:
    """Return the options of a child: those of its parent in the turn that delegates, and never more."""
    options = session.handed_down if asked is NO_OPTIONS else handed_down(session, asked)
    if wanted.tools is not None:
        options = attrs.evolve(options, tools=wanted.tools)
    return options if wanted.budget == UNLIMITED else attrs.evolve(options, budget=wanted.budget)


def _options_of(agent: Agent[Any], session: SessionOptions, asked: TurnOptions, budget: Budget) -> SessionOptions:
    """Return the options of a child of an agent: the agent's own, within the share and the gates of its parent."""
    within = SessionOptions(
        budget=None if budget == UNLIMITED else budget,
        approvals=Gates().and_(session.approvals).and_(asked.approvals),
        durability=asked.durability or session.durability,
    )
    return agent.under(within)


async def _delegate(
    children: Any,
    record: Any,
    chain: Any,
    *,
    prompt: Annotated[str, "what to do, with all that has to be known for it: the child sees nothing of this session"],
    title: Annotated[str | None, "a few words for people"] = None,
    model: Annotated[str | None, "another model"] = None,
    system_prompt: Annotated[str | None, "instructions"] = None,
    tools: Annotated[list[str] | None, "names of the tools it may use, of yours; none for all of them"] = None,
    budget: Annotated[
        dict[str, int | float] | None, "limits: max_tokens, max_seconds, max_tool_calls, max_steps, max_cost"
    ] = None,
    time_limit: Annotated[float | None, "seconds after which you wait no more"] = None,  # noqa: ARG001 - see `_awaits`
) -> None:
    if not prompt.strip():
        raise ToolError("prompt: must not be blank")
    if title is not None and not 0 < len(title.strip()) <= MAX_TITLE:
        raise ToolError(f"title: must have 1 to {MAX_TITLE} characters")
    names = None if tools is None else tuple(tools)
    try:
        await children.delegate(record, chain, Wanted(prompt, title, model, system_prompt, names, budget_in(budget)))
    except WarrenError as exc:
        raise ToolError(f"not delegated: {exc.message.removeprefix('$.')}") from exc


async def _ask(children: Children, record: SessionRecord, chain: Chain, agent: Agent[Any], *, prompt: str) -> None:
    if not prompt.strip():
        raise ToolError("prompt: must not be blank")
    try:
        await children.delegate(record, chain, Wanted(prompt, budget=agent.budget or UNLIMITED, agent=agent))
    except WarrenError as exc:
        raise ToolError(f"the agent {agent.name} was not asked: {exc.message.removeprefix('$.')}") from exc


def _awaits(chain: Chain, call: ToolContext) -> Awaited:
    seconds = call.args.get("time_limit")
    limit = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None
    child = chain.children[call.call_id] = child_of(call.session_id, call.key)
    data: dict[str, Any] = {"key": call.key, "child": child}
    if share := chain.expense_of(call.call_id):
        data["share"] = share
    return Awaited("child", data, limit)


@cache
def _tool() -> Tool:
    """Return the tool, which `tools_of` binds to a session. Its schema takes time, so it is made once."""
    description = (
        "Have a new session do a piece of work, and get its answer. Call it several times in one answer to have the "
        "pieces done at once."
    )
    made = tool(name=DELEGATE, description=description, category="comms", restart="replay")(
        partial(_delegate, children=None, record=None, chain=None)
    )
    return attrs.evolve(made, awaits=partial(_awaits, Chain()))
