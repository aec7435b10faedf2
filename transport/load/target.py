"""What a load run is pointed at, and the one form in which every target tells what happened."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple, Protocol

import attrs

from warren.errors import ErrorCode
from warren.transport.load.plan import Strangers

LOST: Final = "CONNECTION_LOST"
"""The code of a call whose connection ended, or never began."""


class Seen(NamedTuple):
    """One event, with what the checks need of it.

    Attributes:
        seq: its number.
        first_seq: of the first event it stands for; `seq` where it stands for itself.
        kind: what it is called on the wire.
        text: the delta, the content, the prompt, the result, or the cause of a failure.
        ref: the id of a tool call, or the number of a step.
        session_id: whose event it says it is.
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
    "run_completed": ("result", ""),
    "run_failed": ("cause", ""),
}
"""Which of an event's fields are its `text` and its `ref`."""


@attrs.frozen
class Said:
    """One message of a transcript.

    Attributes:
        role: who says it.
        text: the words.
        calls: ids of the tool calls that it makes.
        results: ids of the calls whose results it brings.
        stop_reason: why the model stopped; empty for other roles.
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


@attrs.frozen
class Rows:
    """What the store's file holds of a session.

    Attributes:
        messages: rows of messages.
        positions: the positions that they span; as many as there are rows where none is missing.
        claimed: messages that the session's own row claims.
        last_seq: number of the last event.
        turns: terminal events.
    """

    messages: int
    positions: int
    claimed: int
    last_seq: int
    turns: int


class RefusedError(Exception):
    """A target said no, or went away: `code` is the stable one, or `LOST`."""

    def __init__(self, code: str, message: str, cause: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.cause = cause

    @property
    def cancelled(self) -> bool:
        """Whether it tells that a turn was interrupted."""
        return self.code == ErrorCode.AGENT_ERROR and self.cause == "cancelled"


class Line(Protocol):
    """One client's connection. Its methods raise RefusedError."""

    async def create(self, model: str | None) -> str:
        """Create a session; return its id."""
        ...

    async def turn(self, session_id: str, prompt: str) -> str:
        """Run a turn and return its answer; its events come before."""
        ...

    async def interrupt(self, session_id: str) -> None:
        """End the running turn."""
        ...

    async def compact(self, session_id: str) -> None:
        """Compact the session."""
        ...

    async def follow(self, session_id: str, after_seq: int) -> None:
        """Begin to be told of the session's events above a number; it lasts until the line is left."""
        ...

    async def history(self, session_id: str) -> Sequence[Said]:
        """Return all messages."""
        ...

    async def message_count(self, session_id: str) -> int:
        """Return how many messages the session says it has."""
        ...


class Target(Protocol):
    """A runtime, wherever it is.

    Attributes:
        name: what it is called in reports.
        tagged: whether answers begin with the tag of their prompt.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - above

    @property
    def tagged(self) -> bool: ...  # noqa: D102 - above

    def line(self, on_seen: OnSeen) -> AbstractAsyncContextManager[Line]:
        """Open a connection; leaving it goes away without a word. Raises RefusedError."""
        ...

    def crowded(self, strangers: Strangers, counts: Counter[str]) -> AbstractAsyncContextManager[None]:
        """Have strangers at it for a body, and count what becomes of them."""
        ...

    async def rows(self, session_ids: Sequence[str]) -> Mapping[str, Rows] | None:
        """Return what the store's file holds of sessions; None where it cannot be seen from here."""
        ...
