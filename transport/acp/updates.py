"""Events and messages of a session as the updates of the protocol. No I/O."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import attrs

from warren.base.errors import AgentError, BudgetExhaustedError, WarrenError
from warren.base.values import define, frozen
from warren.conversation import events, messages
from warren.conversation.attachments import Attachment
from warren.conversation.event_text import text_of_event
from warren.conversation.usage import Usage

Update = Mapping[str, Any]
Block = Mapping[str, Any]
KINDS: Final[Mapping[str, str]] = {
    "memory_search": "search",
    "read_file": "read",
    "list_files": "search",
    "search_files": "search",
    "write_file": "edit",
    "edit_file": "edit",
    "shell": "execute",
    "fetch": "fetch",
    "load_skill": "read",
}
"""The protocol's kind of each tool of the runtime; clients choose an icon by it."""
DATA: Final = "warren/structured_output"
"""The key in the `_meta` of an answer, and of its update in a loaded session, whose value is the answer as data."""
GONE: Final = "this call no longer counts: the turn was interrupted before the call was kept"
"""The text of a call that was shown and is no part of a turn that goes on."""
STOP_REASONS: Final[Mapping[messages.StopReason | None, str]] = {
    "max_tokens": "max_tokens",
    "content_filter": "refusal",
    "cancelled": "cancelled",
}


@frozen
class UpdateWithFiles:
    """An update that is made once the content blocks of its files are there: this module does not read files.

    Attributes:
        files: the references of the files.
        filled: makes the update of their content blocks, which are in the same order.
    """

    files: tuple[Attachment, ...]
    filled: Callable[[Sequence[Block]], Update]


@define
class Narrator:
    """Makes updates of the events of one turn. Compactions, retries and warnings make none.

    The protocol has no update that takes text back. So if text was shown that does not count, a piece of text says so;
    a call that is gone is shown as failed.

    Attributes:
        window: tokens that a request to the model may have; None if it is unknown: then no usage is reported.
    """

    window: int | None
    _shown: list[str] = attrs.field(factory=list)
    _said: int = 0  # the number of the newest event whose text was shown
    _asked: dict[str, int] = attrs.field(factory=dict)  # the calls of this step, with the numbers of their requests
    _ended: dict[str, int] = attrs.field(factory=dict)  # those that have ended, with the numbers of their ends

    def updates(self, envelope: events.Envelope) -> Iterator[Update | UpdateWithFiles]:
        """Yield the updates for an event."""
        event = envelope.event
        match event:
            case events.TurnStarted():
                self._shown.clear()
                self._asked.clear()
                self._ended.clear()
            case events.TextDelta(delta):
                self._shown.append(delta)
                self._said = envelope.seq
                yield chunk("agent_message_chunk", delta)
            case events.ReasoningDelta(delta):
                yield chunk("agent_thought_chunk", delta)
            case events.TextComplete(content):
                # The end that no delta had, or the whole text if the deltas were of a different one.
                shown = "".join(self._shown)
                rest = content.removeprefix(shown) if content.startswith(shown) else f"\n\n{content}"
                if rest:
                    self._said = envelope.seq
                    yield chunk("agent_message_chunk", rest)
            case events.ModelSwitched(discarded=True) | events.TurnResumed():
                yield from self._take_back(event)
            case events.FilesComplete(attachments=files):
                yield from _files("agent_message_chunk", files)
            case events.InputTaken(content=content, attachments=files):  # the same updates as `replayed` makes of it
                yield from _said(content, files)
            case events.TurnCompleted(usage=usage) if self.window is not None:
                used = usage.input_tokens + usage.output_tokens
                yield {"sessionUpdate": "usage_update", "used": used, "size": max(self.window, used)}
            case _:
                yield from self._tool(event, envelope.seq)

    def _take_back(self, event: events.ModelSwitched | events.TurnResumed) -> Iterator[Update]:
        """Yield the updates for text and calls that were shown and do not count."""
        if self._shown if isinstance(event, events.ModelSwitched) else self._said > event.kept_seq:
            yield chunk("agent_message_chunk", f"\n\n{text_of_event(event)}\n\n")
        self._shown.clear()
        if isinstance(event, events.ModelSwitched):
            return
        kept = event.kept_seq
        for call in [call for call, seq in self._asked.items() if seq > kept]:
            del self._asked[call]
            yield tool_ended(call, GONE, is_error=True)
        self._ended = {call: seq for call, seq in self._ended.items() if seq <= kept}

    def _tool(self, event: events.Event, seq: int) -> Iterator[Update | UpdateWithFiles]:
        match event:
            case events.ToolCallRequested(id=call, name=name, args=args):
                self._asked[call] = seq
                yield tool_call(call, name, args)
            case events.ToolExecutionStarted(id=call):
                yield {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "in_progress"}
            case events.ToolExecutionCompleted(id=call, result=result, is_error=is_error, attachments=files):
                self._ended[call] = seq
                yield _result(call, result, files, is_error=is_error)
            case events.ToolResultReceived(id=call, is_error=is_error, result=result) if call not in self._ended:
                yield tool_ended(call, result, is_error=is_error)  # it was refused and never ran


