"""Answers to what tool calls wait for: who may give which, and what those hear whose answer does not count."""

import json
from datetime import datetime
from typing import Final

import attrs

from warren.actors.protocol import GiveAnswer
from warren.base.errors import AgentError, InvalidParamsError, SessionBusyError
from warren.conversation import codec
from warren.conversation.inputs import Input
from warren.conversation.messages import ToolResult
from warren.conversation.views import TurnView
from warren.conversation.waits import NEVER, Wait, WaitReason

CHILD: Final[tuple[WaitReason, ...]] = ("child",)
PEER: Final[tuple[WaitReason, ...]] = ("peer",)


def answers(wait: Wait, message: GiveAnswer) -> bool:
    """Return whether a message is meant for a wait; one with another token is for an earlier call of the same id."""
    if message.begins is not None and wait.reason == "background":
        return _token(wait) == _token(message.begins)
    same = wait.wait_id == message.wait_id and wait.reason in message.reasons
    return same and (message.begins is None or _token(message.begins) == _token(wait))


def answer_of(notice: Input) -> GiveAnswer:
    """Return the answer that a notice brings from a child."""
    end = notice.end
    if end is None or end.call_id is None:
        raise AgentError("the notice of a child's end names no call", cause="internal")
    data = {"key": end.call_key, "child": end.session_id, "spent": attrs.asdict(end.expense)}
    at = notice.created_at
    begins = Wait(end.call_id, "child", "waiting", "", {}, "comms", at, NEVER, data=data)
    result = ToolResult(end.call_id, notice.text, end.is_error)
    return GiveAnswer(CHILD, end.call_id, result=result, begins=begins)


def response_of(notice: Input, wait: Wait) -> GiveAnswer:
    """Return the answer that the response of a peer is to the call that waits for it."""
    begins = wait.changed(data={**(wait.data or {}), "hops": notice.hops})
    return GiveAnswer(PEER, wait.wait_id, result=ToolResult(wait.wait_id, notice.text), begins=begins)


def _token(wait: Wait) -> object:
    data = wait.data or {}
    return data.get("token") or (data.get("key") if wait.reason in ("child", "peer") else None)


def answered(wait: Wait, message: GiveAnswer, now: datetime) -> Wait:
    """Return a wait with its answer, which is given now (UTC)."""
    brought = {} if wait.reason not in ("child", "peer") or message.begins is None else {"data": message.begins.data}
    return wait.changed(state="answered", decision=message.decision, result=message.result, answered_at=now, **brought)


def contradiction(wait: Wait, message: GiveAnswer) -> InvalidParamsError | None:
    """Return the error of an answer to a wait that is over; None if it says what the answer of then has said."""
    if wait.decision is not None and message.decision is not None and wait.decision.allow == message.decision.allow:
        return None
    if same_result(wait.result, message.result):
        return None
    if wait.decision is not None:
        how = f"was {'allowed' if wait.decision.allow else 'denied'}{_when(wait)}"
    elif wait.result is not None:
        how = f"has got another result{_when(wait)}"
    else:
        how = "waits no more: nobody answered in time, or its turn has ended"
    return InvalidParamsError.at(_field(message), f"tool call {wait.wait_id!r} {how}", cause="settled")


def same_result(given: ToolResult | None, again: ToolResult | None) -> bool:
    """Return whether a call gets the result that it has: of JSON, members in another order make no other object."""
    if given is None or again is None or given == again:
        return given is not None and again is not None
    return given == attrs.evolve(again, content=given.content) and _ordered(given.content) == _ordered(again.content)


def _ordered(content: str) -> str:
    """Return JSON with the members of its objects in order, and any other text as it is."""
    try:
        return json.dumps(json.loads(content), sort_keys=True)
    except ValueError:
        return content


def _when(wait: Wait) -> str:
    return " before" if wait.answered_at is None else f" at {wait.answered_at:%Y-%m-%d %H:%M:%S} UTC"


def not_waiting(message: GiveAnswer) -> InvalidParamsError:
    """Return the error of an answer that no call waits for."""
    what = "a result" if message.decision is None else "approval"
    return InvalidParamsError.at(_field(message), f"no tool call {message.wait_id!r} waits for {what}")


def _field(message: GiveAnswer) -> str:
    return "$.token" if message.decision is None else "$.call_id"


def waiting_for(turn: TurnView) -> SessionBusyError:
    """Return the error for the prompt of a caller that does not wait, while the calls of the open turn wait."""
    calls = [{**codec.to_data(each), "since": each.since.isoformat()} for each in turn.waiting_for]
    return SessionBusyError(f"the session's turn waits: {turn.waits}", details={"waiting_for": calls})
