"""The plan of a turn, from the settings of the runtime, of the session, and of the request."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from warren.actors import attaching
from warren.actors.attaching import check_kinds
from warren.actors.protocol import Compact, StartTurn
from warren.actors.session.comms import Comms
from warren.actors.session.offered import tools_of
from warren.actors.shared import HostObjects, Shared
from warren.actors.turn.chain import Chain
from warren.actors.turn.compaction import window_for
from warren.actors.turn.room import CompactionPlan
from warren.actors.turn.route import Candidate, Route, candidates_of
from warren.actors.turn.turn import TurnPlan
from warren.budget import UNLIMITED, Budget, Meter
from warren.compaction.policy import compactor_of
from warren.errors import AgentError, InvalidParamsError, SessionNotFoundError
from warren.fields import encodable
from warren.ledger import Charge
from warren.model import Files
from warren.options import NO_OPTIONS, ModelOptions, TurnOptions
from warren.records import SessionRecord
from warren.tools import Tool
from warren.windows import Window

logger: Final = logging.getLogger("warren.compaction")


def plan_of(
    message: StartTurn | Compact,
    record: SessionRecord,
    shared: Shared,
    comms: Comms,
    host_objects: HostObjects,
    *,
    charges: list[Charge],
) -> TurnPlan:
    """Return the plan of a session's next turn; `charges` gets the tokens of its calls.

    Raises:
        SessionNotFoundError: if the session is archived.
        InvalidParamsError: if the model or the provider is unknown, if the model cannot be called with the options, or
            if a budget limits the cost and the prices of the model are unknown.
        AgentError: if the compactor cannot be made; the cause is `compactor`.
    """
    if record.archived:
        raise SessionNotFoundError("the session is archived: it can be read, not continued", cause="archived")
    asked, given_tools = NO_OPTIONS, host_objects.tools
    if isinstance(message, StartTurn):
        asked, given_tools = message.options, {**host_objects.tools, **message.tools}
    session = record.options
    limits = shared.config.limits
    options = session.of_calls if asked is NO_OPTIONS else asked.over(session)
    candidates = candidates_for(asked, record, shared)
    chain = None
    if session.peer is not None and isinstance(message, StartTurn):
        chain = Chain(message.hops)
    tools = tools_of(record, asked, shared, comms, given_tools, chain=chain)
    attachments = message.attachments if isinstance(message, StartTurn) else ()
    if attachments:
        check_kinds(attachments, candidates)
    of_session = shared.storage, record.tenant, record.session_id
    turn_budget, session_budget = limits.turn.overridden(asked.budget), session.budget or UNLIMITED
    check_priced(candidates, turn_budget, session_budget)
    within = partial(_within, record, shared, host_objects, candidates, options, tools)
    window, compaction = within(None)
    return TurnPlan(
        prompt=message.prompt if isinstance(message, StartTurn) else None,
        instructions=message.instructions if isinstance(message, Compact) else None,
        route=Route(candidates, shared.outages),
        options=options,
        tools=tools,
        gates=asked.gated(session, shared.config.gates),
        meter=Meter.of(turn_budget, session_budget, record.spent, record.usage.known_cost),
        retry=shared.config.retry,
        limits=limits,
        tool_threads=shared.tool_threads,
        within=within,
        window=window,
        compaction=compaction,
        output=asked.output(session),
        keep_alive=asked.keep_alive,
        counters=shared.counters,
        charges=charges,
        attachments=attachments,
        files=Files(candidates[0].kinds, partial(attaching.read, *of_session)),
        keep=partial(attaching.keep, *of_session, limits.max_attachment),
        payer=message.payer,
        key=message.key if isinstance(message, StartTurn) else None,
        chain=chain,
        limiter=shared.limiter,
        lessons=shared.lessons,
        spending=shared.limiter.tenancy.spends(record.session_id, record.tenant, message.payer),
    )


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
        raise InvalidParamsError(f"{path}: {problem}", path=path)


def _within(  # noqa: PLR0917 - all but the last one are bound once for a turn
    record: SessionRecord,
    shared: Shared,
    host_objects: HostObjects,
    candidates: Sequence[Candidate],
    options: ModelOptions,
    tools: Mapping[str, Tool],
    told: int | None,
) -> tuple[Window | None, CompactionPlan | None]:
    """Return the window to keep requests in, and the settings of compaction; `told` is of a refusal in this turn.

    Without compaction only a window that a refusal has told counts.
    """
    if told is None and shared.lessons.known:
        told = shared.lessons.of("window", candidates)
    config = shared.config.compaction and (record.options.compaction or shared.config.compaction)
    if config is None:
        return None if told is None else window_for(None, None, told, options.max_tokens, tools), None
    known = min((each.entry.window for each in candidates if each.entry.window is not None), default=None)
    window = window_for(config, known, told, options.max_tokens, tools)
    distance = config.min_turns_between_compactions
    try:
        compactor = compactor_of(host_objects.compactor or shared.config.compactor, config, window)
    except Exception as exc:  # a host's own code may raise anything
        logger.exception("a compactor could not be made")
        raise AgentError(encodable(f"the compactor could not be made: {exc!r}"), cause="compactor") from exc
    index = shared.limiter.bounded(shared.memory.index_of(record), record.tenant, record.owner)
    return window, CompactionPlan(compactor, distance, index)
