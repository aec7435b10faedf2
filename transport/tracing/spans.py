"""The spans of a turn, made of its events once it has ended. No I/O.

A turn has a span for each model call, tool call, approval, compaction and extraction, and one for its commit. They are
children of the turn's own span, by the times of the events.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from warren.base.values import define
from warren.conversation import codec, events
from warren.conversation.messages import Message, SystemMessage, UserMessage
from warren.conversation.usage import Usage
from warren.reports.tracing import TracedTurn, new_span_id
from warren.transport.tracing import conventions as names
from warren.transport.tracing import messages

FAILED_TOOL: Final = "tool_error"
TIMED_OUT: Final = "timeout"
REFUSED: Final = "refused"


@define(eq=False)
class SpanData:
    """A span.

    Attributes:
        name: its name.
        began: the time of its beginning.
        ended: the time of its end.
        attributes: its attributes.
        span_id: its number.
        events: the moments within it that are worth a note: name, time, attributes.
        error: the kind of its failure; None if it has none.
        calls_out: whether it is a request to another system.
    """

    name: str
    began: datetime
    ended: datetime
    attributes: dict[str, Any] = attrs.field(factory=dict)
    span_id: int = attrs.field(factory=new_span_id)
    events: list[tuple[str, datetime, Mapping[str, Any]]] = attrs.field(factory=list)
    error: str | None = None
    calls_out: bool = False

    def fail(self, error: str) -> None:
        """Note the kind of the failure."""
        self.error = self.attributes[names.ERROR_TYPE] = error


def spans_of(turn: TracedTurn, *, content: bool = False) -> list[SpanData]:
    """Return the spans of a turn, its own one first.

    Args:
        turn: the turn.
        content: whether the spans have the texts of the conversation.
    """
    made = _Spans(turn, content)
    for envelope in turn.events:
        made.take(envelope)
    return [made.whole(), *made.spans]


@define(eq=False)
class _Spans:
    """The spans of a turn so far.

    Attributes:
        turn: the turn.
        content: whether the spans have the texts of the conversation.
        spans: the children of the turn's own span.
    """

    turn: TracedTurn
    content: bool
    spans: list[SpanData] = attrs.field(factory=list)
    _own: SpanData = attrs.field(init=False)
    _call: SpanData | None = None  # the model call of the running step
    _instructions: str | None = None
    _server: str | None = None  # the address of the model that is called
    _said: list[dict[str, Any]] = attrs.field(factory=list)  # the messages up to the running step, if they are wanted
    _parts: list[messages.Part] = attrs.field(factory=list)  # the answer of the running step
    _answered: bool = False  # whether it has ended: its tokens are told when the step ends
    _requests: dict[str, events.ToolCallRequested] = attrs.field(factory=dict)
    _tools: dict[str, SpanData] = attrs.field(factory=dict)
    _approvals: dict[str, SpanData] = attrs.field(factory=dict)
    _compaction: SpanData | None = None
    _last: datetime = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        turn = self.turn
        name = names.INVOKE_AGENT if turn.number is not None else names.COMPACT
        about = {names.SESSION: turn.session_id, names.TENANT: turn.tenant}
        if turn.number is not None:
            about |= self._operation(names.INVOKE_AGENT) | {names.TURN: turn.number}
        self._own = SpanData(name, turn.began, turn.ended, about, turn.place.span_id)
        self._last = turn.began
        self._server = next(iter(turn.servers.values()), None)
        if self.content:
            self._take_before()

    def _take_before(self) -> None:
        for message in map(codec.decode_message, self.turn.before):
            if isinstance(message, SystemMessage):
                self._instructions = json.dumps([messages.text(message.content)])
                self._own.attributes[names.INSTRUCTIONS] = self._instructions
            elif (said := messages.said(message)) is not None:
                self._said.append(said)

    def whole(self) -> SpanData:
        """Return the span of the turn, and end those that the turn has left open."""
        turn, own = self.turn, self._own
        self._tell_answer("error")
        for left in (self._call, *self._tools.values(), *self._approvals.values(), self._compaction):
            if left is not None:
                left.ended = self._last
                if turn.failure is not None or not turn.cut:  # else its end is among the events that are left out
                    left.fail(turn.failure or names.OTHER_ERROR)
                self.spans.append(left)
        own.attributes |= _tokens(turn.usage)
        if turn.usage.cost is not None:
            own.attributes[names.COST] = float(turn.usage.cost)
        if turn.failure is not None:
            own.fail(turn.failure)
        return own

    def take(self, envelope: events.Envelope) -> None:
        """Take the next event."""
        event, at = envelope.event, envelope.timestamp
        match event:
            case events.RunStarted(prompt=prompt, attachments=files):
                self._hear(UserMessage(prompt, files))
                self._tell_all(self._own, names.INPUT_MESSAGES, self._said[-1:])
            case events.TurnStarted(turn_number=step):
                self._begin_call(at, step)
            case events.TurnCompleted():
                self._end_step(event, at)
            case events.CompactionStarted():
                self._compaction = SpanData(names.COMPACT, at, at)
            case events.CompactionCompleted() | events.CompactionFailed():
                self._end_compaction(event, at)
            case events.ExtractionCompleted() | events.ExtractionFailed():
                self._extract(event, at)
            case _ if isinstance(event, events.DELTAS):
                self._first_piece(at)
            case _ if isinstance(event, events.TERMINAL):
                self._end(envelope)
            case _:
                self._note(event, at)
                self._take_of_calls(envelope)
                self._take_of_runs(envelope)
        self._last = at

    def _note(self, event: events.Event, at: datetime) -> None:
        # Without errors: providers quote what they were sent.
        own, call = self._own, self._call or self._own
        match event:
            case events.InputTaken(kind=kind, content=content, attachments=files):
                self._hear(UserMessage(content, files))
                own.events.append(("input", at, {names.INPUT_KIND: kind}))
            case events.BudgetWarning(budget_type=budget, percent=percent):
                own.events.append(("budget_warning", at, {names.BUDGET: budget, names.PERCENT: percent}))
            case events.TurnResumed(resumed=resumed):
                own.attributes[names.RESUMED] = resumed
                own.events.append(("turn_resumed", at, {names.RESUMED: resumed}))
            case events.Retrying(attempt=attempt):
                call.events.append(("retry", at, {names.ATTEMPT: attempt}))
            case events.RequestRepaired(action=action):
                call.events.append(("request_repaired", at, {names.REPAIR: action}))
            case events.ModelSwitched(to_model=model):
                call.events.append(("model_switched", at, {names.ANSWERED_BY: model}))
                self._server = self.turn.servers.get(model)
                call.attributes |= _server(self._server)

    def _take_of_calls(self, envelope: events.Envelope) -> None:
        event, at = envelope.event, envelope.timestamp
        match event:
            case events.TextComplete(content=text):
                self._end_call(at)
                if text:
                    self._say(messages.text(text))
            case events.ToolCallRequested(id=call_id, name=name, args=args):
                self._end_call(at)
                self._say(messages.call(call_id, name, args))
                self._requests[call_id] = event
            case events.ToolApprovalRequested(id=call_id, name=name):
                about = {names.TOOL_NAME: name, names.TOOL_CALL_ID: call_id}
                self._approvals[call_id] = SpanData(names.APPROVAL, at, at, about)
            case events.ToolApprovalResolved(id=call_id, decision=decision):
                if (asked := self._approvals.pop(call_id, None)) is not None:
                    asked.attributes[names.DECISION] = decision
                    self._add(asked, at)

    def _take_of_runs(self, envelope: events.Envelope) -> None:
        event, at = envelope.event, envelope.timestamp
        match event:
            case events.ToolExecutionStarted(id=call_id, name=name):
                self._tools[call_id] = self._tool(call_id, name, at)
            case events.ToolExecutionTimedOut(id=call_id) if call_id in self._tools:
                self._tools[call_id].fail(TIMED_OUT)
            case events.ToolExecutionCompleted(id=call_id, result=result, is_error=failed) if call_id in self._tools:
                tool = self._tools.pop(call_id)
                self._requests.pop(call_id, None)
                self._tell(tool, names.TOOL_RESULT, result)
                self._respond(call_id, result)
                if failed and tool.error is None:
                    tool.fail(FAILED_TOOL)
                self._add(tool, at)
            case events.ToolResultReceived(id=call_id, name=name, result=refusal) if (
                call_id in self._requests
            ):  # it did not run
                self._respond(call_id, refusal or "")
                tool = self._tool(call_id, name, at)
                tool.fail(REFUSED)
                self._add(tool, at)
                del self._requests[call_id]

    def _add(self, span: SpanData, at: datetime) -> None:
        span.ended = at
        self.spans.append(span)

    def _tell(self, span: SpanData, name: str, text: str) -> None:
        if self.content:
            span.attributes[name] = text[: messages.LONGEST]

    def _tell_all(self, span: SpanData, name: str, said: Iterable[Mapping[str, Any]]) -> None:
        if self.content:
            span.attributes[name] = messages.encoded(said)

    def _hear(self, message: Message) -> None:
        if self.content and (said := messages.said(message)) is not None:
            self._said.append(said)

    def _respond(self, call_id: str, result: str) -> None:
        if self.content:
            self._said.append(messages.of("tool", [messages.response(call_id, result)]))

    def _say(self, part: messages.Part) -> None:
        """Add to the answer of the running step, which is a message before the next one."""
        if self.content:
            if not self._parts:
                self._said.append(messages.of("assistant", self._parts))
            self._parts.append(part)

    def _tell_answer(self, reason: str) -> None:
        """Tell the answer of the running step."""
        if self._parts and self._call is not None:
            answer = messages.of("assistant", self._parts) | {"finish_reason": reason}
            self._tell_all(self._call, names.OUTPUT_MESSAGES, [answer])
        self._parts = []

    def _operation(self, operation: str) -> dict[str, Any]:
        turn = self.turn
        return {
            names.OPERATION: operation,
            names.PROVIDER: names.provider_of(turn.provider),
            names.MODEL: turn.model,
            names.CONVERSATION: turn.session_id,
        }

    # -- model calls

    def _begin_call(self, at: datetime, step: int) -> None:
        about = self._operation(names.CHAT) | {names.STREAM: True, names.STEP: step}
        self._call = SpanData(f"{names.CHAT} {self.turn.model}", at, at, about | _server(self._server), calls_out=True)
        if self._said:
            self._tell_all(self._call, names.INPUT_MESSAGES, self._said)
        if self._instructions is not None:
            self._call.attributes[names.INSTRUCTIONS] = self._instructions
        self._answered = False

    def _first_piece(self, at: datetime) -> None:
        if self._call is not None and names.FIRST_CHUNK not in self._call.attributes:
            self._call.attributes[names.FIRST_CHUNK] = (at - self._call.began).total_seconds()

    def _end_call(self, at: datetime) -> None:
        if self._call is not None and not self._answered:
            self._call.ended, self._answered = at, True

    def _end_step(self, event: events.TurnCompleted, at: datetime) -> None:
        self._end_call(at)
        if self._call is not None:
            reason = names.REASONS.get(event.stop_reason, event.stop_reason)
            self._tell_answer(reason)
            self._call.attributes |= _tokens(event.usage) | {names.FINISH_REASONS: (reason,)}
            if event.model is not None:
                self._call.attributes[names.ANSWERED_BY] = event.model
            self.spans.append(self._call)
            self._call = None

    # -- the rest

    def _tool(self, call_id: str, name: str, at: datetime) -> SpanData:
        about = {names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: name, names.TOOL_CALL_ID: call_id}
        tool = SpanData(f"{names.EXECUTE_TOOL} {name}", at, at, about)
        if (request := self._requests.get(call_id)) is not None:
            self._tell(tool, names.TOOL_ARGUMENTS, json.dumps(dict(request.args), default=str))
        return tool

    def _end_compaction(self, event: events.CompactionCompleted | events.CompactionFailed, at: datetime) -> None:
        span, self._compaction = self._compaction, None
        if span is None:
            return
        if isinstance(event, events.CompactionFailed):
            span.fail(event.reason)
        else:
            counts = {names.MESSAGES_BEFORE: event.messages_before, names.MESSAGES_AFTER: event.messages_after}
            span.attributes |= counts
        self._add(span, at)

    def _extract(self, event: events.ExtractionCompleted | events.ExtractionFailed, at: datetime) -> None:
        span = SpanData(names.EXTRACT, self._last, at, {names.ATTEMPTS: event.attempts})
        if isinstance(event, events.ExtractionFailed):
            span.fail("structured_output")
        self.spans.append(span)

    def _end(self, terminal: events.Envelope) -> None:
        """End the work of the turn; the rest of its time is its commit's."""
        if isinstance(terminal.event, events.RunCompleted):
            answer = messages.of("assistant", [messages.text(terminal.event.result)]) | {"finish_reason": "stop"}
            self._tell_all(self._own, names.OUTPUT_MESSAGES, [answer])
        self.spans.append(SpanData(names.COMMIT, terminal.timestamp, self.turn.ended))


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        names.INPUT_TOKENS: usage.input_tokens,
        names.OUTPUT_TOKENS: usage.output_tokens,
        names.CACHE_READ_TOKENS: usage.cache_read_tokens,
        names.CACHE_WRITE_TOKENS: usage.cache_creation_tokens,
        names.CACHE_CREATION_TOKENS: usage.cache_creation_tokens,
    }


def _server(address: str | None) -> dict[str, Any]:
    """Return the place of a server."""
    try:
        parts = urlsplit(address or "")
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return {}
    return {names.SERVER: parts.hostname, names.SERVER_PORT: port} if parts.hostname else {}