def replayed(message: messages.Message) -> Iterator[Update | UpdateWithFiles]:
    """Yield the updates for a message of a loaded session; none for a system message."""
    match message:
        case messages.UserMessage(content, files):
            yield from _said(content, files)
        case messages.ContextMessage(content):
            yield chunk("user_message_chunk", content)
        case messages.AssistantMessage(blocks, structured_output=data):
            updates = [update for block in blocks for update in _block(block)]
            if data is not None and updates and isinstance(updates[-1], dict):
                updates[-1] = with_data(updates[-1], data)
            yield from updates
        case messages.ToolResultsMessage(results):
            for result in results:
                yield _result(result.tool_use_id, result.content, result.attachments, is_error=result.is_error)


def with_data(answer: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """Return an answer, or a piece of one, with its data, for which the protocol has no member of its own."""
    return {**answer, "_meta": {DATA: data}}


def _said(content: str, files: Sequence[Attachment]) -> Iterator[Update | UpdateWithFiles]:
    """Yield the updates for a prompt: one for its text, and one for each file, since a chunk has one content block."""
    yield chunk("user_message_chunk", content)
    yield from _files("user_message_chunk", files)


def _files(kind: str, files: Sequence[Attachment]) -> Iterator[UpdateWithFiles]:
    for file in files:
        yield UpdateWithFiles((file,), lambda blocks: {"sessionUpdate": kind, "content": blocks[0]})


def _result(call: str, result: str, files: tuple[Attachment, ...], *, is_error: bool) -> Update | UpdateWithFiles:
    """Return the one update for a call's result: the content of another one would take the place of this one's."""
    filled = partial(tool_ended, call, result, is_error=is_error)
    return UpdateWithFiles(files, filled) if files else filled()


def _block(block: object) -> Iterator[Update | UpdateWithFiles]:
    match block:
        case messages.ReasoningBlock(text) if text:
            yield chunk("agent_thought_chunk", text)
        case messages.TextBlock(text) if text:
            yield chunk("agent_message_chunk", text)
        case messages.FileBlock(file):
            yield from _files("agent_message_chunk", (file,))
        case messages.ToolUseBlock(id=call, name=name, args=args):
            yield tool_call(call, name, args)


def chunk(kind: str, text: str) -> Update:
    """Return an update with a piece of text: `kind` says whether the user or the agent says it, or the agent thinks."""
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def tool_call(call: str, name: str, args: Mapping[str, Any]) -> Update:
    """Return the update for a tool call that the model asks for."""
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": call,
        "title": name,
        "kind": KINDS.get(name, "other"),
        "status": "pending",
        "rawInput": args,
    }


def tool_ended(call: str, result: str | None, files: Sequence[Block] = (), *, is_error: bool) -> Update:
    """Return the update for a tool call that has ended.

    Args:
        call: the id of the call.
        result: the text of the result; None if an older version has refused the call, whose events do not have it.
        files: the content blocks of the result's files.
        is_error: whether the call has failed.
    """
    update = {
        "sessionUpdate": "tool_call_update",
        "toolCallId": call,
        "status": "failed" if is_error else "completed",
    }
    if result is None:
        return update
    blocks = [{"type": "text", "text": result}, *files]
    return update | {"content": [{"type": "content", "content": block} for block in blocks]}


def session_info(title: str | None, updated_at: datetime) -> Update:
    """Return the update with a session's title and the time of its last change."""
    update: dict[str, Any] = {"sessionUpdate": "session_info_update", "updatedAt": updated_at}
    return update if title is None else update | {"title": title}


def stop_reason(reason: messages.StopReason | None) -> str:
    """Return the protocol's stop reason for a turn that ended with an answer."""
    return STOP_REASONS.get(reason, "end_turn")


def stop_reason_of(exc: WarrenError) -> str | None:
    """Return the protocol's stop reason for an error that the protocol reports as one; None for all other errors."""
    match exc:
        case AgentError(cause="cancelled"):
            return "cancelled"
        case BudgetExhaustedError():
            return "max_tokens" if exc.details.get("budget_type") == "tokens" else "max_turn_requests"
    return None


def usage_of(usage: Usage) -> Mapping[str, int]:
    """Return the tokens of a turn in the form of the protocol."""
    return {
        "totalTokens": usage.total_tokens,
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cachedReadTokens": usage.cache_read_tokens,
        "cachedWriteTokens": usage.cache_creation_tokens,
    }
