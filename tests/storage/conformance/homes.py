"""The homes of sessions, each behind the interface that the actors use."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import attrs
import psycopg

from tests.storage.samples import NOW, opened
from tests.support.postgres import available, database
from warren.base.errors import WarrenError
from warren.conversation.attachments import Attachment
from warren.conversation.inputs import Input
from warren.settings.config import PostgresConfig
from warren.storage.ephemeral import EphemeralStore
from warren.storage.operations import Enqueue, Operation
from warren.storage.postgres import PostgresStore
from warren.storage.sqlite import SqliteStore
from warren.storage.store import Store

Home = Callable[[Path], AbstractAsyncContextManager[Store]]


@asynccontextmanager
async def ephemeral(_path: Path) -> AsyncIterator[Store]:
    """Open the in-memory store."""
    store = EphemeralStore()
    yield store
    await store.aclose()


@asynccontextmanager
async def postgres(_path: Path) -> AsyncIterator[Store]:
    """Open the store in a database of its own; the test is left out on a machine without PostgreSQL."""
    with database() as url:
        store = await PostgresStore.open(PostgresConfig(url))
        try:
            yield store
        finally:
            await store.aclose()


DONE: Final = b'{"result":null}'
HOMES: Final[dict[str, Home]] = {"ephemeral": ephemeral, "sqlite": opened, "postgres": postgres}


def homes_here() -> list[Home]:
    """Return the homes that can be opened on this machine."""
    return [home for name, home in HOMES.items() if name != "postgres" or available()]


async def done(store: Store, operation: Operation[Any]) -> Any:
    """Apply one operation; return its result or raise its refusal."""
    (outcome,) = await store.write([operation])
    if isinstance(outcome, WarrenError):
        raise outcome
    return outcome


def forget(store: Store) -> Callable[[], None]:
    """Let the process of a store go on as a new one; the old one counts as dead. Return a function that wakes it up."""
    assert isinstance(store, SqliteStore | PostgresStore)
    if isinstance(store, PostgresStore):
        with psycopg.connect(store._writer.config.url, autocommit=True) as db:  # noqa: SLF001 - of the test's own
            db.execute("UPDATE warren.holders SET graced_until = now(), expires_at = now()")
    me, hung = store.me, attrs.asdict(store.me, recurse=False)
    me.die()

    def wake() -> None:
        for name, each in hung.items():
            setattr(me, name, each)

    return wake


def put(
    text: str,
    *,
    key: str | None = None,
    session_id: str = "a",
    starts: bool = True,
    limit: int = 9,
    files: tuple[Attachment, ...] = (),
    not_before: datetime | None = None,
) -> Enqueue:
    """Return the operation that puts a text into a session's inbox."""
    more: dict[str, Any] = {"starts": starts, "attachments": files, "not_before": not_before}
    said = Input(f"id of {text}", "queue", text, NOW, key, "peer", **more)
    return Enqueue(session_id, said, limit)
