"""A node that runs turns and posts to webhooks, with the echo model. It tells each turn that has ended.

Its arguments are the folder of the store or the address of the database, the number of turns, and where it kills
itself: `never`, `commit` right after the commit of the last turn, or `note` right before it stores an attempt.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from warren.conversation.events import RunCompleted
from warren.settings.config import Config, Limits, PostgresConfig, StoreConfig
from warren.storage.operations import Commit, EndAttempt
from warren.storage.postgres import PostgresStore
from warren.storage.sqlite import SqliteStore
from warren.transport.embed import open_supervisor

LIMITS = Limits(webhook_allow=("127.0.0.0/8",))


def tell(**found: object) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def _ends(operation: Any) -> bool:
    return isinstance(operation, Commit) and any(
        isinstance(getattr(each, "event", None), RunCompleted) for each in operation.events
    )


def die_at(place: str, turns: int, cls: type[Any]) -> None:
    """Let this process be killed at a place of a store's writes."""
    write, ended = cls.write, 0

    async def watched(self: Any, operations: Sequence[Any]) -> Any:
        nonlocal ended
        if place == "note" and any(isinstance(each, EndAttempt) for each in operations):
            os.kill(os.getpid(), signal.SIGKILL)
        outcomes = await write(self, operations)
        ended += sum(map(_ends, operations))
        if place == "commit" and ended >= turns:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcomes

    cls.write = watched


async def main() -> None:
    """Open the store, run the turns, and wait."""
    place, turns, dies = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    store = PostgresConfig(place, lease=2.0) if "://" in place else StoreConfig(Path(place), lease=2.0)
    if dies != "never":
        die_at(dies, turns, PostgresStore if "://" in place else SqliteStore)
    async with open_supervisor(Config(store=store, model="echo", limits=LIMITS), environ={}) as service:
        tell(ready=True)
        for number in range(turns):
            tell(ended=(await service.create_session(f"turn {number}")).session_id)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
