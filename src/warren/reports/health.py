"""The health of the parts of a runtime, as plain values. The figures are of the last minutes."""

from typing import Final, Literal

from warren.base.values import frozen
from warren.conversation.memory import Weighs

McpState = Literal["connecting", "ready", "failed"]
Status = Literal["ok", "degraded", "failed"]
"""Degraded: the part works, but something is missing or late. Failed: the part does not do its job."""
SLOW_COMMIT_MS: Final = 1_000.0
"""The store is degraded if one commit in a hundred takes more milliseconds."""
LATE_LOOP_MS: Final = 250.0
"""The event loop is degraded if one timer in a hundred is late by more milliseconds."""
OTHER_CLOCK: Final = 2.0
"""Seconds by which the clock of this machine may differ from the store's before it is a fault."""
FAILED_AFTER: Final = 30.0
"""Seconds without a successful write, after which a store that refuses writes counts as failed."""


@frozen
class StoreHealth:
    """The health of the store. A probe writes to it regularly, also if no turn ends.

    Attributes:
        status: degraded while writes or reads fail, while writes are slow, and while the clock of this machine is off;
            failed if writes have failed for half a minute.
        last_error: the error of the newest write or read that failed, None a minute after they succeed again; else the
            fault of the clock.
        commit_p50_ms: median of the milliseconds of recent commits; None before the first.
        commit_p99_ms: 99th percentile of the milliseconds of recent commits; None before the first.
        kind: "file" for a store in files, "database" for one in PostgreSQL; None if a program has brought its own.
        clock_ahead: seconds by which the clock of the database's server is ahead of this machine's, below 0 if it is
            behind; None for a store in files, and before the first renewal of leases.
    """

    status: Status
    last_error: str | None = None
    commit_p50_ms: float | None = None
    commit_p99_ms: float | None = None
    kind: Literal["file", "database"] | None = None
    clock_ahead: float | None = None


@frozen
class MemoryHealth:
    """The health of the memory.

    Attributes:
        status: degraded if the newest entry was refused, the index cannot be built, or the file cannot be opened. An
            index that is only behind is no reason: it catches up.
        behind: entries that are not in the index yet; searches find them by their words.
        last_error: the error of the entry, the index or the file; None if there is none.
        weighs: what a search weighs: "words" alone without an embedder, while the embedder fails, and in a database
            without pgvector. None if the memory is not open.
    """

    status: Status
    behind: int = 0
    last_error: str | None = None
    weighs: Weighs | None = None


@frozen
class ProjectorHealth:
    """The health of the projector, which writes the sessions as files.

    Attributes:
        status: degraded if some of the files cannot be written.
        projecting: whether this process writes the files; else another process does, or none yet.
        behind: changes of sessions that are not in the files yet; None if another process writes the files.
        last_error: the error of the newest write; None if it succeeded.
    """

    status: Status
    projecting: bool
    behind: int | None = 0
    last_error: str | None = None


@frozen
class AccessHealth:
    """The health of the tokens that a server lets in.

    Attributes:
        status: degraded while the newest file of tokens or keys cannot be used, or the keys of JWTs cannot be fetched:
            those that were known before stay in use.
        last_error: the reason; None if there is none.
    """

    status: Status
    last_error: str | None = None


@frozen
class FilesHealth:
    """The health of the files that a server may open, of which each client needs one.

    Attributes:
        status: degraded while the server lets in fewer clients than its settings allow, and for a minute after a client
            could not be accepted.
        last_error: the reason.
    """

    status: Status
    last_error: str


@frozen
class LoopHealth:
    """The health of the event loop.

    Attributes:
        status: degraded if timers are late by more than a quarter of a second.
        lag_p99_ms: 99th percentile of the milliseconds by which timers are late.
    """

    status: Status = "ok"
    lag_p99_ms: float = 0.0


@frozen
class McpHealth:
    """The health of an MCP server whose tools all sessions get. A lost connection is retried for ever.

    Attributes:
        name: the server's name.
        status: degraded while the server is not connected; calls of its tools have errors as results.
        state: `failed` during the backoff before the next try.
        restarts: number of times that the server was connected again.
        last_error: the error that ended or prevented the newest lost connection; it stays after a reconnection.
    """

    name: str
    status: Status
    state: McpState
    restarts: int = 0
    last_error: str | None = None


@frozen
class ToolsHealth:
    """Tools that models were not offered in the last hour, as their server does not take them. The others were.

    Attributes:
        what: the tools.
        why: the reason.
        status: degraded, as something is missing.
    """

    what: str
    why: str
    status: Status = "degraded"


def clock_fault(ahead: float, of: str = "this machine's") -> str | None:
    """Return a sentence about a clock that differs too much from that of the database's server; None if it does not."""
    if abs(ahead) <= OTHER_CLOCK:
        return None
    return f"the clock of the server is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} {of}"


def worst(*found: Status) -> Status:
    """Return the worst status; without any, ok."""
    return max(found, key=("ok", "degraded", "failed").index, default="ok")
