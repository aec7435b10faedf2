"""The results of Meerkat's methods: sessions, transcripts and capabilities, made from those of Warren."""

from collections.abc import Mapping
from typing import Any, Final

from warren.base.values import frozen
from warren.calls.facade import Capabilities
from warren.conversation import messages
from warren.conversation.views import HistoryEntry, HistoryPage, SessionSummary, SessionView
from warren.transport.rpc.settings import Settings

AVAILABLE: Final = "Available"
DISABLED: Final = "DisabledByPolicy"
SESSIONS: Final = ("sessions", "Conversations that outlive their turns")


@frozen
class InitializeResult:
    """The result of `initialize`."""

    server_info: Mapping[str, str]
    contract_version: str
    methods: tuple[str, ...]


@frozen
class CapabilityRow:
    """One session_row of `capabilities/get`."""

    id: str
    description: str
    status: str


@frozen
class CapabilitiesResult:
    """The result of `capabilities/get`."""

    contract_version: str
    capabilities: tuple[CapabilityRow, ...]


@frozen
class SessionRow:
    """One session_row of `session/list`; times in Unix seconds."""

    session_id: str
    created_at: int
    updated_at: int
    message_count: int
    total_tokens: int
    is_active: bool
    labels: Mapping[str, str]


@frozen
class ListResult:
    """The result of `session/list`."""

    sessions: tuple[SessionRow, ...]


@frozen
class ReadResult:
    """The result of `session/read`; times in Unix seconds."""

    session_id: str
    created_at: int
    updated_at: int
    message_count: int
    is_active: bool
    model: str
    provider: str
    last_assistant_text: str | None
    labels: Mapping[str, str]


@frozen
class HistoryResult:
    """The result of `session/history`."""

    session_id: str
    message_count: int
    offset: int
    limit: int
    has_more: bool
    messages: tuple[Mapping[str, Any], ...]


@frozen
class InterruptResult:
    """The result of `turn/interrupt`, which is no error if the session runs no turn."""

    session_id: str
    interrupted: bool


@frozen
class InjectContextResult:
    """The result of `session/inject_context`.

    Attributes:
        status: `staged`, in newer versions `applied`, if the text waits for the next step of a turn; `duplicate` if an
            earlier call had the same key.
    """

    status: str


@frozen
class ConfigResult:
    """The result of `config/get`."""

    config: Settings
    generation: int


@frozen
class StreamOpenResult:
    """The result of `session/stream_open`."""

    stream_id: str
    opened: bool


@frozen
class StreamCloseResult:
    """The result of `session/stream_close`."""

    stream_id: str
    closed: bool
    already_closed: bool


def session_row(summary: SessionSummary) -> SessionRow:
    """Return the session_row of a session."""
    return SessionRow(
        session_id=summary.session_id,
        created_at=int(summary.created_at.timestamp()),
        updated_at=int(summary.updated_at.timestamp()),
        message_count=summary.message_count,
        total_tokens=summary.total_tokens,
        is_active=summary.is_active,
        labels=summary.labels,
    )


def read_result(view: SessionView, provider: str) -> ReadResult:
    """Return the result of `session/read` for a session and the provider of its model."""
    state = view.state
    return ReadResult(
        session_id=state.session_id,
        created_at=int(state.created_at.timestamp()),
        updated_at=int(state.updated_at.timestamp()),
        message_count=state.message_count,
        is_active=state.is_active,
        model=state.model,
        provider=provider,
        last_assistant_text=state.last_assistant_text,
        labels=state.labels,
    )


def capability_rows(capabilities: Capabilities) -> tuple[CapabilityRow, ...]:
    """Return Warren's capabilities under Warren's names, and the one that every build has."""
    ours = (
        ("session_store", "Sessions are stored and outlive the process", capabilities.session_store),
        ("session_compaction", "Long sessions are summarised", capabilities.session_compaction),
        ("memory_store", "Messages that summaries replaced can be searched", capabilities.memory_store),
    )
    shown = (CapabilityRow(name, text, AVAILABLE if on else DISABLED) for name, text, on in ours)
    return (CapabilityRow(*SESSIONS, AVAILABLE), *shown)


def history_result(page: HistoryPage, limit: int) -> HistoryResult:
    """Return a page of a conversation."""
    shown = tuple(map(_entry, page.messages))
    more = page.offset + len(shown) < page.total
    return HistoryResult(page.session_id, page.total, page.offset, limit, more, shown)


def _entry(entry: HistoryEntry) -> dict[str, Any]:
    return {"created_at": entry.created_at.isoformat(), **_message(entry.message)}


def _message(message: messages.Message) -> dict[str, Any]:
    match message:
        case messages.SystemMessage(content=content):
            return {"role": "system", "content": content}
        case messages.UserMessage(content=content) | messages.ContextMessage(content=content):
            return {"role": "user", "content": content}
        case messages.AssistantMessage(blocks=blocks, stop_reason=reason):
            return {"role": "block_assistant", "blocks": [_block(block) for block in blocks], "stop_reason": reason}
        case messages.ToolResultsMessage(results=results):
            return {"role": "tool_results", "results": [_result(result) for result in results]}


def _result(result: messages.ToolResult) -> dict[str, Any]:
    """Return a result as the contract has it: it has no place for files."""
    return {"tool_use_id": result.tool_use_id, "content": result.content, "is_error": result.is_error}


def _block(block: messages.Block) -> dict[str, Any]:
    match block:
        case messages.TextBlock(text=text):
            return {"block_type": "text", "data": {"text": text}}
        case messages.ReasoningBlock(text=text):
            return {"block_type": "reasoning", "data": {"text": text}}
        case messages.ToolUseBlock(id=call, name=name, args=args):
            return {"block_type": "tool_use", "data": {"id": call, "name": name, "args": args}}
        case messages.HostedToolBlock(kind=kind, metadata=data):
            return {"block_type": kind, "data": dict(data or {})}
        case messages.FileBlock(file=file):
            return {"block_type": "text", "data": {"text": f"[{file.label}]"}}
        case messages.UnknownBlock(type=kind, data=data):
            return {"block_type": kind, "data": data}
