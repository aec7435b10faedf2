"""`warren`, made to kill itself: the n-th time it passes the point that WARREN_CRASH names, as `point:n`.

The points are put around the product's functions from outside: nothing of this is in a normal run.
"""

import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from warren.actors.events.eventlog import EventLog
from warren.actors.session.actor import SessionActor
from warren.actors.session.conversation import Conversation
from warren.actors.supervisor.supervisor import Supervisor
from warren.actors.turn.toolbox import ToolRun
from warren.storage.operations import Archive, Claim, Delete, Release
from warren.storage.postgres import lease as database_lease
from warren.storage.postgres import operations as database_operations
from warren.storage.postgres import writer as database_writer
from warren.storage.sqlite import operations
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.writer import APPLIERS, Writer

BEFORE: Final[dict[str, tuple[Any, Any]]] = {
    "a transaction": (Writer, "_together"),
    "a lease is taken": (APPLIERS, Claim),
    "a step is stored": (Conversation, "commit_step"),
    "an answer is stored": (Conversation, "store_answer"),
    "a tool runs": (ToolRun, "_run_direct"),
    "a turn is told to have ended": (SessionActor, "_end_turn"),
    "an event is shown": (EventLog, "emit"),
    "a session leaves": (Conversation, "release"),
    "closing": (Writer, "close"),
}
AFTER: Final[dict[str, tuple[Any, Any]]] = {
    "a turn is admitted": (Supervisor, "admit"),
    "the holder is entered": (Holder, "register"),
    "a lease is taken": (APPLIERS, Claim),
    "a turn is written": (operations, "commit_all"),
    "a transaction": (Writer, "_together"),
    "a commit is known": (Conversation, "_write"),
    "a turn is told to have ended": (SessionActor, "_end_turn"),
    "a lease is put back": (APPLIERS, Release),
    "a session is archived": (APPLIERS, Archive),
    "a session is deleted": (APPLIERS, Delete),
    "a step is stored": (Conversation, "commit_step"),
    "an answer is stored": (Conversation, "store_answer"),
    "a tool runs": (ToolRun, "_run_direct"),
    "the holder has left": (Holder, "leave"),
    "closing": (Writer, "close"),
}
IN_DATABASE: Final[dict[Any, Any]] = {Writer: database_writer.Writer, Holder: database_lease.Holder}
"""The classes of a store in a database, by those of a store in files that have the same points."""
POINTS: Final = tuple([f"before {name}" for name in BEFORE] + [f"after {name}" for name in AFTER])


def die_at(point: str, count: int, *, database: bool = False) -> None:
    """Have this process killed the `count`-th time it passes a point."""
    watch(point, _countdown(count), database=database)


def watch(point: str, passed: Callable[[], None], *, database: bool = False) -> None:
    """Have a function called each time this process passes a point."""
    when, _, name = point.partition(" ")
    first = when == "before"
    owner, method = (BEFORE if first else AFTER)[name]
    if database and owner is operations:
        owner = database_writer
    elif database:
        owner = database_operations.APPLIERS if owner is APPLIERS else IN_DATABASE.get(owner, owner)
    if isinstance(owner, dict):
        owner[method] = _wrapped(owner[method], passed, first=first)
    else:
        setattr(owner, method, _wrapped(getattr(owner, method), passed, first=first))


def _countdown(count: int) -> Callable[[], None]:
    left = count

    def passed() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return passed


def _wrapped(function: Callable[..., Any], passed: Callable[[], None], *, first: bool) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(*args: Any, **kwargs: Any) -> Any:
            if first:
                passed()
            result = await function(*args, **kwargs)
            if not first:
                passed()
            return result

        return later

    @functools.wraps(function)
    def at_once(*args: Any, **kwargs: Any) -> Any:
        if first:
            passed()
        result = function(*args, **kwargs)
        if not first:
            passed()
        return result

    return at_once


if __name__ == "__main__":
    place, _, number = os.environ.get("WARREN_CRASH", "").rpartition(":")
    if place:
        die_at(place, int(number), database=any(each.startswith("postgresql:") for each in sys.argv))
    from warren.transport.cli import main

    sys.exit(main())
