"""The interface of a target, and the form of events and messages that all targets share."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import trio

from warren.base.backoff import Backoff
from warren.base.errors import ErrorCode
from warren.base.values import frozen
from warren.transport.load.plan import BadClients

T = TypeVar("T")
LOST: Final = "CONNECTION_LOST"
"""The code of a call whose connection ended, or never began; also the kind of the last event of such a stream."""
OVERLOADED: Final = frozenset({LOST, "HTTP_429", "HTTP_503"})
ATTEMPTS: Final = 4
BACKOFF: Final = Backoff(first=0.1, longest=1.0)


class Seen(NamedTuple):
    """The parts of an event for the checks.

    Attributes:
        seq: its number.
        first_seq: the number of the first event that it stands for; `seq` if it stands for itself.
        kind: its name on the wire.
        text: the delta, the content, the prompt, the result, or the cause of a failure.
        ref: the id of a tool call, the number of a step, or that of the newest event that counts in a resumed turn.
        session_id: the session in its envelope.
    """

    seq: int
    first_seq: int
    kind: str
    text: str = ""
    ref: str | int = ""
    session_id: str = ""


OnSeen = Callable[[Seen], None]
FIELDS: Final[Mapping[str, tuple[str, str]]] = {
    "run_started": ("prompt", ""),
    "turn_started": ("", "turn_number"),
    "text_delta": ("delta", ""),
    "text_complete": ("content", ""),
    "tool_call_requested": ("name", "id"),
    "tool_execution_started": ("name", "id"),
    "tool_execution_completed": ("result", "id"),
    "tool_execution_timed_out": ("name", "id"),
    "tool_result_received": ("name", "id"),
    "turn_resumed": ("", "kept_seq"),
    "run_completed": ("result", ""),
    "run_failed": ("cause", ""),
}
"""For each kind of event the fields for `text` and `ref`."""


@frozen
class Said:
    """One message of a transcript.

    Attributes:
        role: its role.
        text: its text.
        calls: ids of its tool calls.
        results: ids of the calls of its results.
        stop_reason: the model's stop reason; empty for other roles.
    """

    role: str
    text: str = ""
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    stop_reason: str = ""


def said_of(message: Mapping[str, Any]) -> Said:
    """Return a message from its JSON."""
    role = str(message["role"])
    if role == "assistant":
        blocks = message["blocks"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = tuple(block["id"] for block in blocks if block["type"] == "tool_use")
        return Said(role, text, calls, stop_reason=message.get("stop_reason", "end_turn"))
    if "results" in message:
        return Said(role, results=tuple(result["tool_use_id"] for result in message["results"]))
    return Said(role, str(message.get("content", "")))


@frozen
class RowCounts:
    """The counts of a session's rows in the store's file.

    Attributes:
        messages: number of rows of messages.
        positions: number of positions that they span; it equals `messages` if none is missing.
        claimed: number of messages by the session's own row.
        last_seq: number of the last event.
        turns: number of terminal events.
    """

    messages: int
    positions: int
    claimed: int
    last_seq: int
    turns: int


class TargetError(Exception):
    """A target refused a call, or the connection was lost: `code` is the error's, or `LOST`."""

    def __init__(self, code: str, message: str, cause: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.cause = cause

    @property
    def cancelled(self) -> bool:
        """Whether it is the error of an interrupted turn."""
        return self.code == ErrorCode.AGENT_ERROR and self.cause == "cancelled"

    @property
    def dropped(self) -> bool:
        """Whether an overloaded gateway, or a proxy, had no place for the connection: no promise is broken by that."""
        return self.code in OVERLOADED


async def tried_again(work: Callable[[], Awaitable[T]], counts: Counter[str]) -> T:
    """Return the result of some work, which is begun anew if its connection is dropped. Raises the last TargetError."""
    for failures in range(1, ATTEMPTS):
        try:
            return await work()
        except TargetError as exc:
            if not exc.dropped:
                raise
        counts["tried again"] += 1
        await trio.sleep(BACKOFF.delay(failures))
    return await work()


class TargetConnection(Protocol):
    """One client's connection. Its methods raise TargetError."""

    async def create(self, model: str | None) -> str:
        """Create a session; return its id."""

    async def turn(self, session_id: str, prompt: str) -> str:
        """Run a turn and return its answer; its events come before it."""

    async def interrupt(self, session_id: str) -> None:
        """End the running turn."""

    async def compact(self, session_id: str) -> None:
        """Compact the session."""

    async def follow(self, session_id: str, after_seq: int) -> None:
        """Follow the session's events above a number, until the client is left."""

    async def history(self, session_id: str) -> Sequence[Said]:
        """Return all messages."""

    async def message_count(self, session_id: str) -> int:
        """Return the number of messages by the session's own view."""


class Target(Protocol):
    """A runtime, in this process or behind a gateway.

    Attributes:
        name: its name in reports.
        tagged: whether answers begin with the tag of their prompt.
    """

    @property
    def name(self) -> str: ...

    @property
    def tagged(self) -> bool: ...

    def line(self, on_seen: OnSeen) -> AbstractAsyncContextManager[TargetConnection]:
        """Open a connection for a body, and drop it afterwards without a close. Raises TargetError."""

    def crowded(self, bad_clients: BadClients, counts: Counter[str]) -> AbstractAsyncContextManager[None]:
        """Run bad clients against it for a body, and count their outcomes."""

    async def rows(self, session_ids: Sequence[str]) -> Mapping[str, RowCounts] | None:
        """Return the counts of rows in the store's file; None if this machine does not have the file."""
