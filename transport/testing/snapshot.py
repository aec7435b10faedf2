"""Conversations as text that is the same in each run, to be compared with a file."""

import difflib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

from warren.base.values import define
from warren.calls.facade import SessionService
from warren.conversation import codec
from warren.conversation.messages import (
    AssistantMessage,
    ContextMessage,
    FileBlock,
    Message,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
    files_of,
)

VARIABLE: Final = "WARREN_SNAPSHOT"
UPDATE: Final = "update"
PAGE: Final = 1000
_ID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TIME: Final = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")


async def snapshot(service: SessionService, session_id: str, file: Path | str | None = None) -> str:
    """Return a conversation as text, and hold it against a file.

    The text has the messages of finished turns, the tool calls with their arguments, and their results. What differs
    from run to run has a name in place of its value: `<call 1>` for the id of a call, `<id 1>` for any other id, and
    `<time>` for a time.

    With the variable WARREN_SNAPSHOT set to `update`, the file is written, and nothing is compared.

    Args:
        service: the service of the session.
        session_id: the session.
        file: the file, in UTF-8; its folder exists. None compares nothing.

    Raises:
        AssertionError: if the file does not exist, or has another text. The message has the difference.
        SessionNotFoundError: if there is no such session.
    """
    text = _Text()
    offset, total = 0, 1
    while offset < total:
        page = await service.history(session_id, offset=offset, limit=PAGE)
        for entry in page.messages:
            text.add(entry.message)
        offset, total = offset + PAGE, page.total
    said = "".join(f"{line}\n" for line in text.lines)
    if file is not None:
        _hold(said, Path(file))
    return said


def _hold(said: str, file: Path) -> None:
    if os.environ.get(VARIABLE) == UPDATE:
        file.write_text(said, encoding="utf-8")
        return
    hint = f"set {VARIABLE}={UPDATE} to write it"
    if not file.exists():
        raise AssertionError(f"there is no snapshot {file}: {hint}")
    kept = file.read_text(encoding="utf-8")
    if kept != said:
        lines = difflib.unified_diff(kept.splitlines(), said.splitlines(), str(file), "the conversation", lineterm="")
        raise AssertionError(f"the conversation is not that of the snapshot; {hint}:\n" + "\n".join(lines))


@define
class _Text:
    """The lines of a conversation, with names for its ids."""

    lines: list[str] = attrs.field(factory=list)
    _calls: dict[str, str] = attrs.field(factory=dict)
    _ids: dict[str, str] = attrs.field(factory=dict)

    def add(self, message: Message) -> None:
        """Add a message."""
        match message:
            case SystemMessage(content):
                self._put("system", [content])
            case UserMessage(content, _, steered):
                self._put("user, steered" if steered else "user", [content])
            case ContextMessage(content, source):
                self._put("context" if source is None else f"context of {source}", [content])
            case AssistantMessage():
                self._put("assistant", self._said(message))
            case ToolResultsMessage(results):
                self._put("tools", map(self._result, results))
        for each in files_of(message) if isinstance(message, UserMessage) else ():
            self.lines.append(f"  [{each.label}]")

    def _said(self, message: AssistantMessage) -> Iterator[str]:
        for block in message.blocks:
            match block:
                case TextBlock(text):
                    yield text
                case ReasoningBlock(text):
                    yield f"reasoning: {text}"
                case ToolUseBlock(id, name, args, invalid):
                    said = codec.encode(_sorted(args)).decode() if invalid is None else invalid
                    yield f"{self._call(id)} {name} {said}"
                case FileBlock():
                    yield f"[{block.file.label}]"
                case _:
                    yield f"{type(block).__name__}"
        if message.structured_output is not None:
            yield f"data: {codec.encode(_sorted(message.structured_output)).decode()}"
        if message.stop_reason not in ("end_turn", "tool_use"):
            yield f"stopped: {message.stop_reason}"

    def _result(self, result: ToolResult) -> str:
        said = f"{self._call(result.tool_use_id)}{' failed' if result.is_error else ''}: {result.content}"
        return "\n".join([said, *(f"[{each.label}]" for each in result.attachments)])

    def _call(self, call_id: str) -> str:
        return self._calls.setdefault(call_id, f"<call {len(self._calls) + 1}>")

    def _put(self, who: str, parts: Iterable[str]) -> None:
        """Add what somebody has said: a single line behind the name, anything longer below it."""
        lines = [line for part in parts for line in self._named(part).splitlines() or [""]]
        if len(lines) == 1:
            self.lines.append(f"{who}: {lines[0]}".rstrip())
        else:
            self.lines.append(f"{who}:")
            self.lines.extend(f"  {line}".rstrip() for line in lines)

    def _named(self, text: str) -> str:
        def name(found: re.Match[str]) -> str:
            return self._ids.setdefault(found[0], f"<id {len(self._ids) + 1}>")

        return _TIME.sub("<time>", _ID.sub(name, text))


def _sorted(data: object) -> object:
    """Return data with the members of its objects in order."""
    if isinstance(data, dict):
        return {key: _sorted(data[key]) for key in sorted(data)}
    return [_sorted(each) for each in data] if isinstance(data, list | tuple) else data
