"""The handlers of calls that run turns, end them, and reach into them."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from functools import partial
from operator import attrgetter
from typing import Any, Final

import trio

from warren.actors.calls.local import Local
from warren.actors.events.eventlog import Beginning, Telling, utc_now
from warren.actors.limits.limiter import FOR_TURN
from warren.actors.limits.tenancy import Acceptance
from warren.actors.protocol import AwaitTurn, Compact, GiveAnswer, Interrupt, StartTurn
from warren.actors.session.answers import same_result
from warren.actors.session.ending import result_of
from warren.actors.session.planning import candidates_for
from warren.actors.turn import attaching
from warren.actors.turn.schemas import check_options
from warren.base.errors import (
    AgentError,
    CompactionDisabledError,
    SessionBusyError,
    SessionNotRunningError,
    StoreError,
    WarrenError,
)
from warren.base.fields import FieldValueError, encodable
from warren.base.ids import new_session_id
from warren.calls.turns import (
    ApprovalsRequest,
    ApproveRequest,
    CompactRequest,
    CompleteRequest,
    ContextRequest,
    InputsRequest,
    InterruptRequest,
    PeerMessage,
    PeersRequest,
    SessionCall,
    TurnCall,
    WaitRequest,
    WithdrawRequest,
)
from warren.calls.typed import decoder
from warren.conversation import codec
from warren.conversation.attachments import Attachment, Blob
from warren.conversation.categories import Decision
from warren.conversation.completion import CompletionToken, expired
from warren.conversation.inputs import Input
from warren.conversation.messages import ToolResult
from warren.conversation.options import NO_OPTIONS, TurnOptions, turn_options
from warren.conversation.peers import PeerInfo
from warren.conversation.records import CompactionEntry
from warren.conversation.views import ApprovalPage, ListedApproval, TurnResult, listed, pending_approval
from warren.conversation.waits import DECIDED, Wait, WaitReason
from warren.models.tools import Tool, bounded
from warren.reports.tracing import caller
from warren.storage.queries import StoredWait, WaitingInputs, WaitList

OUTSIDE: Final[tuple[WaitReason, ...]] = ("outside",)
MOMENT: Final = 0.25
"""Seconds that an interrupted turn has to end before the interrupter hears of a store that does not answer."""


async def start(local: Local, call: TurnCall) -> TurnResult:
    """Run a turn."""
    options, turn_tools = turn_options(call), by_name(call.extra_tools)
    if options is not NO_OPTIONS:
        options = await check_options(options)
        options.check_kinds(local.supervisor.shared.categories)
    files, new = await _attached(local, call, options) if call.attachments else ((), ())
    payer, begun = local.payer, beginning_of(call)
    if call.mode == "busy":
        decode = None if call.output_type is None else decoder(call)
        turn = StartTurn(call.prompt, options, turn_tools, caller(), files, new, payer, begun=begun, decode=decode)
        running = local.turn(call.session_id, turn)
        return await (local.counted(new, running) if new else running)
    input_ = Input(
        new_session_id(),
        call.mode,
        call.prompt,
        utc_now(),
        call.idempotency_key,
        options=options,
        attachments=files,
        payer=payer,
        not_before=None if call.not_before is None else call.not_before.astimezone(UTC),
    )
    return await enqueue(local, call.session_id, input_, turn_tools, begun, blobs=new)


async def _attached(
    local: Local, call: TurnCall, options: TurnOptions
) -> tuple[tuple[Attachment, ...], tuple[Blob, ...]]:
    """Return the files of a prompt, which its model takes, and those of them that are to be stored."""
    shared, session_id = local.supervisor.shared, call.session_id
    record = await local.record(session_id)
    find = partial(attaching.find_in, shared.storage, record.tenant, session_id)
    sent = await attaching.prepared(call.attachments, shared.config.limits.max_attachment, find)
    attaching.check_kinds(attaching.references(sent), candidates_for(options, record, shared))
    fetches = fetch_of(local, sent) is not None and not await _is_known(local, call)
    kept = await kept_of(local, sent) if fetches else sent
    new = attaching.new_of(kept)
    await local.check_room(new)
    return attaching.references(kept), new


async def _is_known(local: Local, call: TurnCall) -> bool:
    """Return whether a prompt is in the store already, under its key, before its files are fetched.

    Raises the error of one that is sure to be refused: it asks no other server.
    """
    limiter, actor = local.supervisor.shared.limiter, local.supervisor.registry.find(call.session_id)
    if call.mode == "busy":
        if actor is not None and actor.turn_runs:
            raise SessionBusyError("the session already runs a turn", session_id=call.session_id)
    elif (key := call.idempotency_key) is not None:
        input_ = Input(new_session_id(), call.mode, call.prompt, utc_now(), key)
        if await local.supervisor.inboxes.is_known(call.session_id, input_):
            return True
    if local.by:
        await limiter.look(local.by, FOR_TURN)
        limiter.check_turn(local.by, call.session_id)
    return False


async def kept_of(local: Local, sent: tuple[Blob, ...]) -> tuple[Blob, ...]:
    """Return the files of a prompt, those at a URL with their bytes if the host fetches them."""
    if (fetch := fetch_of(local, sent)) is None:
        return sent
    return await attaching.fetched(sent, local.supervisor.shared.config.limits.max_attachment, fetch)


def fetch_of(local: Local, sent: Sequence[Blob]) -> attaching.FetchFile | None:
    """Return what fetches the files of a prompt; None if none of them is fetched."""
    fetch = local.supervisor.shared.fetch_file
    return fetch if fetch is not None and any(each.attachment.url is not None for each in sent) else None


async def enqueue(
    local: Local,
    session_id: str,
    input_: Input,
    tools: Mapping[str, Tool],
    begun: Beginning | None,
    *,
    blobs: tuple[Blob, ...] = (),
    accepted: Acceptance | None = None,
) -> TurnResult:
    """Put a prompt into the inbox of a session, and return the result of the turn that takes it."""
    put = local.supervisor.inboxes.put_and_wait
    turn = put(session_id, input_, tools, local.by, blobs, accepted=accepted, begun=begun)
    waiting = turn if begun is None else begun.of(turn)
    return await (local.counted(blobs, waiting) if blobs else waiting)


def beginning_of(call: SessionCall | TurnCall) -> Beginning | None:
    """Return what gives the caller a reader of the events of its turn; None if it wants none."""
    on_begin = call.on_begin if call.on_event is None else Telling(call.on_event)
    return None if on_begin is None else Beginning(on_begin)


def by_name(tools: Sequence[str | Tool]) -> dict[str, Tool]:
    """Return the tools among tools and names of tools, by their names."""
    return {tool.spec.name: tool for tool in tools if isinstance(tool, Tool)}


async def compact(local: Local, call: CompactRequest) -> CompactionEntry:
    """Compact the context of a session."""
    if local.supervisor.shared.config.compaction is None:
        raise no_compaction()  # whatever the session, so before it is looked up
    if not local.has_live(call.session_id):
        await local.find(call.session_id)
    return await local.turn(call.session_id, Compact(call.instructions, caller(), local.payer))


def no_compaction() -> CompactionDisabledError:
    """Return the error of a request for a compaction at a runtime without it."""
    return CompactionDisabledError("session compaction is disabled: the runtime was started without it")


async def wait(local: Local, call: WaitRequest) -> TurnResult:
    """Wait for the end of the running turn, or of the next one; an idle child has had that of its delegated turn."""
    session_id = call.session_id
    try:
        return await local.supervisor.mailbox(session_id).ask(AwaitTurn(by_name(call.extra_tools)))
    except SessionNotRunningError:
        ended = await local.supervisor.children.outcome(await local.record(session_id))
        if not ended:
            raise
    return result_of(ended, session_id)


async def interrupt(local: Local, call: InterruptRequest) -> None:
    """End the running turn of a session."""
    session_id = call.session_id
    actor = await local.running(session_id)
    shared = local.supervisor.shared
    grace, storage = shared.config.limits.interrupt_grace, shared.storage
    reply = actor.mailbox.post(Interrupt(local.entry("interrupt", session_id)))
    deadline = trio.current_time() + grace
    while True:
        with trio.move_on_at(min(deadline, trio.current_time() + MOMENT)):
            return await reply.wait()
        if storage.stalled:
            problem = "the turn is interrupted, and ends when the store answers, which it does not just now"
            raise StoreError(problem, session_id=session_id, cause="unreachable")
        if trio.current_time() >= deadline:
            break
    raise AgentError(
        f"the turn has not ended within {grace:g} s; it will", session_id=session_id, cause="interrupt_timeout"
    )


async def approve(local: Local, call: ApproveRequest) -> None:
    """Answer a tool call that waits for approval."""
    decision = Decision(call.decision == "allow", call.reason, call.remember)
    entry = local.entry(call.audited, call.session_id, call=call.call_id)
    answer = GiveAnswer(DECIDED, call.call_id, decision, audit=entry)
    await local.supervisor.mailbox(call.session_id).ask(answer)


async def complete(local: Local, call: CompleteRequest) -> None:
    """Give the result of a tool call that waits for one from outside."""
    shared, tenant = local.supervisor.shared, local.principal.tenant
    key, now = await shared.completions.key(), shared.storage.now()
    content = encodable(bounded(call.result if isinstance(call.result, str) else codec.text_of(call.result)))
    try:
        claims = key.verified(call.token, tenant)
        result, data = ToolResult(claims.call_id, content, call.is_error), {"token": claims.mark}
        if claims.until <= now.timestamp() and not await _was_given(local, claims, result):
            raise expired(claims)
    except FieldValueError as exc:
        raise exc.refusal() from None
    await local.find(claims.session_id)
    wait = Wait(claims.call_id, "outside", "waiting", "", {}, "callback", now, claims.expires, data=data)
    entry = local.entry("complete", claims.session_id, call=claims.call_id)
    answer = GiveAnswer(OUTSIDE, claims.call_id, result=result, begins=wait, audit=entry)
    await local.supervisor.mailbox(claims.session_id).ask(answer)


async def _was_given(local: Local, claims: CompletionToken, result: ToolResult) -> bool:
    """Return whether a call has got a result while its token was good."""
    query = StoredWait(claims.session_id, claims.tenant, claims.call_id, (*OUTSIDE, "background"))
    wait = await local.read(query)
    return wait is not None and (wait.data or {}).get("token") == claims.mark and same_result(wait.result, result)


async def approvals(local: Local, call: ApprovalsRequest, elsewhere: Iterable[ListedApproval] = ()) -> ApprovalPage:
    """Return a page of the tool calls that wait for approval: those in memory alone, then those of the store.

    Args:
        local: the sessions of this process.
        call: the place of the page.
        elsewhere: those that other nodes have in memory alone.
    """
    local.supervisor.check_open()
    here = sorted((*in_memory(local), *elsewhere), key=attrgetter("since"))
    page = here[call.offset : call.offset + call.limit]
    if len(page) == call.limit:
        await trio.lowlevel.checkpoint()
        return ApprovalPage(tuple(page))
    place = max(0, call.offset - len(here)), call.limit - len(page)
    rows = await local.read(WaitList(local.principal.tenant, DECIDED, *place))
    stored = [listed(session_id, title, pending_approval(wait)) for session_id, wait, title in rows]
    return ApprovalPage((*page, *stored), tuple(rows.damaged))


def in_memory(local: Local) -> Iterator[ListedApproval]:
    """Yield the calls that wait for approval in this process alone, as no store has their turns before their ends."""
    for handle in local.supervisor.registry:
        actor = handle.actor
        if actor is not None and actor.approvals_in_memory and local.has_live(handle.session_id):
            title = actor.view().state.title
            for each in actor.approvals_in_memory:
                yield listed(handle.session_id, title, each)


async def inject(local: Local, call: ContextRequest) -> bool:
    """Put a text that is no prompt into the inbox of a session."""
    input_ = Input(new_session_id(), "context", call.text, utc_now(), call.idempotency_key, call.source, starts=False)
    return await local.supervisor.inboxes.put(call.session_id, input_, local.by)


async def inputs(local: Local, call: InputsRequest) -> tuple[Input, ...]:
    """Return the inputs that wait. The session hears of those that other processes have put into its inbox."""
    await local.view(call.session_id)
    stored = await local.read(WaitingInputs(call.session_id, local.principal.tenant))
    actor = local.supervisor.find(call.session_id)
    shown = [each for each in stored if not each.input.is_notice]
    if actor is not None:
        # The store lists the inputs that a running turn has taken until that turn is stored.
        inbox = actor.conversation.inbox
        shown = [each for each in shown if inbox.may_take(each.number)]
        for each in shown if actor.current else ():
            if each.number not in inbox.waiting:  # else a later one that is known would go before it
                with contextlib.suppress(WarrenError):
                    local.supervisor.inboxes.found(call.session_id, each)
    return tuple(each.input for each in shown)


async def withdraw(local: Local, call: WithdrawRequest) -> None:
    """Take an input back."""
    await local.supervisor.inboxes.withdraw(call.session_id, call.input_id)


async def send(local: Local, call: PeerMessage) -> str:
    """Send a message to a peer; return its id."""
    record = await local.record(call.session_id)
    return await local.supervisor.comms.send(record, call, local.by, local.payer)


async def peers(local: Local, call: PeersRequest) -> tuple[PeerInfo, ...]:
    """Return the peers of a session."""
    return tuple(await local.supervisor.comms.peers(await local.record(call.session_id)))


HANDLERS: Final[dict[type, Any]] = {
    TurnCall: start,
    CompactRequest: compact,
    WaitRequest: wait,
    InterruptRequest: interrupt,
    ApproveRequest: approve,
    CompleteRequest: complete,
    ApprovalsRequest: approvals,
    ContextRequest: inject,
    InputsRequest: inputs,
    WithdrawRequest: withdraw,
    PeerMessage: send,
    PeersRequest: peers,
}
