"""How the parts of a runtime do; plain values, no I/O. Figures are of the last minutes."""

from typing import Final, Literal

import attrs

Status = Literal["ok", "degraded", "failed"]
"""Degraded: it works, with something missing or late. Failed: it does not do what it is for."""
SLOW_COMMIT_MS: Final = 1_000.0
"""A commit that takes longer, one in a hundred, makes the store degraded."""
LATE_LOOP_MS: Final = 250.0
"""So does for the event loop what is late by more."""
FAILED_AFTER: Final = 30.0
"""Seconds without a write that succeeds, after which a store that refuses writes has failed."""


@attrs.frozen
class StoreHealth:
    """The store. That it can be written is tried again and again, also while no turn ends.

    Attributes:
        status: degraded while writes or reads fail, and while writes are slow; failed if writes have failed for half a
            minute.
        last_error: the error of the newest write or read that failed; None a minute after they succeed again.
        commit_p50_ms: milliseconds that a commit takes, the middle one of the recent; None before the first.
        commit_p99_ms: all but one in a hundred of them took no longer.
    """

    status: Status
    last_error: str | None = None
    commit_p50_ms: float | None = None
    commit_p99_ms: float | None = None


@attrs.frozen
class MemoryHealth:
    """The memory.

    Attributes:
        status: degraded if the last thing to be remembered was refused, its index cannot be brought forward, or its
            file cannot be opened. Being behind alone is none: it catches up.
        behind: entries that its index has not come to yet; searches find them by their words.
        last_error: the error of the refusal, the index or the opening; None if there is none.
    """

    status: Status
    behind: int = 0
    last_error: str | None = None


@attrs.frozen
class ProjectorHealth:
    """The files that follow the store.

    Attributes:
        status: degraded where some of them cannot be written.
        projecting: whether this process writes them; else another one does, or none yet.
        behind: changes of sessions that they do not show yet; None where another process writes them.
        last_error: what is wrong; None where nothing is.
    """

    status: Status
    projecting: bool
    behind: int | None = 0
    last_error: str | None = None


@attrs.frozen
class LoopHealth:
    """The event loop.

    Attributes:
        status: degraded where everything is late by more than a quarter of a second.
        lag_p99_ms: milliseconds by which it is late for what is due, all but one time in a hundred.
    """

    status: Status = "ok"
    lag_p99_ms: float = 0.0


@attrs.frozen
class McpHealth:
    """An MCP server whose tools all sessions get. It is tried again for ever.

    Attributes:
        name: the server's.
        status: degraded while it is not connected: calls of its tools have errors for results.
        state: failed while it waits to be tried again.
        restarts: how often it has been connected anew.
        last_error: what ended the connection, or kept it from coming about, the last time; also where it is back.
    """

    name: str
    status: Status
    state: Literal["connecting", "ready", "failed"]
    restarts: int = 0
    last_error: str | None = None


def worst(*found: Status) -> Status:
    """Return the worst of some."""
    return max(found, key=("ok", "degraded", "failed").index, default="ok")
